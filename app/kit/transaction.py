"""One request, one transaction: the change, its audit entry and its idempotency record are stored together.

Endpoints of state-changing operations never commit. Hints to workers are sent after the commit
(`broker.hint_after_commit`): a worker that is told too early would not find its job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session

from app.kit import audit, idempotency
from app.kit.db import POOL, get_engine
from app.kit.problems import Problem

CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Fields of an answer that are shown once; an operation names them in its OpenAPI entry.
SECRET_FIELDS = "x-secret-fields"  # noqa: S105

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


# Requests at a time in a process; the others wait. A request holds a connection over several turns in the thread
# pool: with as many requests as connections, those that wait for a connection could hold all threads, and those
# that hold a connection wait for a thread.
AT_A_TIME = POOL * 2 // 3
URGENT_AT_A_TIME = 4


def install(app: FastAPI) -> None:
    """Let an app have these routes."""
    app.state.turns = asyncio.Semaphore(AT_A_TIME)
    app.state.urgent_turns = asyncio.Semaphore(URGENT_AT_A_TIME)


class TransactionalRoute(APIRoute):
    """A route whose state-changing operations are transactions; all wait for their turn."""

    turns = "turns"

    def get_route_handler(self) -> Handler:
        """Wrap FastAPI's handler. A stream is sent after its turn."""
        handle = super().get_route_handler()
        changes = bool(CHANGING & (self.methods or set()))
        secret_fields = frozenset((self.openapi_extra or {}).get(SECRET_FIELDS, ()))
        action = self.operation_id or self.name

        async def take_turn(request: Request) -> Response:
            async with getattr(request.app.state, self.turns):
                if changes:
                    return await self._transact(request, handle, action, secret_fields)
                return await handle(request)

        return take_turn

    async def _transact(
        self, request: Request, handle: Handler, action: str, secret_fields: frozenset[str]
    ) -> Response:
        with Session(get_engine(), expire_on_commit=False) as db:
            request.state.db = db
            try:
                return await _in(db, request, handle, action, secret_fields)
            except (Problem, RequestValidationError) as refusal:
                status = refusal.status if isinstance(refusal, Problem) else 422
                await run_in_threadpool(audit.record_refusal, db, request, action, status)
                raise


class UrgentRoute(TransactionalRoute):
    """A route that does not wait behind others: what stops something must work when all is busy."""

    turns = "urgent_turns"


async def _in(
    db: Session, request: Request, handle: Handler, action: str, secret_fields: frozenset[str]
) -> Response:
    ticket = await _ticket(db, request)
    if ticket is not None:
        earlier = await run_in_threadpool(idempotency.begin, db, ticket)
        if earlier is not None:
            return earlier
    response = await handle(request)

    def store() -> None:
        if ticket is not None and response.status_code < 300:
            idempotency.remember(db, ticket, response, secret_fields)
        audit.record(db, request, action, response)
        db.commit()

    await run_in_threadpool(store)
    return response


async def _ticket(db: Session, request: Request) -> idempotency.Ticket | None:
    """The request's idempotency key with all that it stands for; None without one, or without a valid API key."""
    if request.method != "POST" or idempotency.HEADER not in request.headers:
        return None
    body = await request.body()
    return await run_in_threadpool(idempotency.ticket, db, request, body)
