"""POST /v1/completions as a bare ASGI application: a stream writes once per engine step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from app.emulator.completion import Completion, ModelLimits, parse_completion
from app.emulator.engine import Engine
from app.emulator.errors import ApiError, engine_busy, engine_dead, unsupported_media_type
from app.emulator.replies import StreamReply, TokenTexts, WholeReply
from app.emulator.requests import EngineBusyError, EngineDeadError, Request

MAX_BODY_BYTES = 4 * 2**20
JSON_TYPE = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

ChooseRank = Callable[[Scope], int | None]
"""The rank that a request is meant for; None for any. Raises `ApiError`."""


class ClientGoneError(Exception):
    """The client closed its connection."""


class CompletionsEndpoint:
    """Answers completions.

    Parameters
    ----------
    engine : Engine
        Runs them.
    limits : ModelLimits
        What the served model accepts.
    texts : TokenTexts
        Texts and log-probabilities of the tokens.
    choose_rank : callable
        See `ChooseRank`.
    """

    def __init__(self, engine: Engine, limits: ModelLimits, texts: TokenTexts, choose_rank: ChooseRank) -> None:
        self._engine = engine
        self._limits = limits
        self._texts = texts
        self._choose_rank = choose_rank

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        try:
            _check_media_type(scope)
            completion = parse_completion(await read_body(receive), self._limits)
            rank = self._choose_rank(scope)
            if completion.stream:
                await self._stream(completion, rank, receive, send)
            else:
                await self._whole(completion, rank, receive, send)
        except ApiError as error:
            await send_whole(send, error.status, error.body())
        except ClientGoneError:
            return

    async def _whole(self, completion: Completion, rank: int | None, receive: Receive, send: Send) -> None:
        reply = WholeReply(completion, self._texts)
        try:
            request = self._engine.submit(rank, completion.prompts, completion.limits, reply)
            watcher = self._watch(request, reply, receive)
            try:
                body = await reply.body()
            finally:
                watcher.cancel()
        except (EngineDeadError, EngineBusyError) as error:
            raise _api_error(error) from error
        await send_whole(send, 200, body)

    async def _stream(self, completion: Completion, rank: int | None, receive: Receive, send: Send) -> None:
        reply = StreamReply(completion, self._texts)
        try:
            request = self._engine.submit(rank, completion.prompts, completion.limits, reply)
        except EngineDeadError as error:
            raise _api_error(error) from error
        except EngineBusyError as error:  # vLLM has sent the status line by then
            await _send_start(send, 200, EVENT_STREAM)
            await send({"type": "http.response.body", "body": _api_error(error).event()})
            return
        watcher = self._watch(request, reply, receive)
        try:
            await _send_start(send, 200, EVENT_STREAM)
            await _send_pieces(reply, send)
        finally:
            watcher.cancel()

    def _watch(self, request: Request, reply: StreamReply | WholeReply, receive: Receive) -> asyncio.Task[None]:
        """Abort the request when its client goes away, also in the middle of a hung step."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._engine.abort(request)
            reply.failed(ClientGoneError())

        return asyncio.create_task(watch())


async def read_body(receive: Receive) -> bytes:
    """Read a request body of at most `MAX_BODY_BYTES`.

    Raises
    ------
    ApiError
        413 when it is larger.
    ClientGoneError
        The client closed its connection.
    """
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY_BYTES:
            raise ApiError(413, f"The body is larger than {MAX_BODY_BYTES} bytes.", "Content Too Large")
        if not message.get("more_body"):
            return b"".join(pieces)


async def send_whole(send: Send, status: int, body: bytes, content_type: bytes = JSON_TYPE) -> None:
    """Send a whole answer."""
    await _send_start(send, status, content_type, (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.body", "body": body})


async def _send_start(send: Send, status: int, content_type: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [*more, (b"content-type", content_type), (b"vary", b"Origin")]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_pieces(reply: StreamReply, send: Send) -> None:
    more = True
    while more:
        try:
            piece, more = await reply.next()
        except (EngineDeadError, EngineBusyError) as error:
            piece, more = _api_error(error).event(), False
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _api_error(error: Exception) -> ApiError:
    return engine_busy() if isinstance(error, EngineBusyError) else engine_dead()


def _check_media_type(scope: Scope) -> None:
    value = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    if value.split(b";")[0].strip().lower() != JSON_TYPE:
        raise unsupported_media_type()
