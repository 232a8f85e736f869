"""Delivers: claim what is due, send it all at once, record each outcome.

A worker that dies between sending and recording leaves a lease that runs out; the event is then sent again, under
the same id.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import httpx
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app import __version__
from app.kit import secrets
from app.outbound import guarded_client
from app.settings import Settings
from app.webhooks import outbox, repository
from app.webhooks.outbox import Claimed
from app.webhooks.sender import Outcome, send
from app.webhooks.service import guard
from app.webhooks.signing import key_of, signed_headers

logger = logging.getLogger(__name__)

# Longer than any request: recording may have to wait for the database.
LEASE_BEYOND_TIMEOUT_S = 30.0
RECORDERS = 4


def deliver(engine: Engine, settings: Settings) -> bool:
    """Send one batch of what is due; takes no longer than one request may.

    Returns
    -------
    bool
        Whether anything was sent, so that there may be more to do.

    Raises
    ------
    sqlalchemy.exc.OperationalError
        When PostgreSQL is away before anything was sent.
    """
    with Session(engine) as db:
        repository.forget_old_secrets(db)
        claimed = outbox.claim(
            db, in_flight=settings.webhook_in_flight, lease_s=settings.webhook_timeout_s + LEASE_BEYOND_TIMEOUT_S
        )
        db.commit()
    if claimed:
        asyncio.run(_send_all(engine, settings, claimed))
    return bool(claimed)


async def _send_all(engine: Engine, settings: Settings, claimed: list[Claimed]) -> None:
    # A look-up that hangs holds its thread: each delivery has one of its own, and so has recording.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(claimed)))
    with ThreadPoolExecutor(RECORDERS) as recorders:
        async with guarded_client(guard(), timeout_s=settings.webhook_timeout_s) as client:

            async def one(taken: Claimed) -> None:
                outcome = await _send(client, settings, taken)
                await asyncio.get_running_loop().run_in_executor(
                    recorders, _record, engine, settings, taken, outcome
                )

            ended = await asyncio.gather(*map(one, claimed), return_exceptions=True)
    for taken, error in zip(claimed, ended, strict=True):
        if error is not None:  # a bug; it must not cost the other deliveries their outcomes
            logger.error("delivery %s: unexpected error", taken.id, exc_info=error)


async def _send(client: httpx.AsyncClient, settings: Settings, taken: Claimed) -> Outcome:
    body = taken.body.encode()
    try:
        keys = [key_of(secrets.decrypt(kept)) for kept in (taken.secret, taken.old_secret) if kept is not None]
    except secrets.SecretsError as error:
        return Outcome(None, f"not sent: {error}"[:300])
    headers = {
        **signed_headers(taken.event_id, taken.sent_at, body, keys),
        "User-Agent": f"FaultSense/{__version__}",
    }
    return await send(client, taken.url, body, headers, timeout_s=settings.webhook_timeout_s)


def _record(engine: Engine, settings: Settings, taken: Claimed, outcome: Outcome) -> None:
    try:
        with Session(engine) as db:
            outbox.record(db, taken, outcome, settings.webhook_schedule_s)
            db.commit()
    except OperationalError:
        # Unknown to the database, so sent again when the lease runs out: receivers know it by its id.
        logger.warning("delivery %s: the outcome cannot be recorded; it will be sent again", taken.id)
        return
    if outcome.error is not None:
        logger.info("delivery %s attempt %d: %s", taken.id, taken.attempt, outcome.error)
