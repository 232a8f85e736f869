"""The watchdog: starts the servers for its parent, and ends them when the parent is gone, however it went.

Run as a program of its own, by path, with the standard library only. It is the servers' parent, so there is
no moment in which a server runs that it does not know. Its standard input is a socket to the parent; requests
and answers are JSON, one a line. The end of that stream, or a new parent process id (a forked copy of the
socket may outlive the parent), means: stop all, remove the folder if it is a temporary one, exit.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PARENT_CHECK_SECONDS = 0.5
REQUEST_BYTES = 65536
LAST_STEP = (signal.SIGKILL, 10.0)
REMOVE_SECONDS = 30.0

Steps = list[tuple[int, float]]


class Watchdog:
    """The servers of one parent.

    Parameters
    ----------
    channel : socket.socket
        The stream to the parent.
    parent : int
        The parent's process id.
    """

    def __init__(self, channel: socket.socket, parent: int) -> None:
        self._channel = channel
        self._parent = parent
        self._children: dict[str, tuple[subprocess.Popen[bytes], Steps]] = {}

    def serve(self) -> None:
        """Answer requests until the parent is gone."""
        pending = b""
        while os.getppid() == self._parent:
            if not select.select([self._channel], [], [], PARENT_CHECK_SECONDS)[0]:
                continue
            received = self._channel.recv(REQUEST_BYTES)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                request = json.loads(line)
                answer = {"id": request["id"]} | self.answer(request)
                self._channel.sendall(json.dumps(answer).encode() + b"\n")

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do one request: ``spawn``, ``poll`` or ``stop``."""
        operation, name = request["operation"], request["name"]
        if operation == "spawn":
            try:
                return {"pid": self._spawn(name, request)}
            except OSError as error:
                return {"error": str(error)}
        if operation == "stop":
            self._stop(name, request["steps"])
        return {"returncode": self._children[name][0].poll()}

    def _spawn(self, name: str, request: dict[str, Any]) -> int:
        rights = request["rights"]
        with Path(request["log"]).open("ab") as log:
            process = subprocess.Popen(
                request["command"],
                cwd=request["folder"],
                env=request["environment"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=0o077,
                start_new_session=True,  # Ctrl-C in a terminal must not reach a server
                user=rights.get("user"),
                group=rights.get("group"),
                extra_groups=rights.get("extra_groups"),
            )
        self._children[name] = (process, request["steps"])
        return process.pid

    def _stop(self, name: str, steps: Steps) -> None:
        """Send one signal after the other, each with its time to act, until the process has ended."""
        process = self._children[name][0]
        for number, seconds in steps:
            if process.poll() is not None:
                return
            if number == signal.SIGKILL:  # its helpers as well: a forked Redis rewriting its log
                with suppress(ProcessLookupError, PermissionError):  # it ended just now (Linux, macOS)
                    os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)

    def stop_all(self) -> None:
        """Stop every server, the last started first."""
        for name, (_, steps) in reversed(self._children.items()):
            self._stop(name, [*steps, LAST_STEP])


def remove(folder: Path) -> None:
    """Remove a folder. What the parent started elsewhere may take its time to end, and still writes files there.

    Raises
    ------
    OSError
        When it cannot be removed in half a minute.
    """
    ends = time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            return shutil.rmtree(folder)
        except FileNotFoundError:
            if not folder.exists():
                return None
        except OSError:
            if time.monotonic() > ends:
                raise
        time.sleep(0.1)


def main() -> None:
    """Serve the parent at the other end of standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--remove", type=Path, help="temporary folder to remove at the end")
    arguments = parser.parse_args()
    os.umask(0o077)
    # A handler and not SIG_IGN, which the servers would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    watchdog = Watchdog(socket.socket(fileno=0), arguments.parent)
    try:
        with suppress(ConnectionError):
            watchdog.serve()
    finally:
        watchdog.stop_all()
        if arguments.remove:
            remove(arguments.remove)


if __name__ == "__main__":
    main()
