"""The process behind `app.emulator.replica.EmulatedReplica`: reads its orders from standard input."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys

from app.emulator.config import EmulatorConfig
from app.emulator.replica import READY
from app.emulator.runner import Sockets, serve_until_signalled
from app.probe_model.manifest import Manifest


def main() -> None:
    """Serve on the inherited sockets until stopped or orphaned."""
    order = json.loads(sys.stdin.buffer.read())
    sockets = Sockets(
        socket.socket(fileno=order["control"]),
        tuple(socket.socket(fileno=fd) for fd in order["ranks"]),
        None if order["production"] is None else socket.socket(fileno=order["production"]),
    )
    config = EmulatorConfig.model_validate(order["config"])
    manifest = Manifest.model_validate(order["manifest"])
    asyncio.run(serve_until_signalled(config, manifest, sockets, _announce, parent=order["parent"]))


def _announce() -> None:
    os.write(sys.stdout.fileno(), READY)


if __name__ == "__main__":
    main()
