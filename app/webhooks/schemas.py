"""Documents of webhook endpoints, deliveries and attempts."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from app.kit.texts import printable
from app.outbound import GuardError, parse_endpoint
from app.webhooks.signing import key_of

EventType = Literal["job.completed", "job.failed"]
ALL_EVENTS: tuple[EventType, ...] = ("job.completed", "job.failed")
DeliveryState = Literal["pending", "delivered", "exhausted", "disabled"]


def _guardable_url(value: str) -> str:
    try:
        return parse_endpoint(value)
    except GuardError as error:
        raise ValueError(str(error)) from None


def _usable_secret(value: SecretStr) -> SecretStr:
    key_of(value.get_secret_value())
    return value


def _in_order(value: list[EventType]) -> list[EventType]:
    return [event for event in ALL_EVENTS if event in value]


def _no_default(schema: dict[str, Any]) -> None:
    """Left out means left alone: the default of a field that may be left out is no value of it."""
    schema.pop("default", None)


WebhookUrl = Annotated[
    str,
    Field(
        max_length=2000,
        description="Where events are posted to; no query. Public addresses need https://.",
        examples=["https://hooks.example.com/faultsense"],
    ),
    AfterValidator(_guardable_url),
]
WebhookSecret = Annotated[
    SecretStr,
    Field(
        max_length=100, description="`whsec_` and 24 to 64 random bytes in base64; signs every event. Write-only."
    ),
    AfterValidator(_usable_secret),
]
Events = Annotated[list[EventType], Field(min_length=1, max_length=10), AfterValidator(_in_order)]
Description = Annotated[str, Field(max_length=200), AfterValidator(printable)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _with_example(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


class WebhookIn(_Strict):
    """An endpoint to register."""

    model_config = _with_example(url="https://hooks.example.com/faultsense", description="on call")

    url: WebhookUrl
    events: Events = Field(
        default=list(ALL_EVENTS),
        description="`job.completed`: the job ended with a verdict; `job.failed`: it ended without one.",
    )
    description: Description = ""
    enabled: bool = True
    secret: WebhookSecret | None = Field(
        default=None, description="Default: a fresh one, shown in this answer only."
    )


class WebhookChange(_Strict):
    """What to change; what is left out stays."""

    model_config = _with_example(events=["job.completed"])

    url: WebhookUrl = Field(default="", json_schema_extra=_no_default)
    events: Events = Field(default=[], json_schema_extra=_no_default)
    description: Description = Field(default="", json_schema_extra=_no_default)
    enabled: bool = Field(
        default=True,
        description="False ends what is pending; true takes an endpoint back that a 410 disabled.",
        json_schema_extra=_no_default,
    )


class SecretRotation(_Strict):
    """How to rotate; an empty object makes a fresh secret."""

    model_config = _with_example()

    secret: WebhookSecret | None = Field(
        default=None, description="Default: a fresh one, shown in this answer only."
    )


class WebhookOut(BaseModel):
    """An endpoint; its secret is never shown again."""

    id: uuid.UUID
    url: str
    events: list[EventType]
    description: str
    enabled: bool
    disabled_reason: str | None = Field(description="Why it is disabled; null when it is not.")
    disabled_at: dt.datetime | None
    signed: bool = Field(description="False only for a request's `webhook_url` without `webhook_secret`.")
    old_secret_until: dt.datetime | None = Field(description="Until then the secret before signs, too.")
    job_id: uuid.UUID | None = Field(description="The only job whose events it gets (`webhook_url`); null: all.")
    created_at: dt.datetime
    links: dict[str, str]


class WebhookWithSecret(WebhookOut):
    """An endpoint and, this once, its secret."""

    secret: str | None = Field(description="Null where an `Idempotency-Key` repeats the answer.")


class AttemptOut(BaseModel):
    """One request. All null: on its way, or sent by a worker that ended before it could record the outcome."""

    number: int
    started_at: dt.datetime
    duration_ms: float | None
    status: int | None = Field(description="Of the answer; null without one.")
    error: str | None = Field(description="Why it was no success; the receiver's own words are never kept.")


class DeliveryOut(BaseModel):
    """An event on its way to an endpoint."""

    id: uuid.UUID
    event_id: str = Field(description="The `webhook-id` of every try.")
    type: str
    job_id: uuid.UUID | None
    state: DeliveryState = Field(
        description="`exhausted`: no try is left; `disabled`: the endpoint was disabled before it was delivered."
    )
    attempts: list[AttemptOut] = Field(description="The last 30, the oldest first.")
    next_attempt_at: dt.datetime | None = Field(description="Null when there is none to come.")
    created_at: dt.datetime
    finished_at: dt.datetime | None
    links: dict[str, str]
