"""The API on a real port, for what a test client cannot do: streams, and many clients at once."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn

from app.main import create_app
from app.settings import Settings


class ServedApi:
    """A server in a thread of this process; it listens before ``with`` is entered."""

    def __init__(self, settings: Settings) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(settings), log_config=None, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
