"""The whole service on one machine, for `faultsense up` and `faultsense demo`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from app.embedded import EmbeddedServices
from app.settings import LOOPBACK_NETWORKS

START_S = 60.0
STOP_S = 15.0


class StackError(RuntimeError):
    """A process of the service did not start, or ended on its own; the message has its last words."""


class Stack:
    """Embedded PostgreSQL and Redis, migrated tables, an API key, and API, worker and tick as processes.

    Parameters
    ----------
    port : int
        Of the API; 0 takes a free one.
    data : Path, optional
        Folder that keeps the data; a temporary one otherwise.
    workers : int
        Jobs at a time.
    settings : dict, optional
        Further settings, as environment variables without ``FAULTSENSE_``.

    Raises
    ------
    StackError, EmbeddedServiceError
        When something does not start; nothing is left running then.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        data: Path | None = None,
        workers: int = 2,
        settings: dict[str, str] | None = None,
    ) -> None:
        self._wanted_port = port
        self._workers = workers
        self._extra = settings or {}
        self.services = EmbeddedServices(None if data is None else data / "services", durable=data is not None)
        self._data = data
        self._exit = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment: dict[str, str] = {}
        self._commands: dict[str, list[str]] = {}
        self.url = ""
        self.api_key = ""

    def __enter__(self) -> Self:
        with self._exit:
            self._exit.enter_context(self.services)
            self.logs.mkdir(exist_ok=True)
            port = self._wanted_port or _free_port()
            self._environment = self._make_environment()
            self._prepare(self._environment["FAULTSENSE_DATABASE_URL"])
            self._exit.callback(self._stop_processes)
            self._commands = {
                "api": ["serve", f"--port={port}"],
                "worker": ["worker", f"--concurrency={self._workers}"],
                "tick": ["tick"],
            }
            for name in self._commands:
                self.start(name)
            self.url = f"http://127.0.0.1:{port}"
            self._await_ready()
            self._exit = self._exit.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    def client(self) -> httpx.Client:
        """A client with the key."""
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.api_key}"}, timeout=30.0, trust_env=False
        )

    def wait(self) -> None:
        """Block until a process ends, which none should.

        Raises
        ------
        StackError
            Naming the process.
        """
        while True:
            self._check_alive()
            time.sleep(0.5)

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.services.root / "logs"

    def setting(self, name: str) -> str:
        """A setting as the processes have it."""
        return self._environment[f"FAULTSENSE_{name.upper()}"]

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _make_environment(self) -> dict[str, str]:
        """The caller's environment, with our servers; what the caller set beyond those is kept."""
        chosen = {
            "replica_networks": json.dumps(LOOPBACK_NETWORKS),
            "webhook_networks": json.dumps(LOOPBACK_NETWORKS),
            "log_level": "WARNING",
            "log_format": "text",
            "secret_keys": json.dumps([self._secret_key()]),
        }
        own = {"database_url": self.services.database_url, "redis_url": self.services.redis_url, **self._extra}
        # Temporary files of the processes end with the rest.
        temporary = {"TMPDIR": str(self.services.root)}
        return {**_as_environment(chosen), **os.environ, **_as_environment(own), **temporary}

    def _secret_key(self) -> str:
        """Kept beside kept data: what one run encrypts, the next one must read."""
        from app.kit.secrets import generate_key

        if self._data is None:
            return generate_key()
        path = self._data / "secret-key"
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(generate_key())
        return path.read_text(encoding="ascii").strip()

    def _prepare(self, url: str) -> None:
        """Migrate and make a key."""
        from sqlalchemy.orm import Session

        from app.kit import migrate
        from app.kit.auth import create_key
        from app.kit.db import engine_for

        migrate.upgrade(url)
        engine = engine_for(url)
        with Session(engine) as db:
            _, self.api_key = create_key(db, "made by faultsense up")
            db.commit()
        engine.dispose()

    def start(self, name: str) -> None:
        """Start ``api``, ``worker`` or ``tick``."""
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "app.cli.guarded", str(os.getpid()), *self._commands[name]],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches us; we stop them in order
            )

    def pids(self) -> dict[str, int]:
        """Ids of the processes that guard API, worker and tick."""
        return {name: process.pid for name, process in self._processes.items()}

    def stop(self, name: str) -> None:
        """End a process as an operator would: SIGTERM, and SIGKILL only when that is not heard."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        _await_end(process, STOP_S)

    def kill(self, name: str) -> None:
        """End a process and its children with SIGKILL, as a crash would."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _await_ready(self) -> None:
        ends = time.monotonic() + START_S
        with httpx.Client(timeout=2.0, trust_env=False) as client:
            while time.monotonic() < ends:
                self._check_alive()
                try:
                    if client.get(f"{self.url}/readyz").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
        raise StackError(f"the API was not ready within {START_S:.0f} s")

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                _end_group(process)
                last_words = self._log(name).read_text(errors="replace")[-2000:]
                raise StackError(f"the {name} process ended with status {process.returncode}:\n{last_words}")

    def _stop_processes(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        ends = time.monotonic() + STOP_S
        for process in self._processes.values():
            _await_end(process, max(0.1, ends - time.monotonic()))


def _as_environment(settings: dict[str, str]) -> dict[str, str]:
    return {f"FAULTSENSE_{name.upper()}": value for name, value in settings.items()}


def _await_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what a guard that was killed could not take with it: its command is in its process group."""
    with suppress(ProcessLookupError, PermissionError):  # nothing is left (Linux, macOS)
        os.killpg(process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
