"""What came back on one connection: HTTP by h11, server-sent events, token times.

Pure: works on recorded bytes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import h11

from app.probing.errors import Failure, FailureCode

Chunk = tuple[float, bytes]
"""Bytes and their arrival time in seconds; no bytes stand for the end of the connection."""
Choice = tuple[int, list[int]]
"""Index of a sequence, and tokens of it."""


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

    @property
    def last(self) -> float:
        """When the last token came."""
        return max(times[-1] for times in self.times.values())


class ExchangeReader:
    """Reads one response piece by piece; what it found so far is in ``exchange``."""

    def __init__(self) -> None:
        self.exchange = Exchange()
        # Whether the response ends with an empty line, and not before.
        self.chunked = False
        self._parser = h11.Connection(h11.CLIENT)
        # The parser must believe that the request was sent; what it was is of no concern to the answer.
        head = [("Host", "replica"), ("Content-Length", "0")]
        self._parser.send(h11.Request(method="POST", target="/", headers=head))
        self._parser.send(h11.EndOfMessage())

    def feed(self, time: float, data: bytes) -> None:
        """Take a chunk; what comes after the response is not read.

        Raises
        ------
        h11.RemoteProtocolError
            When it is not HTTP.
        """
        if self.exchange.complete:
            self.exchange.reusable = False
            return
        self._parser.receive_data(data)
        try:
            while self._take(self._parser.next_event(), time):
                pass
        except h11.RemoteProtocolError:
            if data:
                raise  # else the connection ended too early, and the exchange is not complete

    def _take(self, event: object, time: float) -> bool:
        """Take a parser's event; whether to ask for another one."""
        if isinstance(event, h11.Response):
            self.exchange.status = event.status_code
            self.chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
        elif isinstance(event, h11.Data):
            self.exchange.pieces.append((time, bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage):
            self.exchange.complete = True
            idle = self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE
            self.exchange.reusable = idle and self._parser.trailing_data == (b"", False)
        return not self.exchange.complete and isinstance(
            event, h11.InformationalResponse | h11.Response | h11.Data
        )


def read_exchange(chunks: Sequence[Chunk]) -> Exchange:
    """Parse recorded bytes of one response.

    Raises
    ------
    h11.RemoteProtocolError
        When they are not HTTP.
    """
    reader = ExchangeReader()
    for time, data in chunks:
        reader.feed(time, data)
    return reader.exchange


def read_tokens(exchange: Exchange) -> Tokens | Failure:
    """Tokens of a streaming completion, or why there are none.

    vLLM reports overload and a dead worker inside a stream that began with HTTP 200. Since a token is answered by
    itself, most events are byte for byte the one before: each is parsed once.
    """
    if exchange.status == 0:
        return Failure("connection_lost", "the connection closed before an answer")
    if exchange.status != 200:
        return _by_status(exchange.status, b"".join(piece for _, piece in exchange.pieces))
    tokens, known = Tokens(), dict[bytes, list[Choice]]()
    for time, line in _lines(exchange.pieces):
        if not line.startswith(b"data:"):
            continue
        choices = known.get(line)
        if choices is None:
            read = _read_event(line[5:].strip())
            if isinstance(read, Failure):
                return read
            choices = known[line] = read
        for index, ids in choices:
            tokens.times[index].extend([time] * len(ids))
            tokens.ids[index].extend(ids)
    if not exchange.complete:
        return Failure("connection_lost", "the stream broke off")
    return tokens if known else Failure("bad_response", "the answer is not a stream of events")


def _lines(pieces: Sequence[Chunk]) -> Iterator[Chunk]:
    """Whole lines, each with the arrival time of its end."""
    begun: list[bytes] = []
    for time, piece in pieces:
        begun.append(piece)
        if b"\n" in piece:
            *lines, rest = b"".join(begun).split(b"\n")
            begun = [rest]
            yield from ((time, line) for line in lines)


def _read_event(payload: bytes) -> list[Choice] | Failure:
    """Tokens that an event carries, by sequence."""
    if payload == b"[DONE]":
        return []
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return Failure("bad_response", "an event of the stream is not a JSON object")
    if document.get("error") is not None:
        return _in_stream(document["error"])
    choices = document.get("choices")
    read = [_read_choice(choice) for choice in choices] if isinstance(choices, list) else [None]
    if None in read:
        return Failure("bad_response", "an event of the stream has no choices as /v1/completions gives them")
    return [choice for choice in read if choice is not None and choice[1]]


def _read_choice(choice: object) -> Choice | None:
    """One sequence's tokens; None when they are not in the shape that vLLM gives them."""
    if not isinstance(choice, dict):
        return None
    index, ids = choice.get("index"), choice.get("token_ids")
    ids = [] if ids is None else ids
    if not _is_natural(index) or not isinstance(ids, list) or not all(map(_is_natural, ids)):
        return None
    return index, ids


def _is_natural(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _in_stream(error: object) -> Failure:
    code = error.get("code") if isinstance(error, dict) else None
    return _by_status(code if type(code) is int and 400 <= code < 600 else 500)


def _by_status(status: int, body: bytes = b"") -> Failure:
    """Failure of a status; the body is not repeated, since it may hold anything."""
    if status == 400 and b"data_parallel_rank" in body and b"out of range" in body:
        return Failure("rank_out_of_range", "the server has fewer data-parallel ranks than declared (400)")
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
