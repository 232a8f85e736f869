"""What this process answered: counted for /metrics, and one log line a request."""

from __future__ import annotations

import logging
import time
import uuid

from prometheus_client import CollectorRegistry, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("app.requests")
QUIET = {"/livez", "/readyz", "/metrics"}

registry = CollectorRegistry()
_seconds = Histogram(
    "faultsense_http_request_seconds",
    "Time until an answer began, by route, method and status; this process only.",
    ["route", "method", "status"],
    buckets=[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
    registry=registry,
)


class Observed:
    """Times requests until their answer begins: an event stream is not slow because it is long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note(scope, message["status"], time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, timed)


def _note(scope: Scope, status: int, seconds: float) -> None:
    # The route's template, never the path: a label must not have a value for each id, nor what callers make up.
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if route != "none" else "other"
    _seconds.labels(route, method, str(status)).observe(seconds)
    if route in QUIET and status < 400:
        return
    caller = scope.get("state", {}).get("caller")
    logger.info(
        "%s %s %d",
        scope["method"],
        route,
        status,
        extra={
            "method": scope["method"],
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 1),
            **({} if caller is None else {"caller_key_id": str(caller.key_id)}),
            # Converted ones only: a text in the place of an id is whatever the caller made up, or a key.
            **{name: str(v) for name, v in scope.get("path_params", {}).items() if _is_id(v)},
        },
    )


def _is_id(value: object) -> bool:
    try:
        uuid.UUID(str(value))
    except ValueError:
        return False
    return True
