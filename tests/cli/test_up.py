"""``faultsense up``: everything starts, the key works, and nothing stays behind however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.cli.support import finish, start

PROC = Path("/proc")
SECONDS = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PROC / "self/environ").exists(), reason="counts processes in /proc"),
]


@dataclass
class Up:
    process: subprocess.Popen[str]
    url: str
    key: str
    folder: Path

    def get(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.get(self.url + path, headers=headers, trust_env=False, timeout=30)

    def processes(self) -> list[int]:
        """All of its processes that live: whatever has this test's folder in command, environment or cwd."""
        return [int(path.name) for path in PROC.iterdir() if path.name.isdigit() and _is_of(path, self.folder)]


def _is_of(process: Path, folder: Path) -> bool:
    try:
        if (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        seen = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        return str(folder).encode() in seen or (process / "cwd").readlink().is_relative_to(folder)
    except OSError:  # it has just ended
        return False


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start_up(*words: object) -> Up:
        process = start("up", "--port", 0, "--workers", 1, *words, TMPDIR=str(tmp_path))
        started.append(Up(process, "", "", tmp_path))
        assert process.stdout is not None
        lines: dict[str, str] = {}
        for line in process.stdout:
            name, _, value = line.strip().partition("  ")
            lines[name] = value.strip()
            if line.startswith("Ctrl-C"):
                break
        assert "API key" in lines, finish(process)
        started[-1].url, started[-1].key = lines["API"], lines["API key"]
        return started[-1]

    yield start_up
    for one in started:  # what a failed test left
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate(timeout=SECONDS)
        for pid in one.processes():
            os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s"
        time.sleep(0.05)


def command(pid: int) -> str:
    """Its command line; empty when it has ended since it was listed."""
    try:
        return (PROC / str(pid) / "cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent(pid: int) -> int:
    """Its parent; 0 when it has ended since it was listed."""
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def check_serving(one: Up) -> None:
    assert one.get("/readyz").json() == {"ready": True, "checks": {"database": "ok", "broker": "ok"}}
    assert one.get("/replicas").json()["items"] == []
    assert httpx.get(one.url + "/replicas", trust_env=False).status_code == 401
    assert "swagger-ui" in one.get("/docs").text
    running = " ".join(map(command, one.processes()))  # the list of its processes is complete
    for part in ("app.cli.guarded", "celery", "worker", "workers.tick", "postgres", "redis"):
        assert part in running


def test_ctrl_c_stops_everything(up: Callable[..., Up], tmp_path: Path) -> None:
    one = up()
    check_serving(one)
    one.process.send_signal(signal.SIGINT)
    outcome = finish(one.process)
    assert outcome.status == 0
    assert outcome.out == "stopping ...\n"
    assert "Traceback" not in outcome.err
    assert one.processes() == []
    assert list(tmp_path.iterdir()) == [], "the temporary folder is gone"


def test_a_killed_parent_leaves_nothing_running(up: Callable[..., Up], tmp_path: Path) -> None:
    one = up()
    check_serving(one)
    one.process.kill()
    one.process.wait(SECONDS)
    wait_until(lambda: not one.processes())
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_kept_data_is_there_the_next_time(up: Callable[..., Up], tmp_path: Path) -> None:
    data = tmp_path / "kept"
    first = up("--data", data)
    assert first.get("/replicas").status_code == 200
    first.process.terminate()
    assert finish(first.process).status == 0
    assert first.processes() == []
    second = up("--data", data)
    assert second.key != first.key
    old = httpx.get(second.url + "/replicas", headers={"Authorization": f"Bearer {first.key}"}, trust_env=False)
    assert old.status_code == 200, "the key of the first run is in the kept database"
    assert (data / "secret-key").stat().st_mode & 0o777 == 0o600


def test_a_process_that_dies_ends_it_with_its_name(up: Callable[..., Up]) -> None:
    one = up()
    (guard,) = [pid for pid in one.processes() if parent(pid) == one.process.pid and " serve " in command(pid)]
    os.kill(guard, signal.SIGKILL)
    outcome = finish(one.process)
    assert outcome.status == 2
    assert outcome.err.startswith("faultsense: the api process ended with status -9")
    wait_until(lambda: not one.processes())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_an_end_in_the_middle_of_the_start_leaves_nothing(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    one = Up(start("up", "--port", 0, TMPDIR=str(tmp_path)), "", "", tmp_path)
    wait_until(lambda: any("postgres" in line for line in map(command, one.processes())))
    one.process.send_signal(number)
    outcome = finish(one.process)
    assert outcome.status == status
    assert "Traceback" not in outcome.err
    wait_until(lambda: not one.processes())
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_terminated_demo_leaves_nothing(tmp_path: Path) -> None:
    one = Up(start("demo", "--gpus", 8, "--hosts", 2, TMPDIR=str(tmp_path)), "", "", tmp_path)
    wait_until(lambda: any("workers.tick" in line for line in map(command, one.processes())))
    assert any("app.emulator" in line for line in map(command, one.processes()))
    one.process.terminate()
    outcome = finish(one.process)
    assert (outcome.status, one.processes()) == (143, [])
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []
