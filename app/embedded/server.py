"""What PostgreSQL and Redis share: start on a free port, wait until ready, stop, kill, start again."""

from __future__ import annotations

import re
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from app.embedded.errors import EmbeddedServiceError, log_tail
from app.embedded.privileges import Privileges
from app.embedded.supervisor import Step, Supervisor

HOST = "127.0.0.1"
START_SECONDS = 120.0
POLL_SECONDS = 0.01
RETRY_SECONDS = 0.1
KILL_SECONDS = 10.0
# Another program took the port first, or backends of a killed PostgreSQL have not ended yet.
PASSING_PROBLEM = re.compile(
    r"address already in use|could not bind|pre-existing shared memory block", re.IGNORECASE
)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free now; another program may still take it first."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


class Server(ABC):
    """One server program under the watchdog.

    Parameters
    ----------
    supervisor : Supervisor
        Starts and stops the program.
    privileges : Privileges
        Whose rights it runs with.
    folder : Path
        Its own folder, for data, secrets and log.
    durable : bool
        Whether data must survive a power loss; without it they survive a killed process only.
    """

    name: ClassVar[str]
    stop_steps: ClassVar[Sequence[Step]]

    def __init__(self, supervisor: Supervisor, privileges: Privileges, folder: Path, *, durable: bool) -> None:
        self._supervisor = supervisor
        self._privileges = privileges
        self._folder = folder
        self._durable = durable
        self._log = folder / "server.log"
        self._previous_log = folder / "server.log.1"
        self._port: int | None = None
        self._port_is_fixed = False
        self._pid: int | None = None

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1; the same over restarts."""
        if self._port is None:
            raise self.error("has not been started", advice="call start() first")
        return self._port

    @property
    def pid(self) -> int | None:
        """The process id, None while stopped."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        if self._pid is not None and self._supervisor.returncode(self.name) is not None:
            self._pid = None
        return self._pid is not None

    def start(self, seconds: float = START_SECONDS) -> None:
        """Start the server and wait until it answers; a no-op while it runs.

        The first start takes a free port, and another one when a program was faster. A later start keeps port
        and data, and waits for the port within `seconds`.

        Parameters
        ----------
        seconds : float
            The most this may take.

        Raises
        ------
        EmbeddedServiceError
            When the server ends early or is not ready in time, with its last log lines.
        """
        if self.running:
            return
        deadline = time.monotonic() + seconds
        while True:
            if not self._port_is_fixed:
                self._port = free_port()
            if self._attempt(deadline):
                break
            time.sleep(RETRY_SECONDS)
        self._port_is_fixed = True
        self.check()

    def stop(self) -> None:
        """Stop the server in order, by force if it does not follow; a no-op while stopped."""
        self._end([*self.stop_steps, (signal.SIGKILL, KILL_SECONDS)])

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL); a no-op while stopped."""
        self._end([(signal.SIGKILL, KILL_SECONDS)])

    @abstractmethod
    def prepare(self) -> None:
        """Make folder and files ready for a start on `self.port`."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return program and arguments."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Tell from the server's files whether it accepts connections.

        Not by connecting: until then another program may listen there, and must not be sent the password.
        """

    @abstractmethod
    def check(self) -> None:
        """Connect once with the password, and do what a first start needs."""

    def error(self, problem: str, *, advice: str = "", log: Path | None = None) -> EmbeddedServiceError:
        """Return this server's error, with the last lines of its log."""
        return EmbeddedServiceError(self.name, problem, advice=advice, log=log_tail(log or self._log))

    def write_secret(self, path: Path, text: str) -> None:
        """Write a file that only the server and its user (or root) can read."""
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_text(text)
        self._privileges.own(path)

    def _attempt(self, deadline: float) -> bool:
        """Start once; False when that failed for a reason that passes."""
        if self._log.exists():
            self._log.replace(self._previous_log)
        self.prepare()
        self._pid = self._supervisor.spawn(
            self.name, self.command(), folder=self._folder, log=self._log, steps=self.stop_steps
        )
        while not self.is_ready():
            if not self.running:
                if PASSING_PROBLEM.search(log_tail(self._log)) and time.monotonic() < deadline:
                    return False
                raise self.error("ended while starting", advice="see the log lines for the reason")
            if time.monotonic() > deadline:
                self.kill()
                raise self.error(
                    "was not ready in time",
                    advice=f"is port {self._port} taken, or this machine overloaded? Then start again",
                    log=self._telling_log(),
                )
            time.sleep(POLL_SECONDS)
        return True

    def _telling_log(self) -> Path:
        """The log that says why there was no start: an attempt that has just begun has not said it yet."""
        current, previous = log_tail(self._log), log_tail(self._previous_log)
        told_before = PASSING_PROBLEM.search(previous) and not PASSING_PROBLEM.search(current)
        return self._previous_log if told_before or not current else self._log

    def _end(self, steps: Sequence[Step]) -> None:
        if self._pid is None:
            return
        if self._supervisor.stop(self.name, steps) is None:
            raise self.error(f"process {self._pid} does not end", advice=f"kill -9 {self._pid}")
        self._pid = None
