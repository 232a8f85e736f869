"""Loopback ports that can be closed and opened again while the others serve."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Iterator

import uvicorn
from starlette.types import ASGIApp

LOOPBACK = "127.0.0.1"
_BACKLOG = 1024
_DATE_EVERY_S = 1.0


def bind_loopback(port: int = 0, *, listen: bool = True) -> socket.socket:
    """Return a socket on a loopback port, by default a free one; without ``listen`` it only holds the port.

    Raises
    ------
    OSError
        The port is taken.
    """
    # The protocol is named since asyncio sets TCP_NODELAY only where it is: tokens must not wait for each other.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Lets a holder that never listens keep the number of a port while its listener is closed.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((LOOPBACK, port))
        if listen:
            sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class _PortServer(uvicorn.Server):
    """One port. Signals are the caller's, and it ticks once a second: 512 of them must cost little."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.opened = asyncio.Event()
        self._leaving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.opened.set()

    async def main_loop(self) -> None:
        while not self._leaving.is_set():
            await self.on_tick(0)  # refreshes the date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _DATE_EVERY_S)

    def leave(self) -> None:
        """Stop listening and reset every connection."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        self._leaving.set()


class Listeners:
    """Serves one application on several ports.

    Parameters
    ----------
    app : ASGI application
        Served on every port.
    sockets : iterable of socket
        Listening sockets; owned from now on.
    """

    def __init__(self, app: ASGIApp, sockets: Iterable[socket.socket]) -> None:
        self._config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=3600,
            timeout_graceful_shutdown=1,
        )
        self._sockets = {sock.getsockname()[1]: sock for sock in sockets}
        self._holders: dict[int, socket.socket] = {}
        self._serving: dict[int, tuple[_PortServer, asyncio.Task[None]]] = {}

    async def start(self) -> None:
        """Serve every port."""
        for port, sock in self._sockets.items():
            await self._serve(port, sock)

    async def set_closed(self, ports: Iterable[int]) -> None:
        """Refuse connections on ``ports``, resetting those that are open, and serve all other ports."""
        closed = set(ports) & set(self._sockets)
        for port in closed & set(self._serving):
            self._holders[port] = bind_loopback(port, listen=False)
            await self._stop([port])
        for port in set(self._holders) - closed:
            await self._serve(port, bind_loopback(port))
            self._holders.pop(port).close()

    async def stop(self) -> None:
        """Close every port."""
        await self._stop(list(self._serving))
        for holder in self._holders.values():
            holder.close()

    async def _serve(self, port: int, sock: socket.socket) -> None:
        server = _PortServer(self._config)
        task = asyncio.create_task(server.serve(sockets=[sock]))
        self._serving[port] = (server, task)
        opening = asyncio.create_task(server.opened.wait())
        await asyncio.wait((opening, task), return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        if task.done():
            await task  # raises what kept it from opening

    async def _stop(self, ports: Iterable[int]) -> None:
        leaving = [self._serving.pop(port) for port in ports]
        for server, _ in leaving:
            server.leave()
        await asyncio.gather(*(task for _, task in leaving))
