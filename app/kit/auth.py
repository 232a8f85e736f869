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
from typing import Annotated, Literal

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import ARRAY, LargeBinary, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.kit.db import Base, CreatedAt, Db, Id
from app.kit.problems import Problem

Scope = Literal["read", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "operate", "admin")
_INCLUDES: dict[str, set[str]] = {
    "read": {"read"},
    "operate": {"read", "operate"},
    "admin": {"read", "operate", "admin"},
}
PREFIX = "fs_"


class ApiKey(Base):
    """A key; only its hash is kept."""

    __tablename__ = "api_keys"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(100))
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    scopes: Mapped[list[str]] = mapped_column(ARRAY(String(20)))
    created_at: Mapped[CreatedAt]
    revoked_at: Mapped[dt.datetime | None]


def create_key(db: Session, name: str, scope: Scope = "admin") -> tuple[ApiKey, str]:
    """Make a key; its text is returned once and cannot be read again."""
    text = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(name=name, digest=_digest(text), scopes=[scope])
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


_bearer = HTTPBearer(auto_error=False, description="An API key: `faultsense keys create`.")


def require(scope: Scope) -> Callable[..., ApiKey]:
    """Dependency that lets a request through when its key has the scope."""

    def check(db: Db, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> ApiKey:
        key = None if sent is None else _find(db, sent.credentials)
        if key is None:
            raise Problem(
                401,
                "unauthorized",
                "send an API key as 'Authorization: Bearer fs_...'; `faultsense keys create` makes one",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not any(scope in _INCLUDES[held] for held in key.scopes):
            raise Problem(403, "forbidden", f"this key has the scope {', '.join(key.scopes)}; {scope} is needed")
        return key

    return check


def _find(db: Session, text: str) -> ApiKey | None:
    return db.scalar(select(ApiKey).where(ApiKey.digest == _digest(text), ApiKey.revoked_at.is_(None)))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
