"""Hints to the workers. PostgreSQL is the truth: a hint that is lost is sent again by the recovery sweep."""

from __future__ import annotations

import logging
from functools import lru_cache

from celery import Celery
from kombu.exceptions import OperationalError

from app.settings import get_settings

logger = logging.getLogger(__name__)

LOCALIZE = "faultsense.localize"
RECOVER = "faultsense.recover"
RETAIN = "faultsense.retain"
QUEUE = "faultsense"


@lru_cache(maxsize=4)
def _producer(url: str) -> Celery:
    app = Celery("faultsense-producer", broker=url)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        broker_connection_timeout=2,
        broker_transport_options={"socket_timeout": 2, "socket_connect_timeout": 2},
    )
    return app


def hint(task: str, *args: str) -> bool:
    """Send a task by name; False when the broker cannot be reached.

    Arguments are ids only: what a message says may be old when it is read.
    """
    app = _producer(get_settings().redis_url.get_secret_value())
    try:
        app.send_task(task, args=list(args), retry=False)
    except (OperationalError, OSError) as error:
        logger.warning("the broker cannot be reached (%s); the recovery sweep will send it", type(error).__name__)
        return False
    return True
