"""HTTP of API keys."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import cast

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from app.keys.schemas import KeyIn, KeyOut, NewKeyOut, RotateIn
from app.kit.auth import ApiKey, Scope, create_key, list_keys, require, revoke_key, rotate_key
from app.kit.db import Db
from app.kit.idempotency import Idempotent
from app.kit.problems import not_found, responses
from app.kit.transaction import SECRET_FIELDS, TransactionalRoute

router = APIRouter(
    prefix="/keys", tags=["keys"], route_class=TransactionalRoute, dependencies=[Depends(require("admin"))]
)


@router.post(
    "",
    status_code=201,
    operation_id="createKey",
    dependencies=[Idempotent],
    responses=responses(400, 409, 413),
    openapi_extra={SECRET_FIELDS: ["key"]},
)
def create(wanted: KeyIn, response: Response, db: Db) -> NewKeyOut:
    """Make a key. Its text is in this answer and nowhere else."""
    ends = None if wanted.days is None else dt.datetime.now(dt.UTC) + dt.timedelta(days=wanted.days)
    key, text = create_key(db, wanted.name, wanted.scope, ends)
    response.headers["Location"] = f"/keys/{key.id}"
    return NewKeyOut(**_shown(key).model_dump(), key=text)


@router.get("", operation_id="listKeys", responses=responses())
def list_all(db: Db) -> list[KeyOut]:
    """All keys, the oldest first; revoked ones too."""
    return [_shown(key) for key in list_keys(db)]


@router.get("/{key_id}", operation_id="getKey", responses=responses(404))
def get(key_id: uuid.UUID, db: Db) -> KeyOut:
    """One key."""
    return _shown(_get(db, key_id))


@router.post(
    "/{key_id}/rotate",
    status_code=201,
    operation_id="rotateKey",
    dependencies=[Idempotent],
    responses=responses(400, 404, 409, 413),
    openapi_extra={SECRET_FIELDS: ["key"]},
)
def rotate(key_id: uuid.UUID, response: Response, db: Db, wanted: RotateIn | None = None) -> NewKeyOut:
    """Make a successor with the same name and scope. The old key goes on for the grace: nobody is cut off."""
    old = _get(db, key_id, lock=True)
    key, text = rotate_key(db, old, dt.timedelta(hours=(wanted or RotateIn()).grace_hours))
    response.headers["Location"] = f"/keys/{key.id}"
    return NewKeyOut(**_shown(key).model_dump(), key=text)


@router.delete("/{key_id}", status_code=204, operation_id="revokeKey", responses=responses(404))
def revoke(key_id: uuid.UUID, db: Db) -> None:
    """End a key now. It stays in the list."""
    if not revoke_key(db, key_id):
        raise not_found("key", key_id)


def _get(db: Session, key_id: uuid.UUID, *, lock: bool = False) -> ApiKey:
    key = db.get(ApiKey, key_id, with_for_update=lock)
    if key is None:
        raise not_found("key", key_id)
    return key


def _shown(key: ApiKey) -> KeyOut:
    return KeyOut(
        id=key.id,
        name=key.name,
        scope=cast(Scope, key.scopes[0]),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )
