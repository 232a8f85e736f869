"""API keys: 256 random bits, stored as SHA-256, shown once.

A key's text begins with ``fs_`` and is sent as ``Authorization: Bearer``. Because it is random, a plain hash
is enough, and looking it up by its hash leaks nothing through timing.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import ARRAY, LargeBinary, String, func, or_, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.kit import failures
from app.kit.db import Base, CreatedAt, Id, get_engine
from app.kit.problems import Problem
from app.settings import get_settings

Scope = Literal["read", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "operate", "admin")
_INCLUDES: dict[str, set[str]] = {
    "read": {"read"},
    "operate": {"read", "operate"},
    "admin": {"read", "operate", "admin"},
}
PREFIX = "fs_"


class ApiKey(Base):
    """A key; only its hash is kept. After ``expires_at`` or ``revoked_at`` it opens nothing."""

    __tablename__ = "api_keys"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(100))
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    scopes: Mapped[list[str]] = mapped_column(ARRAY(String(20)))
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[dt.datetime | None]
    rotated_at: Mapped[dt.datetime | None]
    revoked_at: Mapped[dt.datetime | None]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, for the log and the audit: it outlives the request's transaction."""

    key_id: uuid.UUID
    name: str


def create_key(
    db: Session, name: str, scope: Scope = "admin", expires_at: dt.datetime | None = None
) -> tuple[ApiKey, str]:
    """Make a key; its text is returned once and cannot be read again."""
    text = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(name=name, digest=_digest(text), scopes=[scope], expires_at=expires_at)
    db.add(key)
    db.flush()
    return key, text


def list_keys(db: Session) -> list[ApiKey]:
    """All keys, the oldest first."""
    return list(db.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.id)))


def revoke_key(db: Session, key_id: uuid.UUID) -> bool:
    """End a key now; False when there is none of that id."""
    key = db.get(ApiKey, key_id)
    if key is None:
        return False
    if key.revoked_at is None:
        key.revoked_at = dt.datetime.now(dt.UTC)
        db.flush()
    return True


def rotate_key(db: Session, key: ApiKey, grace: dt.timedelta) -> tuple[ApiKey, str]:
    """Make a successor with the same name and scope; the old key works until the grace has passed.

    Raises
    ------
    Problem
        409 for a key that is revoked or has a successor already.
    """
    if key.revoked_at is not None or key.rotated_at is not None:
        why = "is revoked" if key.revoked_at is not None else "has a successor already"
        raise Problem(409, "key_ended", f"key {key.id} {why}; make a new key, or rotate the successor")
    key.rotated_at = dt.datetime.now(dt.UTC)
    ends = dt.datetime.now(dt.UTC) + grace
    lifetime = None if key.expires_at is None else key.expires_at - key.created_at
    key.expires_at = ends if key.expires_at is None else min(ends, key.expires_at)
    until = None if lifetime is None else dt.datetime.now(dt.UTC) + lifetime
    return create_key(db, key.name, cast(Scope, key.scopes[0]), until)


_bearer = HTTPBearer(auto_error=False, description="An API key: `faultsense keys create`.")
_Sent = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def require(scope: Scope) -> Callable[..., ApiKey]:
    """Dependency that lets a request through when its key has the scope."""

    def check(request: Request, sent: _Sent) -> ApiKey:
        # A session of its own, over at once: a request that held a connection from here to its end would need
        # a thread to go on, while all threads wait for connections.
        with Session(get_engine(), expire_on_commit=False) as db:
            key = find_key(db, None if sent is None else sent.credentials)
        if key is None:
            raise _unauthorized(request)
        request.state.caller = Caller(key.id, key.name)
        if not any(scope in _INCLUDES[held] for held in key.scopes):
            raise Problem(403, "forbidden", f"this key has the scope {', '.join(key.scopes)}; {scope} is needed")
        return key

    return check


def find_key(db: Session, text: str | None) -> ApiKey | None:
    """The valid key of a text."""
    if text is None:
        return None
    alive = or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.now())
    return db.scalar(select(ApiKey).where(ApiKey.digest == _digest(text), ApiKey.revoked_at.is_(None), alive))


def find_caller(db: Session, request: Request) -> Caller | None:
    """Who sent a request that was refused before its key was looked at."""
    key = find_key(db, bearer_token(request))
    return None if key is None else Caller(key.id, key.name)


def bearer_token(request: Request) -> str | None:
    """The token that a request carries."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else None


def _unauthorized(request: Request) -> Problem:
    """401, or 429 for an address that keeps failing. Valid keys pass from any address: they cannot be guessed,
    and behind a proxy one broken client must not lock out the others.
    """
    address = request.client.host if request.client else "unknown"
    if not failures.hit(get_settings().auth_failures_per_minute, address):
        return Problem(
            429,
            "too_many_failures",
            "too many requests with a wrong API key from this address; mend the key and wait a minute",
            headers={"Retry-After": "60", "WWW-Authenticate": "Bearer"},
        )
    return Problem(
        401,
        "unauthorized",
        "send an API key as 'Authorization: Bearer fs_...'; `faultsense keys create` makes one",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
