"""The parent's side of the watchdog: start it, ask it to start, watch and stop servers."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.embedded import watchdog
from app.embedded.errors import EmbeddedServiceError, log_tail
from app.embedded.privileges import Privileges

ANSWER_SECONDS = 60.0  # of a starved machine; usually a millisecond
CLOSE_SECONDS = 120.0
MAX_ANSWER = 65536

Step = tuple[signal.Signals, float]
"""A signal, and the seconds that the process is given to end after it."""


class Supervisor:
    """A running watchdog.

    Parameters
    ----------
    root : Path
        Its log is written there.
    privileges : Privileges
        Whose rights the servers run with.
    lock : int
        File descriptor of the locked root; the watchdog keeps the lock as long as it runs.
    temporary : bool
        Whether the watchdog removes `root` at the end.
    """

    def __init__(self, root: Path, privileges: Privileges, *, lock: int, temporary: bool) -> None:
        self._privileges = privileges
        self._log = root / "watchdog.log"
        self._mutex = threading.Lock()
        self._pids: dict[str, int] = {}
        self._identities = itertools.count()
        self._received = b""
        # -I -S: neither the user's modules nor site-packages; quick to start, nothing to go wrong.
        command = [sys.executable, "-I", "-S", watchdog.__file__, "--parent", str(os.getpid())]
        if temporary:
            command += ["--remove", str(root)]
        self._log.touch(0o600)
        self._channel, other = socket.socketpair()
        with other, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=other.fileno(),
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                pass_fds=(lock,),
            )

    @property
    def pid(self) -> int:
        """The watchdog's process id."""
        return self._process.pid

    def spawn(self, name: str, command: Sequence[str], *, folder: Path, log: Path, steps: Sequence[Step]) -> int:
        """Start a program with the chosen rights and an environment of its own.

        Parameters
        ----------
        name : str
            What later calls name it by.
        command : sequence of str
            Program and arguments; no secret belongs there.
        folder : Path
            Its working directory.
        log : Path
            Where both its output streams are appended.
        steps : sequence of (signal, seconds)
            How it is stopped when this process has gone.

        Returns
        -------
        int
            The process id.

        Raises
        ------
        EmbeddedServiceError
            When the program cannot be run.
        """
        rights = self._privileges
        answer = self._ask(
            {
                "operation": "spawn",
                "name": name,
                "command": [*rights.prefix, *command],
                "folder": str(folder),
                "log": str(log),
                "steps": steps,
                # No variable of ours: settings may be secret, and PG* variables would change the server.
                "environment": {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"},
                "rights": {"user": rights.uid, "group": rights.gid, "extra_groups": []} if rights.switch else {},
            },
        )
        if "error" in answer:
            raise EmbeddedServiceError(
                name,
                f"{command[0]} cannot be run: {answer['error']}",
                advice=f"check that uid {rights.uid} may read and execute that file",
            )
        self._pids[name] = int(answer["pid"])
        return self._pids[name]

    def returncode(self, name: str) -> int | None:
        """Return the exit status of a spawned program, None while it runs."""
        return self._ended(name, self._ask({"operation": "poll", "name": name}))

    def stop(self, name: str, steps: Sequence[Step]) -> int | None:
        """Signal a program until it ends; return its exit status, None if it outlived every step."""
        seconds = sum(step[1] for step in steps)
        return self._ended(name, self._ask({"operation": "stop", "name": name, "steps": steps}, seconds))

    def close(self) -> None:
        """End the watchdog, which stops all servers first.

        Raises
        ------
        EmbeddedServiceError
            When it does not end, or had been killed.
        """
        self._channel.close()
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code != 0:
            self._kill_orphans()
            raise self._error(f"ended with status {code}; the servers were killed")

    def abandon(self) -> None:
        """Drop the connection in a forked copy of the process, which owns neither watchdog nor servers."""
        self._channel.close()

    def _kill_orphans(self) -> None:
        for pid in self._pids.values():
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == pid:  # each server leads a session: most other processes do not
                    os.kill(pid, signal.SIGKILL)

    def _ended(self, name: str, answer: dict[str, Any]) -> int | None:
        code: int | None = answer["returncode"]
        if code is not None:
            self._pids.pop(name, None)
        return code

    def _ask(self, request: dict[str, Any], seconds: float = 0.0) -> dict[str, Any]:
        with self._mutex:
            identity = next(self._identities)
            try:
                self._channel.settimeout(ANSWER_SECONDS + seconds)
                self._channel.sendall(json.dumps(request | {"id": identity}).encode() + b"\n")
                # An answer whose waiting Ctrl-C had cut short may come first.
                while (answer := self._read_answer())["id"] != identity:
                    pass
            except OSError as error:
                raise self._error(f"does not answer: {error}") from error
        return answer

    def _read_answer(self) -> dict[str, Any]:
        while b"\n" not in self._received:
            part = self._channel.recv(MAX_ANSWER)
            if not part:
                raise ConnectionError("it closed the connection")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _error(self, problem: str) -> EmbeddedServiceError:
        return EmbeddedServiceError(
            "watchdog",
            problem,
            advice="close these services and start them again; data under a given root is kept",
            log=log_tail(self._log),
        )
