"""What happens to every request before any endpoint sees it: its size is capped, its id travels along."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.kit.logs import REQUEST_ID
from app.kit.problems import Problem

logger = logging.getLogger(__name__)

BODY_TIMEOUT_S = 30.0
MAX_BYTES_WITHOUT_KEY = 64 << 10
_UPLOAD = re.compile(r"/analyses|/replicas/[^/]+/selection-windows")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestId:
    """Answers carry ``X-Request-ID``: the caller's when it is a sane one, else a fresh one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = sent if _REQUEST_ID.fullmatch(sent) else secrets.token_hex(8).encode()
        REQUEST_ID.set(request_id.decode())

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, tagged)


class Unexpected:
    """A bug is answered by a problem document, and logged; its answer passes the middleware like any other."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            if begun or scope["type"] != "http":
                raise
            logger.exception("unexpected error")
            problem = Problem(500, "internal_error", "this is a bug of the service; its log has the details")
            await problem.response()(scope, receive, send)


class BodyLimit:
    """Refuses bodies above a limit with 413, whether their length is declared or not, and slow ones with 408.

    Bodies are read before anything looks at the key, so without one the limit is low: memory is not for strangers.

    Parameters
    ----------
    app : callable
        What is asked next.
    max_bytes, max_upload_bytes : int
        Of any request, and of those that upload measurements made elsewhere.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_upload_bytes: int) -> None:
        self._app = app
        self._max, self._max_upload = max_bytes, max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        limit = self._max_upload if _UPLOAD.fullmatch(scope["path"]) else self._max
        if b"authorization" not in headers:
            limit = min(limit, MAX_BYTES_WITHOUT_KEY)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await _read(receive, headers.get(b"content-length", b"0"), limit)
        except TimeoutError:
            problem = Problem(408, "body_too_slow", f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s")
            await problem.response()(scope, receive, send)
            return
        if body is None:
            problem = Problem(413, "body_too_large", f"the body is larger than {limit} bytes")
            await problem.response()(scope, receive, send)
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)


async def _read(receive: Receive, declared: bytes, limit: int) -> bytes | None:
    """The whole body, None as soon as it is too large."""
    if declared.isdigit() and int(declared[:20]) > limit:
        return None
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return bytes(body)
