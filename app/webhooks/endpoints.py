"""HTTP of webhooks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from app.kit import paging
from app.kit.auth import require
from app.kit.db import Db
from app.kit.idempotency import Idempotent
from app.kit.paging import Page
from app.kit.problems import responses
from app.kit.transaction import SECRET_FIELDS, TransactionalRoute
from app.webhooks import repository, service
from app.webhooks.models import Webhook
from app.webhooks.repository import Delivery
from app.webhooks.schemas import (
    AttemptOut,
    DeliveryOut,
    DeliveryState,
    SecretRotation,
    WebhookChange,
    WebhookIn,
    WebhookOut,
    WebhookWithSecret,
)

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=TransactionalRoute)
READ = [Depends(require("read"))]
OPERATE = [Depends(require("operate")), Idempotent]
ADMIN = [Depends(require("admin"))]
ATTEMPTS_SHOWN = 30


@router.post(
    "",
    status_code=201,
    operation_id="createWebhook",
    dependencies=[*ADMIN, Idempotent],
    responses=responses(400, 409, 413),
    openapi_extra={SECRET_FIELDS: ["secret"]},
)
def create(wanted: WebhookIn, response: Response, db: Db) -> WebhookWithSecret:
    """Register a URL that gets signed events (Standard Webhooks). The secret is shown in this answer only."""
    hook, secret = service.create(db, wanted)
    response.headers["Location"] = f"/webhooks/{hook.id}"
    return _with_secret(hook, secret)


@router.get("", operation_id="listWebhooks", dependencies=READ, responses=responses())
def list_webhooks(
    db: Db, limit: paging.Limit = 50, cursor: paging.Cursor = None, job_id: uuid.UUID | None = None
) -> Page[WebhookOut]:
    """Registered endpoints, the newest first; with `job_id` the one that the job's request named."""
    found = repository.page(db, limit=limit, cursor=cursor, job_id=job_id)
    rows, following = paging.cut(found, limit, lambda hook: paging.encode(hook.created_at, hook.id))
    return Page[WebhookOut](items=[_shown(hook) for hook in rows], next_cursor=following)


@router.get("/{webhook_id}", operation_id="getWebhook", dependencies=READ, responses=responses(404))
def get(webhook_id: uuid.UUID, db: Db) -> WebhookOut:
    """One endpoint."""
    return _shown(service.get(db, webhook_id))


@router.patch(
    "/{webhook_id}", operation_id="changeWebhook", dependencies=ADMIN, responses=responses(400, 404, 413)
)
def change(webhook_id: uuid.UUID, wanted: WebhookChange, db: Db) -> WebhookOut:
    """Change an endpoint, disable it, or enable it again."""
    hook = service.get(db, webhook_id, lock=True)
    service.change(db, hook, wanted)
    return _shown(hook)


@router.delete(
    "/{webhook_id}",
    status_code=204,
    operation_id="deleteWebhook",
    dependencies=ADMIN,
    responses=responses(404),
)
def delete(webhook_id: uuid.UUID, db: Db) -> None:
    """Forget an endpoint and its deliveries."""
    service.delete(db, service.get(db, webhook_id, lock=True))


@router.post(
    "/{webhook_id}/rotate-secret",
    operation_id="rotateWebhookSecret",
    dependencies=[*ADMIN, Idempotent],
    responses=responses(400, 404, 409, 413),
    openapi_extra={SECRET_FIELDS: ["secret"]},
)
def rotate_secret(webhook_id: uuid.UUID, db: Db, wanted: SecretRotation | None = None) -> WebhookWithSecret:
    """Replace the secret. The one before signs beside it until `old_secret_until`, a day by default."""
    hook = service.get(db, webhook_id, lock=True)
    secret = service.rotate_secret(db, hook, (wanted or SecretRotation()).secret)
    return _with_secret(hook, secret)


@router.post(
    "/{webhook_id}/test",
    status_code=202,
    operation_id="testWebhook",
    dependencies=OPERATE,
    responses=responses(404, 409),
)
def test(webhook_id: uuid.UUID, response: Response, db: Db) -> DeliveryOut:
    """Send a `webhook.test` event; the Location has its outcome."""
    sent = _one(db, service.test(db, service.get(db, webhook_id, lock=True)))
    response.headers["Location"] = sent.links["self"]
    response.headers["Retry-After"] = "1"
    return sent


@router.get(
    "/{webhook_id}/deliveries",
    operation_id="listWebhookDeliveries",
    dependencies=READ,
    responses=responses(404),
)
def deliveries(
    webhook_id: uuid.UUID,
    db: Db,
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
    state: DeliveryState | None = None,
) -> Page[DeliveryOut]:
    """The delivery log, the newest first."""
    service.get(db, webhook_id)
    found = repository.deliveries(db, webhook_id, limit=limit, cursor=cursor, state=state)
    rows, following = paging.cut(found, limit, lambda one: paging.encode(one[0].created_at, one[0].id))
    return Page[DeliveryOut](items=_logged(db, rows), next_cursor=following)


@router.get(
    "/{webhook_id}/deliveries/{delivery_id}",
    operation_id="getWebhookDelivery",
    dependencies=READ,
    responses=responses(404),
)
def delivery(webhook_id: uuid.UUID, delivery_id: uuid.UUID, db: Db) -> DeliveryOut:
    """One delivery with its attempts."""
    return _one(db, service.delivery(db, webhook_id, delivery_id))


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/replay",
    status_code=202,
    operation_id="replayWebhookDelivery",
    dependencies=OPERATE,
    responses=responses(404, 409),
)
def replay(webhook_id: uuid.UUID, delivery_id: uuid.UUID, response: Response, db: Db) -> DeliveryOut:
    """Send an event again, now and under the same `webhook-id`, whatever became of it before."""
    sent = _one(db, service.replay(db, service.get(db, webhook_id, lock=True), delivery_id))
    response.headers["Location"] = sent.links["self"]
    response.headers["Retry-After"] = "1"
    return sent


def _shown(hook: Webhook) -> WebhookOut:
    return WebhookOut.model_validate(_document(hook))


def _with_secret(hook: Webhook, secret: str) -> WebhookWithSecret:
    return WebhookWithSecret.model_validate({**_document(hook), "secret": secret})


def _document(hook: Webhook) -> dict[str, object]:
    here = f"/webhooks/{hook.id}"
    names = ("id", "url", "events", "description", "enabled", "disabled_reason", "disabled_at", "job_id")
    return {
        **{name: getattr(hook, name) for name in names},
        "signed": hook.secret is not None,
        "old_secret_until": hook.old_secret_until,
        "created_at": hook.created_at,
        "links": {"self": here, "deliveries": f"{here}/deliveries", "test": f"{here}/test"},
    }


def _one(db: Session, found: Delivery) -> DeliveryOut:
    return _logged(db, [found])[0]


def _logged(db: Session, found: Sequence[Delivery]) -> list[DeliveryOut]:
    attempts = repository.attempts(db, [row.id for row, _ in found], ATTEMPTS_SHOWN)
    return [
        DeliveryOut(
            id=row.id,
            event_id=row.event_id,
            type=type_,
            job_id=row.subject,
            state=row.state,
            attempts=[AttemptOut.model_validate(a, from_attributes=True) for a in attempts[row.id]],
            next_attempt_at=row.due_at if row.state == "pending" else None,
            created_at=row.created_at,
            finished_at=row.finished_at,
            links={
                "self": (here := f"/webhooks/{row.webhook_id}/deliveries/{row.id}"),
                "replay": f"{here}/replay",
                "webhook": f"/webhooks/{row.webhook_id}",
            },
        )
        for row, type_ in found
    ]
