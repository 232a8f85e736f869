"""The lean client of the probes: open connections, prepared bytes, arrival times taken before any parsing.

64 simultaneous streams through a full HTTP client reach the server hundreds of milliseconds apart on a busy
machine; bytes written to open sockets reach it within a few (DESIGN section 4; ``scripts/bench.py skew``).
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Sequence

import h11

from app.outbound import GuardError
from app.outbound.http import tls_context, tls_failure
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.probing.errors import Failure
from app.probing.recorder import MAX_BYTES, AnswerRecorder
from app.probing.stream import Exchange

CONNECT_TIMEOUT_S = 5.0


class RankConnection:
    """A connection that reaches one rank, opened when needed and kept.

    Parameters
    ----------
    access : ReplicaAccess
        The replica.
    rank : int
        The rank that requests on this connection are for.
    endpoint : ProbeEndpoint, optional
        Which of its endpoints; default: the first.
    """

    def __init__(self, access: ReplicaAccess, rank: int, endpoint: ProbeEndpoint | None = None) -> None:
        self._access = access
        self._rank = rank
        self._endpoint: ProbeEndpoint = endpoint or access.endpoint_of(rank)
        self._recorder: AnswerRecorder | None = None

    async def open(self) -> Failure | None:
        """Make sure that the connection is open; the failure when it cannot be."""
        if self._recorder is not None and self._recorder.usable:
            return None
        self.close()
        try:
            context = tls_context(self._access.ca_pem) if self._endpoint.target.tls else None
            addresses = await self._access.guard.resolve(self._endpoint.target)
            self._recorder = await self._connect(addresses, context)
        except GuardError as error:
            return Failure("address_refused", str(error), self._rank)
        except OSError as error:
            return self._unreachable(error)
        return None

    async def _connect(self, addresses: Sequence[str], context: ssl.SSLContext | None) -> AnswerRecorder:
        """Connect to the first address that accepts; when none does, a refusal is the error to report."""
        loop, target = asyncio.get_running_loop(), self._endpoint.target
        limit_s = CONNECT_TIMEOUT_S / len(addresses)
        errors: list[OSError] = []
        for address in addresses:
            try:
                async with asyncio.timeout(limit_s):
                    _, recorder = await loop.create_connection(
                        AnswerRecorder,
                        address,
                        target.port,
                        ssl=context,
                        server_hostname=target.host if context else None,
                        # Ends before the connecting does: a port that takes connections does not refuse them.
                        ssl_handshake_timeout=limit_s / 2 if context else None,
                    )
                return recorder
            except OSError as error:
                errors.append(error)
        raise next(filter(_is_refusal, errors), errors[0])

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
            exchange = self._recorder.exchange()
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

    def _unreachable(self, error: OSError) -> Failure:
        """Blame the rank only for a refusal on its own URL: not for our own limits, nor for trust."""
        url = self._endpoint.target.url
        if _is_refusal(error):
            own = self._endpoint.rank_choice == "url" or len(self._endpoint.ranks) == 1
            late = isinstance(error, TimeoutError)
            reason = "does not accept connections in time" if late else "refuses connections"
            return Failure("rank_refused" if own else "endpoint_unreachable", f"{url} {reason}", self._rank)
        reason = tls_failure(error) or (os.strerror(error.errno) if error.errno else str(error))
        return Failure("endpoint_unreachable", f"{url} cannot be reached: {reason}", self._rank)


def _is_refusal(error: OSError) -> bool:
    """Whether the other side does not take connections: its port is closed, or its host is gone."""
    return isinstance(error, ConnectionRefusedError | TimeoutError) or error.errno == errno.EHOSTUNREACH
