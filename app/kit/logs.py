"""Logs: one JSON object a line (or plain text), each line with the request, job and replica it belongs to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pythonjsonlogger.json import JsonFormatter

from app.settings import Settings

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
JOB_ID: ContextVar[str | None] = ContextVar("job_id", default=None)
REPLICA_ID: ContextVar[str | None] = ContextVar("replica_id", default=None)
_IDS = {"request_id": REQUEST_ID, "job_id": JOB_ID, "replica_id": REPLICA_ID}
_CHATTY = ("httpx", "httpcore", "celery.app.trace", "celery.worker.strategy", "alembic")


class _Ids(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        for name, variable in _IDS.items():
            if not hasattr(record, name) and (value := variable.get()) is not None:
                setattr(record, name, value)
        return True


class _Text(logging.Formatter):
    """For people: ids at the end of the line."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        ids = [f"{name}={value}" for name in _IDS if (value := getattr(record, name, None)) is not None]
        return f"{line} [{' '.join(ids)}]" if ids else line


def configure(settings: Settings) -> None:
    """Send the process's logs to standard error in the wanted form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Ids())
    handler.setFormatter(_json() if settings.log_format == "json" else _text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for name in ("uvicorn", "uvicorn.error", "celery"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def about_job(job_id: object, replica_id: object) -> Iterator[None]:
    """Mark the lines that are logged meanwhile."""
    tokens = JOB_ID.set(str(job_id)), REPLICA_ID.set(str(replica_id))
    try:
        yield
    finally:
        JOB_ID.reset(tokens[0])
        REPLICA_ID.reset(tokens[1])


def _json() -> logging.Formatter:
    return JsonFormatter(
        "%(asctime)s %(levelname)s %(name)s %(processName)s %(message)s",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger", "processName": "process"},
        datefmt="%Y-%m-%dT%H:%M:%S%z",
    )


def _text() -> logging.Formatter:
    return _Text("%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s")
