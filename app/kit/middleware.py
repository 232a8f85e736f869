"""What happens to every request before any endpoint sees it: its size is capped, its id travels along."""

from __future__ import annotations

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.kit.logs import REQUEST_ID
from app.kit.problems import Problem

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


class BodyLimit:
    """Refuses bodies above a limit with 413, whether their length is declared or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > self._max:
            await self._refuse(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            await self._refuse(scope, receive, send)
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body, None as soon as it is too large."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return bytes(body)
            body += message.get("body", b"")
            if len(body) > self._max:
                return None
            if not message.get("more_body", False):
                return bytes(body)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = Problem(413, "body_too_large", f"the body is larger than {self._max} bytes")
        await problem.response()(scope, receive, send)
