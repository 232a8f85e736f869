"""Helpers for tests that start, kill and count real server processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from app.embedded import EmbeddedServices

REPOSITORY = Path(__file__).parents[2]
PROC = Path("/proc")
SECONDS = 90.0

Query = Callable[[str, str], list[tuple[Any, ...]]]
ProcessesOf = Callable[[Path], list[int]]


def _is_of(process: Path, root: str) -> bool:
    """Whether a live process works in `root` or names it; a zombie has ended, and only waits for its parent."""
    try:
        if (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        return str((process / "cwd").readlink()).startswith(root) or root in (process / "cmdline").read_text()
    except OSError:
        return False


@pytest.fixture(scope="session")
def processes_of() -> ProcessesOf:
    """The watchdog, the servers and all their helpers that run for a root folder."""
    if not (PROC / "self/stat").exists():
        pytest.skip("counts processes in /proc, which this system does not have")

    def find(root: Path) -> list[int]:
        found = [path for path in PROC.iterdir() if path.name.isdigit() and _is_of(path, str(root))]
        return sorted(int(path.name) for path in found)

    return find


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], object]], None]:
    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {SECONDS} s"
            time.sleep(0.005)

    return wait


@pytest.fixture(scope="session")
def query() -> Query:
    def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    return execute


@pytest.fixture(scope="session")
def redis_client() -> Iterator[Callable[[str], redis.Redis]]:
    clients: list[redis.Redis] = []

    def connect(url: str) -> redis.Redis:
        clients.append(redis.Redis.from_url(url, decode_responses=True, socket_timeout=10))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture(scope="session")
def services() -> Iterator[EmbeddedServices]:
    """One running pair for the tests that leave it as it is."""
    with EmbeddedServices() as running:
        yield running


class Child:
    """A Python process of its own that runs a script and prints one JSON line when it is ready."""

    def __init__(
        self, script: str, *, python: str = sys.executable, path: Path = REPOSITORY, **options: Any
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": str(path), **options.pop("environment", {})}
        self.process = subprocess.Popen(
            [python, "-c", script],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=SECONDS)


@pytest.fixture
def start_child() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(script: str, **options: Any) -> Child:
        children.append(Child(script, **options))
        return children[-1]

    yield start
    for child in children:
        child.close()
