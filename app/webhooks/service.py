"""Rules of webhooks: what is registered, who is told of an event, how secrets change."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import httpx
from pydantic import SecretStr
from sqlalchemy.orm import Session

from app.kit import broker, secrets
from app.kit.problems import Problem, invalid, not_found
from app.outbound import GuardError, PublicGuard, parse_url
from app.settings import get_settings
from app.webhooks import repository
from app.webhooks.models import Webhook, WebhookEvent
from app.webhooks.repository import Delivery
from app.webhooks.schemas import ALL_EVENTS, EventType, WebhookChange, WebhookIn
from app.webhooks.signing import new_secret

TEST_EVENT = "webhook.test"
BY_OPERATOR = "disabled by an operator"


def guard() -> PublicGuard:
    """The guard of receivers' addresses."""
    return PublicGuard(get_settings().webhook_networks)


def check_url(field: str, url: str) -> None:
    """Refuse forbidden literal addresses now; names are checked when they are connected to.

    Raises
    ------
    Problem
        422 naming the field.
    """
    checked = guard()
    try:
        httpx.Request("POST", url)  # refuses a host that the client could not call
        target = parse_url(url)
        checked.check_literal(target)
    except GuardError as error:
        raise invalid(field, str(error)) from None
    except (httpx.InvalidURL, UnicodeError):
        raise invalid(field, "the host is malformed") from None
    if not target.tls and not checked.networks:
        raise invalid(field, "must begin with https://, since no private network is allowed for webhooks")


def create(db: Session, wanted: WebhookIn) -> tuple[Webhook, str]:
    """Register an endpoint; its secret is returned once.

    Raises
    ------
    Problem
        422 for a URL that the guard refuses, or when the secret cannot be encrypted.
    """
    check_url("body.url", wanted.url)
    secret, kept = _secret(wanted.secret)
    hook = Webhook(
        url=wanted.url,
        events=list(wanted.events),
        description=wanted.description,
        enabled=wanted.enabled,
        disabled_reason=None if wanted.enabled else BY_OPERATOR,
        secret=kept,
    )
    db.add(hook)
    db.flush()
    return hook, secret


def create_for_job(
    db: Session, webhook_id: uuid.UUID, job_id: uuid.UUID, url: str, secret: SecretStr | None
) -> None:
    """Register the URL of one job's request; without a secret its events are not signed.

    Raises
    ------
    Problem
        422 when the secret cannot be encrypted.
    """
    kept = None if secret is None else secrets.encrypt_field("body.webhook_secret", secret.get_secret_value())
    hook = Webhook(
        id=webhook_id,
        job_id=job_id,
        url=url,
        events=list(ALL_EVENTS),
        description="webhook_url of a localize request",
        enabled=True,
        secret=kept,
    )
    db.add(hook)
    db.flush()


def get(db: Session, webhook_id: uuid.UUID, *, lock: bool = False) -> Webhook:
    """An endpoint.

    Raises
    ------
    Problem
        404.
    """
    hook = repository.get(db, webhook_id, lock=lock)
    if hook is None:
        raise not_found("webhook", webhook_id)
    return hook


def change(db: Session, hook: Webhook, wanted: WebhookChange) -> None:
    """Change what was sent. Disabling ends pending deliveries; enabling clears why it was disabled.

    Raises
    ------
    Problem
        422 for a URL that the guard refuses.
    """
    values = wanted.model_dump(exclude_unset=True)
    if "url" in values:
        check_url("body.url", wanted.url)
    if values.get("enabled") is False and hook.enabled:
        hook.disabled_at, hook.disabled_reason = repository.now(db), BY_OPERATOR
        repository.give_up_pending(db, hook.id)
    elif values.get("enabled"):
        hook.disabled_at = hook.disabled_reason = None
    for name, value in values.items():
        setattr(hook, name, value)
    db.flush()


def delete(db: Session, hook: Webhook) -> None:
    """Forget an endpoint with its deliveries."""
    db.delete(hook)
    db.flush()


def rotate_secret(db: Session, hook: Webhook, wanted: SecretStr | None) -> str:
    """Replace the secret; the one before signs beside it for the grace of the settings.

    Raises
    ------
    Problem
        422 when the secret cannot be encrypted.
    """
    secret, kept = _secret(wanted)
    grace = dt.timedelta(seconds=get_settings().webhook_rotation_s)
    hook.old_secret = hook.secret
    hook.old_secret_until = None if hook.secret is None else repository.now(db) + grace
    hook.secret = kept
    db.flush()
    return secret


def publish(db: Session, type_: EventType, subject: uuid.UUID, data: dict[str, Any], at: dt.datetime) -> None:
    """Put an event into the outbox, in the caller's transaction: it happens exactly when the change does.

    Parameters
    ----------
    db : Session
        Commits together with what the event tells of; a worker is told after that.
    type_ : str
        What happened.
    subject : UUID
        Whom it is about. Events of one subject reach an endpoint in the order in which they were published.
    data : dict
        The document, as JSON.
    at : datetime
        When it happened.
    """
    webhook_ids = repository.subscribed(db, type_, subject)
    if webhook_ids:
        delay_s = get_settings().webhook_schedule_s[0]
        repository.add_event(db, _event(type_, data, at), webhook_ids, subject, delay_s)
        broker.hint_after_commit(db, broker.DELIVER)


def test(db: Session, hook: Webhook) -> Delivery:
    """Queue a `webhook.test` event for one endpoint.

    Raises
    ------
    Problem
        409 when it is disabled.
    """
    _refuse_if_disabled(hook)
    event = _event(TEST_EVENT, {"webhook_id": str(hook.id)}, repository.now(db))
    (row,) = repository.add_event(db, event, [hook.id], None, 0)
    broker.hint_after_commit(db, broker.DELIVER)
    return delivery(db, hook.id, row.id)


def delivery(db: Session, webhook_id: uuid.UUID, delivery_id: uuid.UUID) -> Delivery:
    """A delivery of an endpoint.

    Raises
    ------
    Problem
        404.
    """
    found = repository.delivery(db, webhook_id, delivery_id)
    if found is None:
        raise not_found("delivery", delivery_id)
    return found


def replay(db: Session, hook: Webhook, delivery_id: uuid.UUID) -> Delivery:
    """Send a delivery again, now and under the same id, with its whole schedule before it.

    Raises
    ------
    Problem
        404, or 409 when the endpoint is disabled.
    """
    delivery(db, hook.id, delivery_id)
    _refuse_if_disabled(hook)
    repository.replay(db, delivery_id)
    broker.hint_after_commit(db, broker.DELIVER)
    return delivery(db, hook.id, delivery_id)


def _event(type_: str, data: dict[str, Any], at: dt.datetime) -> WebhookEvent:
    document = {"type": type_, "timestamp": at.isoformat(), "data": data}
    body = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return WebhookEvent(id=f"evt_{uuid.uuid4().hex}", type=type_, body=body)


def _refuse_if_disabled(hook: Webhook) -> None:
    if not hook.enabled:
        raise Problem(
            409, "webhook_disabled", f"the webhook is disabled ({hook.disabled_reason}); PATCH it to enabled first"
        )


def _secret(wanted: SecretStr | None) -> tuple[str, bytes]:
    secret = new_secret() if wanted is None else wanted.get_secret_value()
    return secret, secrets.encrypt_field("body.secret", secret)
