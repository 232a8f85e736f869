"""The lean client of the probes: open connections, prepared bytes, arrival times taken before any parsing.

64 simultaneous streams through a full HTTP client reach the server hundreds of milliseconds apart on a busy
machine; bytes written to open sockets reach it within a few (DESIGN section 4; ``scripts/bench.py skew``).
"""

from __future__ import annotations

import asyncio
import time

import h11

from app.outbound import GuardError
from app.outbound.http import tls_context
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.probing.errors import Failure
from app.probing.stream import Chunk, Exchange, read_exchange

MAX_BYTES = 16 << 20
CONNECT_TIMEOUT_S = 5.0


class _Recorder(asyncio.Protocol):
    """Records what arrives and when; looks at the bytes only to notice the end of an answer."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.chunks: list[Chunk] = []
        self.done: asyncio.Future[None] | None = None
        self.too_large = False
        self.lost = False
        self._size = 0
        self._chunked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def begin(self, request: bytes) -> asyncio.Future[None]:
        """Write a request; the future ends with its answer."""
        assert self.transport is not None
        self.chunks, self._size, self._chunked = [], 0, False
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.done

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.chunks:
            self._chunked = b"chunked" in data[:4096].lower()
        self.chunks.append((now, data))
        self._size += len(data)
        if self._size > MAX_BYTES:
            self.too_large = True
            self.abort()
        elif not self._chunked or data.endswith(b"0\r\n\r\n"):
            self._finish_if_complete()

    def connection_lost(self, _: Exception | None) -> None:
        self.lost = True
        self._finish()

    def abort(self) -> None:
        """Close at once: the server drops the request."""
        self.lost = True
        if self.transport is not None:
            self.transport.abort()
        self._finish()

    def _finish_if_complete(self) -> None:
        try:
            complete = read_exchange(self.chunks).complete
        except h11.RemoteProtocolError:
            complete = True
        if complete:
            self._finish()

    def _finish(self) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


class RankConnection:
    """A connection that reaches one rank, opened when needed and kept.

    Parameters
    ----------
    access : ReplicaAccess
        The replica.
    rank : int
        The rank that requests on this connection are for.
    """

    def __init__(self, access: ReplicaAccess, rank: int) -> None:
        self._access = access
        self._rank = rank
        self._endpoint: ProbeEndpoint = access.endpoint_of(rank)
        self._recorder: _Recorder | None = None

    async def open(self) -> Failure | None:
        """Make sure that the connection is open; the failure when it cannot be."""
        if self._recorder is not None and not self._recorder.lost:
            return None
        target = self._endpoint.target
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                address = await self._access.guard.resolve(target)
                _, self._recorder = await asyncio.get_running_loop().create_connection(
                    _Recorder,
                    address,
                    target.port,
                    ssl=tls_context(self._access.ca_pem) if target.tls else None,
                    server_hostname=target.host if target.tls else None,
                )
        except GuardError as error:
            return Failure("address_refused", str(error), self._rank)
        except (OSError, TimeoutError) as error:
            return self._refused(error)
        return None

    def send(self, request: bytes) -> asyncio.Future[None]:
        """Write prepared bytes on the open connection."""
        assert self._recorder is not None
        return self._recorder.begin(request)

    def answer(self) -> Exchange | Failure:
        """What arrived since `send`; call it when the future is done."""
        assert self._recorder is not None
        if self._recorder.too_large:
            return Failure("response_too_large", f"more than {MAX_BYTES >> 20} MiB came back", self._rank)
        try:
            exchange = read_exchange(self._recorder.chunks)
        except h11.RemoteProtocolError:
            self.close()
            return Failure("bad_response", "the answer is not HTTP/1.1", self._rank)
        if not exchange.reusable:
            self.close()
        return exchange

    def close(self) -> None:
        """Close at once; a request in flight is dropped by the server."""
        if self._recorder is not None:
            self._recorder.abort()
            self._recorder = None

    def _refused(self, error: Exception) -> Failure:
        own = self._endpoint.rank_choice == "url" or len(self._endpoint.ranks) == 1
        reason = (
            "does not accept connections in time" if isinstance(error, TimeoutError) else "refuses connections"
        )
        return Failure(
            "rank_refused" if own else "endpoint_unreachable",
            f"{self._endpoint.target.url} {reason}",
            self._rank,
        )
