"""simulate as a process: a progress bar on a terminal only, and nothing left behind when it is ended."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.localization.pool import cores
from tests.cli.support import PROGRAM, ROOT, finish, start

needs_cores = pytest.mark.skipif(cores() < 2, reason="with one core there is one process")
LONG = ("simulate", "--n", 64, "--noise", 0.05, "--trials", 20_000)


def children(pid: int) -> list[int]:
    """Processes that a process started: one a core, and one of Python's own; none when it is gone."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in text.split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What a condition gives as soon as it holds."""
    waiting = threading.Event()
    for _ in range(int(seconds * 50)):
        if value := condition():
            return value
        waiting.wait(0.02)
    raise AssertionError(f"not within {seconds} s")


def on_a_terminal(*words: object) -> tuple[str, str]:
    """Standard output, and what a terminal got on standard error."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        start_new_session=True,
    )
    os.close(theirs)
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65_536):
                seen.append(data)
        except OSError:  # the last writer is gone
            pass

    reader = threading.Thread(target=read)
    reader.start()
    out = finish(process).out
    reader.join()
    os.close(ours)
    return out, b"".join(seen).decode()


def test_a_bar_shows_on_a_terminal_and_only_there() -> None:
    words = ("simulate", "--n", 16, "--trials", 40, "--json")
    out, shown = on_a_terminal(*words)
    assert "40/40" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    plain = finish(start(*words))
    assert (plain.status, plain.err) == (0, "")
    assert json.loads(out) == plain.document


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize("to_all", [True, False], ids=["as a terminal does", "to the command alone"])
def test_an_interrupt_ends_it_promptly_without_a_traceback(to_all: bool) -> None:
    process = start(*LONG)
    workers = until(lambda: pids if len(pids := children(process.pid)) > cores() else None)
    (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
    outcome = finish(process, seconds=10)
    assert (outcome.status, outcome.out, outcome.err) == (130, "", "")
    until(lambda: not any(map(running, workers)), seconds=5)


@pytest.mark.slow
@needs_cores
def test_processes_end_with_a_command_that_was_killed() -> None:
    process = start(*LONG)
    workers = until(lambda: pids if len(pids := children(process.pid)) > cores() else None)
    process.kill()
    process.wait(10)
    until(lambda: not any(map(running, workers)), seconds=10)
