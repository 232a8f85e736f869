"""Idempotency keys: a POST that is sent again under the same key is answered again, not done again.

A record is written in the transaction of the change itself, so the two cannot part. While that transaction
runs it holds an advisory lock on the key; whoever comes meanwhile is told to come back. Answers that changed
nothing (errors) are not kept: their sender may mend what was wrong and try again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from sqlalchemy import ColumnElement, Index, LargeBinary, String, delete, func, select, tuple_
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.kit.auth import bearer_token, find_key
from app.kit.db import Base, CreatedAt
from app.kit.problems import FieldError, Problem

HEADER = "idempotency-key"
REPLAYED = "Idempotent-Replayed"
KEPT_FOR = dt.timedelta(hours=24)
_KEPT_HEADERS = ("location", "retry-after", "content-type")
_PATTERN = r"^[!-~]{1,255}$"

IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=_PATTERN,
        description="A text of your own, best a random one. A request that is sent again with the same key within"
        " 24 hours gets the first one's answer (`Idempotent-Replayed: true`); with another body 422; while the"
        " first one is still in work 409.",
    ),
]


def _accepts(idempotency_key: IdempotencyKey = None) -> None:
    """Let FastAPI check and document the header; the transaction reads it."""


Idempotent = Depends(_accepts)


class IdempotencyRecord(Base):
    """What a request was answered, by the API key that sent it and its idempotency key."""

    __tablename__ = "idempotency_records"
    __table_args__ = (Index("ix_idempotency_records_created_at", "created_at"),)

    owner: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary)
    status: Mapped[int]
    headers: Mapped[dict[str, Any]]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[CreatedAt]


@dataclass(frozen=True, slots=True)
class Ticket:
    """An idempotency key in use.

    Parameters
    ----------
    owner : UUID
        Id of the API key: two senders may use the same text.
    key : str
        The header.
    fingerprint : bytes
        SHA-256 of method, target and body.
    """

    owner: uuid.UUID
    key: str
    fingerprint: bytes

    @property
    def lock(self) -> int:
        """Number of the advisory lock, signed 64 bits."""
        digest = hashlib.sha256(self.owner.bytes + self.key.encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


def ticket(db: Session, request: Request, body: bytes) -> Ticket | None:
    """The ticket of a request; None without a valid API key, which the operation itself will refuse."""
    key = find_key(db, bearer_token(request))
    if key is None:
        return None
    target = f"{request.method} {request.url.path}?{request.url.query}\n".encode()
    return Ticket(key.id, request.headers[HEADER], hashlib.sha256(target + body).digest())


def begin(db: Session, wanted: Ticket) -> Response | None:
    """Reserve a key for this transaction, or answer what was answered before.

    Raises
    ------
    Problem
        409 while another request with the key is in work, 422 when it came with another body before.
    """
    if not db.scalar(select(func.pg_try_advisory_xact_lock(wanted.lock))):
        raise Problem(
            409,
            "idempotency_in_progress",
            "a request with this Idempotency-Key is in work; ask again with the same key",
            headers={"Retry-After": "1"},
        )
    # An expired record is no record, whether or not the sweep has deleted it already.
    expired = IdempotencyRecord.created_at < func.now() - KEPT_FOR
    db.execute(delete(IdempotencyRecord).where(_is(wanted), expired))
    record = db.scalar(select(IdempotencyRecord).where(_is(wanted)))
    if record is None:
        return None
    if record.fingerprint != wanted.fingerprint:
        message = "was used for another request within 24 hours; use a new one for each new request"
        raise Problem(
            422,
            "idempotency_key_reused",
            f"Idempotency-Key: {message}",
            errors=[FieldError(field=f"header.{HEADER}", message=message)],
        )
    return Response(record.body, record.status, headers={**record.headers, REPLAYED: "true"})


def remember(db: Session, wanted: Ticket, response: Response, secret_fields: frozenset[str]) -> None:
    """Keep an answer, without the secrets in it."""
    db.add(
        IdempotencyRecord(
            owner=wanted.owner,
            key=wanted.key,
            fingerprint=wanted.fingerprint,
            status=response.status_code,
            headers={name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers},
            body=_without(bytes(response.body), secret_fields),
        )
    )


def delete_expired(db: Session, limit: int = 1000) -> int:
    """Delete a batch of expired records."""
    key = tuple_(IdempotencyRecord.owner, IdempotencyRecord.key)
    expired = (
        select(IdempotencyRecord.owner, IdempotencyRecord.key)
        .where(IdempotencyRecord.created_at < func.now() - KEPT_FOR)
        .limit(limit)
    )
    return len(
        db.execute(delete(IdempotencyRecord).where(key.in_(expired)).returning(IdempotencyRecord.key)).all()
    )


def _is(wanted: Ticket) -> ColumnElement[bool]:
    return (IdempotencyRecord.owner == wanted.owner) & (IdempotencyRecord.key == wanted.key)


def _without(body: bytes, secret_fields: frozenset[str]) -> bytes:
    if not secret_fields:
        return body
    document = json.loads(body)
    return json.dumps({**document, **dict.fromkeys(secret_fields & document.keys())}).encode()
