"""Trials on several processes: same results in the same order, errors as they are, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from app.localization.errors import LocalizationError, SettingsError
from app.localization.pool import run_trials


def square(number: int) -> int:
    return number * number


def refuse(number: int) -> int:
    if number == 5:
        raise SettingsError("k", f"not in trial {number}")
    return number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def whoami(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_by_number_and_progress_is_told(processes: int) -> None:
    told: list[int] = []
    assert run_trials(square, 70, processes=processes, done=told.append) == [n * n for n in range(70)]
    assert told == sorted(set(told))
    assert len(told) > 10
    assert told[-1] == 70


def test_processes_are_others_and_end() -> None:
    assert os.getpid() not in run_trials(whoami, 8, processes=2)
    assert set(run_trials(whoami, 3)) == {os.getpid()}
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_typed_error_comes_as_it_is(processes: int) -> None:
    with pytest.raises(SettingsError, match="k: not in trial 5") as caught:
        run_trials(refuse, 10, processes=processes)
    assert caught.value.field == "k"
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_is_an_error_not_a_wait() -> None:
    with pytest.raises(LocalizationError, match="memory"):
        run_trials(die, 10, processes=2)
    assert multiprocessing.active_children() == []


def test_an_interrupt_ends_all_at_once() -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trials(square, 1000, processes=2, done=interrupt)
    assert multiprocessing.active_children() == []
