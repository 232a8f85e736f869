"""The Celery application.

PostgreSQL holds the jobs and their leases; Redis only carries hints. So there is no result backend, no ETA and
no countdown, and a lost message is no lost job.
"""

from __future__ import annotations

from celery import Celery
from celery.signals import after_task_publish, beat_init, setup_logging

from app.kit import logs
from app.kit.broker import DELIVER, QUEUE, RECOVER, RETAIN, ROUTES, TICK_FILE
from app.settings import get_settings

HARD_LIMIT_S = 120
VISIBILITY_TIMEOUT_S = 300
RETAIN_EVERY_S = 60.0


@setup_logging.connect
def _log(**_: object) -> None:
    logs.configure(get_settings())


@beat_init.connect
def _leave_signs_of_life(**_: object) -> None:
    """Let `faultsense check tick` see that the tick sends."""
    after_task_publish.connect(_touch, weak=False)


def _touch(**_: object) -> None:
    TICK_FILE.touch()


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
        task_time_limit=HARD_LIMIT_S,
        worker_prefetch_multiplier=1,
        worker_soft_shutdown_timeout=HARD_LIMIT_S / 12,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            # kombu looks for unacknowledged messages only every ~100 s with its defaults.
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "health_check_interval": 10,
        },
        beat_schedule={
            "recover": {
                "task": RECOVER,
                "schedule": settings.sweep_s,
                # A sweep that nobody ran in time is stale: the next one does the same.
                "options": {"expires": max(1.0, settings.sweep_s)},
            },
            "retain": {"task": RETAIN, "schedule": RETAIN_EVERY_S, "options": {"expires": RETAIN_EVERY_S}},
            "deliver": {
                "task": DELIVER,
                "schedule": settings.webhook_tick_s,
                "options": {"expires": max(1.0, settings.webhook_tick_s)},
            },
        },
        timezone="UTC",
    )
    return celery


celery_app = make_celery()
