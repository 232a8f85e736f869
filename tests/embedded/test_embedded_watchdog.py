"""The watchdog alone: stubborn and missing programs."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from app.embedded import EmbeddedServiceError
from app.embedded.privileges import Privileges
from app.embedded.redis_server import RedisServer
from app.embedded.supervisor import Supervisor

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
)


@pytest.fixture
def supervisor(tmp_path):
    reader, writer = os.pipe()
    one = Supervisor(tmp_path, Privileges(os.geteuid(), os.getegid()), lock=reader, temporary=False)
    os.close(reader)
    yield one
    one.close()
    os.close(writer)


def spawn(supervisor, tmp_path, script):
    return supervisor.spawn(
        "program",
        [sys.executable, "-c", script],
        folder=tmp_path,
        log=tmp_path / "log",
        steps=[(signal.SIGTERM, 0.2)],
    )


def test_the_exit_status_of_a_program_is_told(supervisor, tmp_path, wait_until):
    spawn(supervisor, tmp_path, "print('hello'); raise SystemExit(3)")
    wait_until(lambda: supervisor.returncode("program") is not None)
    assert supervisor.returncode("program") == 3
    assert (tmp_path / "log").read_text() == "hello\n"


def test_stopping_escalates_until_the_program_ends(supervisor, tmp_path, wait_until):
    spawn(supervisor, tmp_path, STUBBORN)
    wait_until(lambda: (tmp_path / "log").read_text() == "ready\n")
    assert supervisor.stop("program", [(signal.SIGTERM, 0.2)]) is None
    assert supervisor.stop("program", [(signal.SIGTERM, 0.2), (signal.SIGKILL, 10.0)]) == -signal.SIGKILL


def test_a_stubborn_program_is_killed_at_the_end(supervisor, tmp_path, wait_until, processes_of):
    spawn(supervisor, tmp_path, STUBBORN)
    wait_until(lambda: (tmp_path / "log").read_text() == "ready\n")
    supervisor.close()
    assert processes_of(tmp_path) == []


def test_a_program_that_cannot_be_run_is_a_typed_error(supervisor, tmp_path):
    with pytest.raises(EmbeddedServiceError, match="/nonexistent/program cannot be run"):
        supervisor.spawn("program", ["/nonexistent/program"], folder=tmp_path, log=tmp_path / "log", steps=[])


def test_programs_get_default_signal_handling(supervisor, tmp_path, wait_until):
    ignored = "import signal; print([s for s in (1, 2, 15) if signal.getsignal(s) == signal.SIG_IGN])"
    spawn(supervisor, tmp_path, ignored)
    wait_until(lambda: supervisor.returncode("program") is not None)
    assert (tmp_path / "log").read_text() == "[]\n"


def test_a_late_answer_is_not_taken_for_the_next_one(supervisor, tmp_path, monkeypatch):
    spawn(supervisor, tmp_path, "import signal; signal.pause()")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "_read_answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            supervisor.stop("program", [(signal.SIGKILL, 10.0)])
    assert spawn(supervisor, tmp_path, "pass") > 0


def test_an_attempt_that_has_just_begun_does_not_hide_why_those_before_it_failed(supervisor, tmp_path):
    program = tmp_path / "redis"
    first = f"mkdir {tmp_path}/tried && echo Address already in use && exit 1"
    program.write_text(f"#!/bin/sh\n{first}\necho starting\nsleep 60\n")
    program.chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    server = RedisServer(
        supervisor, Privileges(os.geteuid(), os.getegid()), folder, durable=False, program=program
    )
    with pytest.raises(EmbeddedServiceError, match="was not ready in time") as caught:
        server.start(seconds=0.5)
    assert caught.value.log == "Address already in use"
