"""API key documents."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.kit.auth import Scope
from app.kit.texts import plain_name

MAX_DAYS = 3650


class KeyIn(BaseModel):
    """A key to make."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"name": "incident bot", "scope": "operate"}]}
    )

    name: Annotated[
        str, Field(min_length=1, max_length=100, description="What it is for."), AfterValidator(plain_name)
    ]
    scope: Scope = Field(description="`read`, `operate` (includes read) or `admin` (includes both).")
    days: int | None = Field(default=None, ge=1, le=MAX_DAYS, description="How long it is valid; null: for good.")


class RotateIn(BaseModel):
    """How to rotate a key."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"grace_hours": 24}]})

    grace_hours: float = Field(
        default=24.0, ge=0, le=24 * 90, allow_inf_nan=False, description="The old key still works for so long."
    )


class KeyOut(BaseModel):
    """A key; its text is not known any more."""

    id: uuid.UUID
    name: str
    scope: Scope
    created_at: dt.datetime
    expires_at: dt.datetime | None
    revoked_at: dt.datetime | None


class NewKeyOut(KeyOut):
    """A key that was just made."""

    key: str | None = Field(
        description="The key's text: shown once, and null when the answer is repeated by its Idempotency-Key."
    )
