"""What came back on one connection: HTTP by h11, server-sent events, token times.

Pure: works on recorded bytes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import h11

from app.probing.errors import Failure, FailureCode

Chunk = tuple[float, bytes]


@dataclass(slots=True)
class Exchange:
    """One answered request.

    Parameters
    ----------
    status : int
        HTTP status, 0 when there was none.
    complete : bool
        The answer came to its proper end.
    reusable : bool
        The connection can carry another request.
    pieces : list of (float, bytes)
        Body pieces with their arrival times in seconds.
    """

    status: int = 0
    complete: bool = False
    reusable: bool = False
    pieces: list[Chunk] = field(default_factory=list)


@dataclass(slots=True)
class Tokens:
    """Token arrivals of one request, by sequence (``choices[].index``).

    Parameters
    ----------
    times : dict of int to list of float
        Arrival times in seconds, one an event that carried tokens.
    ids : dict of int to list of int
        Token ids.
    """

    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ids: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


def read_exchange(chunks: Sequence[Chunk]) -> Exchange:
    """Parse recorded bytes of one response.

    Raises
    ------
    h11.RemoteProtocolError
        When they are not HTTP.
    """
    parser = h11.Connection(h11.CLIENT)
    # The parser must believe that the request was sent; what it was is of no concern to the answer.
    parser.send(h11.Request(method="POST", target="/", headers=[("Host", "replica"), ("Content-Length", "0")]))
    parser.send(h11.EndOfMessage())
    exchange = Exchange()
    for time, data in chunks:
        parser.receive_data(data)
        _drain(parser, exchange, time)
        if exchange.complete:
            break
    return exchange


def _drain(parser: h11.Connection, exchange: Exchange, time: float) -> None:
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return
        if isinstance(event, h11.Response):
            exchange.status = event.status_code
        elif isinstance(event, h11.Data):
            exchange.pieces.append((time, bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage):
            exchange.complete = True
            exchange.reusable = parser.our_state is h11.DONE and parser.their_state is h11.DONE
            return
        elif isinstance(event, h11.ConnectionClosed):
            return


def read_tokens(exchange: Exchange) -> Tokens | Failure:
    """Tokens of a streaming completion, or why there are none.

    vLLM reports overload and a dead worker inside a stream that began with HTTP 200.
    """
    if exchange.status == 0:
        return Failure("connection_lost", "the connection closed before an answer")
    if exchange.status != 200:
        return _by_status(exchange.status)
    tokens = Tokens()
    buffer = b""
    for time, piece in exchange.pieces:
        buffer += piece
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            failure = _take_line(line.rstrip(b"\r"), time, tokens)
            if failure is not None:
                return failure
    if not exchange.complete:
        return Failure("connection_lost", "the stream broke off")
    return tokens


def _take_line(line: bytes, time: float, tokens: Tokens) -> Failure | None:
    if not line.startswith(b"data:"):
        return None
    payload = line[5:].strip()
    if payload == b"[DONE]":
        return None
    try:
        document = json.loads(payload)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return Failure("bad_response", "an event of the stream is not a JSON object")
    if "error" in document:
        return _in_stream(document["error"])
    return _take_choices(document, time, tokens)


def _take_choices(document: dict[str, Any], time: float, tokens: Tokens) -> Failure | None:
    try:
        for choice in document["choices"]:
            ids = choice.get("token_ids") or []
            if ids:
                tokens.times[choice["index"]].extend([time] * len(ids))
                tokens.ids[choice["index"]].extend(ids)
    except (KeyError, TypeError, AttributeError):
        return Failure("bad_response", "an event of the stream has no choices as /v1/completions gives them")
    return None


def _in_stream(error: object) -> Failure:
    code = error.get("code") if isinstance(error, dict) else None
    return _by_status(code if isinstance(code, int) else 500)


def _by_status(status: int) -> Failure:
    """Failure of a status; the body is not repeated, since it may hold anything."""
    known: dict[int, tuple[FailureCode, str]] = {
        404: ("model_not_found", "the server does not serve the manifest's model (404)"),
        429: ("overloaded", "the server limits requests (429)"),
        503: ("overloaded", "the engine is busy or not ready (503)"),
    }
    if status in known:
        return Failure(*known[status])
    if status >= 500:
        return Failure("engine_failed", f"the engine failed ({status})")
    return Failure("request_rejected", f"the server rejects the probe ({status})")
