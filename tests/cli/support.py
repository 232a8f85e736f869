"""Runs the command as a shell would see it: exit status, standard output, standard error."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from app.cli import main
from app.localization.events import Event, dump_log, measured
from app.localization.session import Session
from app.localization.settings import Settings
from app.localization.verdict import Verdict

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from app.cli import main; main()"]


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON line on standard output."""
        (line,) = self.out.splitlines()
        return json.loads(line)


def run(*words: object) -> Outcome:
    """Run a command in this process, through the entry point that the installed program has."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["faultsense", *map(str, words)]
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Outcome(status, out.getvalue(), err.getvalue())


def start(*words: object, **environment: str) -> subprocess.Popen[str]:
    """Start a command as a process of its own, in its own group."""
    return subprocess.Popen(
        [*PROGRAM, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def refused(outcome: Outcome, *words: str) -> None:
    """Assert that input was refused: status 2, nothing on standard output, one line that has these words."""
    assert outcome.status == 2, outcome
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("faultsense: ")
    for word in words:
        assert word in line


def log_lines(*, slow: Iterable[int] = (3,), gpus: int = 8) -> list[str]:
    """The log of a job in which every probe with all ``slow`` ranks took three times as long."""
    settings = Settings(gpus=gpus, k=4, repeats=1)
    session = Session(settings)
    events = [Event("settings", settings.to_dict())]
    while not isinstance(upcoming := session.next(), Verdict):
        ms = 60.0 if set(slow) <= set(upcoming.members) else 20.0
        events.append(measured(upcoming, tbt_ms=ms, ttft_ms=ms, wall_ms=ms))
        session.observe(events[-1])
    return list(dump_log([*events, Event("verdict", {"verdict": upcoming.to_dict()})]))


def finish(process: subprocess.Popen[str], seconds: float = 240.0) -> Outcome:
    """Wait for a process; it and its group are killed when that takes too long."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"not within {seconds} s:\n{out}\n{err}") from None
    return Outcome(process.returncode, out, err)
