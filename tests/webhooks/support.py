"""What tests of deliveries share: the types of their fixtures, and how long a delivery waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, text

Register = Callable[..., dict[str, Any]]
Deliver = Callable[..., bool]
Publish = Callable[..., None]
Log = Callable[..., list[dict[str, Any]]]
Act = Callable[[], None]

# However busy the machine, an outcome is recorded so soon after its request.
SLACK = 30.0


def waits(engine: Engine) -> dict[str, float]:
    """Seconds from each delivery's last request to its next, by endpoint."""
    query = """
        SELECT d.webhook_id::text, extract(epoch FROM d.due_at - a.started_at)
        FROM webhook_deliveries d JOIN webhook_attempts a ON a.delivery_id = d.id AND a.number = d.attempts
    """
    with engine.connect() as db:
        return {row[0]: float(row[1]) for row in db.execute(text(query))}


def wait(engine: Engine) -> float:
    (only,) = waits(engine).values()
    return only
