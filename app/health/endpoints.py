"""HTTP of health checks; they need no key."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, TimeoutError

from app.kit.db import get_engine
from app.settings import get_settings

router = APIRouter(tags=["health"])


class Alive(BaseModel):
    """The process answers."""

    status: str = "ok"


class Ready(BaseModel):
    """What the service depends on."""

    ready: bool
    checks: dict[str, str] = Field(description="`ok`, or what is wrong, by dependency.")


@router.get("/livez", operation_id="livez")
def livez() -> Alive:
    """Whether the process answers."""
    return Alive()


@router.get(
    "/readyz",
    operation_id="readyz",
    responses={503: {"model": Ready, "description": "A dependency is missing"}},
)
def readyz(response: Response) -> Ready:
    """Whether the database (with its tables) and the broker can be reached."""
    checks = {"database": _database(), "broker": _broker()}
    ready = all(state == "ok" for state in checks.values())
    response.status_code = 200 if ready else 503
    return Ready(ready=ready, checks=checks)


def _database() -> str:
    try:
        with get_engine().connect() as connection:
            connection.execute(text("SELECT 1 FROM alembic_version"))
    except (DBAPIError, TimeoutError) as error:
        missing = "UndefinedTable" in type(getattr(error, "orig", None)).__name__
        return "tables are missing; run `faultsense migrate`" if missing else "cannot be reached"
    return "ok"


def _broker() -> str:
    url = get_settings().redis_url.get_secret_value()
    try:
        with Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as broker:
            broker.ping()
    except RedisError:
        return "cannot be reached; jobs wait until it can"
    return "ok"
