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
    """Processes that a process started; none when it is gone."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in text.split()]


def at_work(pid: int) -> list[int]:
    """Those of its processes that have computed for half a second; all of them, or none."""
    workers = [child for child in children(pid) if seconds_computed(child) > 0.5]
    return workers if len(workers) == cores() else []


def seconds_computed(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
@pytest.mark.parametrize("moment", ["processes start", "all are at work"])
@pytest.mark.parametrize("to_all", [True, False], ids=["as a terminal does", "to the command alone"])
def test_an_interrupt_ends_it_promptly_without_a_traceback(to_all: bool, moment: str) -> None:
    process = start(*LONG)
    workers = until(lambda: children(process.pid) if moment == "processes start" else at_work(process.pid))
    (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
    outcome = finish(process, seconds=10)
    assert (outcome.status, outcome.out, outcome.err) == (130, "", "")
    until(lambda: not any(map(running, workers)), seconds=5)


@pytest.mark.slow
@needs_cores
def test_processes_end_with_a_command_that_was_killed() -> None:
    process = start(*LONG)
    workers = until(lambda: at_work(process.pid))
    process.kill()
    process.wait(10)
    until(lambda: not any(map(running, workers)), seconds=10)
