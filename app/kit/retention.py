"""Deleting by age, in batches: short transactions, so that nobody waits for them, and bounded time a run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from sqlalchemy import Engine
from sqlalchemy.orm import Session

logger = logging.getLogger(__name__)


def delete_in_batches(engine: Engine, batches: Sequence[Callable[[Session], int]], *, seconds: float) -> int:
    """Run each batch until it finds nothing, or the time is up.

    Parameters
    ----------
    batches : sequence of callable
        Each deletes a little and returns how much.
    seconds : float
        For all of them.

    Returns
    -------
    int
        How much was deleted in all, as the batches count it.
    """
    ends = time.monotonic() + seconds
    deleted = 0
    for batch in batches:
        while time.monotonic() < ends:
            with Session(engine) as db:
                number = batch(db)
                db.commit()
            deleted += number
            if number == 0:
                break
    if deleted:
        logger.info("retention: deleted %d", deleted)
    return deleted
