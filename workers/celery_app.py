"""The Celery application.

PostgreSQL holds the jobs and their leases; Redis only carries hints. So there is no result backend, no ETA and
no countdown, and a lost message is no lost job.
"""

from __future__ import annotations

import multiprocessing

from celery import Celery
from celery.signals import setup_logging, worker_shutting_down

from app.kit import logs
from app.kit.broker import QUEUE, ROUTES
from app.settings import get_settings

# Set in a worker that was told to stop; its children, forked later, share it.
stopping = multiprocessing.get_context("fork").Event()


@setup_logging.connect
def _log(**_: object) -> None:
    logs.configure(get_settings())


@worker_shutting_down.connect
def _stop_slices(**_: object) -> None:
    """Let the children give their jobs back after the probe that is under way."""
    stopping.set()


def make_celery() -> Celery:
    """The application with its settings; see the Celery paragraph of docs/architecture.md."""
    settings = get_settings()
    celery = Celery("faultsense", broker=settings.redis_url.get_secret_value(), include=["workers.tasks"])
    celery.conf.update(
        broker_transport="workers.transport:Transport",
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_routes=ROUTES,
        task_time_limit=settings.hard_limit_s,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": settings.visibility_timeout_s,
            # kombu looks for unacknowledged messages only every ~100 s with its defaults.
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "health_check_interval": 10,
        },
        timezone="UTC",
    )
    return celery


celery_app = make_celery()
