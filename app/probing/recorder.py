"""What arrives on a probe's connection, and when: times are taken before any parsing."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

import h11

from app.probing.stream import Chunk, Exchange, ExchangeReader

MAX_BYTES = 16 << 20
# Linux only, and not kept by the kernel: set again for every piece.
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


class AnswerRecorder(asyncio.Protocol):
    """Records one answer at a time; reads the bytes no sooner than it must to notice an answer's end.

    A streamed answer is only read when it may have ended, with an empty line: parsing every piece at once
    would delay the times of the pieces that wait behind it on other connections.
    """

    def __init__(self) -> None:
        self.too_large = False
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._lost = False
        self._done: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._reader = ExchangeReader()
        self._unread: list[Chunk] = []
        self._size = 0
        self._tail = b""
        self._broken: h11.RemoteProtocolError | None = None

    @property
    def usable(self) -> bool:
        """Whether a request can be written, as far as is known."""
        return not self._lost and self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket = transport.get_extra_info("socket")

    def begin(self, request: bytes) -> asyncio.Future[None]:
        """Write a request; the future ends with its answer, or at once when the connection is already lost."""
        self._reset()
        self._done = asyncio.get_running_loop().create_future()
        if self.usable and self._transport is not None:
            self._transport.write(request)
        else:
            self._finish()
        return self._done

    def exchange(self) -> Exchange:
        """What arrived since `begin`.

        Raises
        ------
        h11.RemoteProtocolError
            When it is not HTTP.
        """
        self._read()
        if self._broken is not None:
            raise self._broken
        return self._reader.exchange

    def data_received(self, data: bytes) -> None:
        """Take a piece of the answer (asyncio)."""
        now = time.perf_counter()
        self._acknowledge()
        if self._done is None or self._done.done():
            self.abort()  # nobody asked: it must not be taken for the next answer
            return
        self._unread.append((now, data))
        self._size += len(data)
        self._tail = (self._tail + data)[-4:]
        if self._size > MAX_BYTES:
            self.too_large = True
            self.abort()
        elif not self._reader.chunked or self._tail == b"\r\n\r\n":
            self._read()
            if self._broken is not None or self._reader.exchange.complete:
                self._finish()

    def eof_received(self) -> None:
        """Note that nothing more will come (asyncio); an answer may end so."""
        self._unread.append((time.perf_counter(), b""))

    def connection_lost(self, _: Exception | None) -> None:
        """End the answer, whole or not (asyncio)."""
        self._lost = True
        self._finish()

    def abort(self) -> None:
        """Close at once: the server drops the request."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        self._finish()

    def _acknowledge(self) -> None:
        """Acknowledge at once: a server without TCP_NODELAY holds the next tokens back until then, for 40 ms."""
        if self._socket is not None and _QUICKACK is not None:
            with suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        try:
            for moment, data in unread:
                self._reader.feed(moment, data)
        except h11.RemoteProtocolError as error:
            self._broken = self._broken or error

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
