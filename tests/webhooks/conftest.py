"""A receiver process, an admin's client, and deliveries that run when a test says so."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from app.settings import Settings
from app.webhooks import delivery, service

ROOT = Path(__file__).parents[2]
SUBJECT = uuid.UUID(int=1)


@dataclass(frozen=True)
class Hook:
    """One URL of the receiver."""

    base: str
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def url(self) -> str:
        return f"{self.base}/hook/{self.name}"

    def answers(self, *answers: dict[str, Any]) -> None:
        self._control({"answers": list(answers)})

    def knows(self, *secrets: str) -> None:
        self._control({"secrets": list(secrets)})

    def _control(self, wanted: dict[str, Any]) -> None:
        httpx.put(f"{self.base}/control/{self.name}", json=wanted, trust_env=False).raise_for_status()

    @property
    def received(self) -> list[dict[str, Any]]:
        got: list[dict[str, Any]] = httpx.get(f"{self.base}/control/{self.name}", trust_env=False).json()
        return got

    @property
    def ids(self) -> list[str]:
        return [one["headers"]["webhook-id"] for one in self.received]


@pytest.fixture(scope="session")
def receiver() -> Iterator[str]:
    """Base URL of the receiver process."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.webhooks.receiver"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@pytest.fixture
def hook(receiver: str) -> Hook:
    return Hook(receiver)


@pytest.fixture
def admin(client: TestClient, keys: dict[str, str]) -> TestClient:
    client.headers["Authorization"] = f"Bearer {keys['admin']}"
    return client


@pytest.fixture
def register(admin: TestClient) -> Callable[..., dict[str, Any]]:
    """Register a hook; what it answers with has the secret, and the hook knows it."""

    def run(hook: Hook, **more: Any) -> dict[str, Any]:
        made = admin.post("/webhooks", json={"url": hook.url, **more})
        assert made.status_code == 201, made.text
        document: dict[str, Any] = made.json()
        hook.knows(document["secret"])
        return document

    return run


@pytest.fixture
def deliver(engine: Engine, settings: Settings) -> Callable[..., bool]:
    """Deliver one batch of what is due, as a worker's task does."""

    def run(**changes: Any) -> bool:
        return delivery.deliver(engine, settings.model_copy(update=changes))

    return run


@pytest.fixture
def due_now(engine: Engine) -> Callable[[], None]:
    """Bring the next try of everything forward, and let every lease run out."""

    def run() -> None:
        with engine.begin() as db:
            past = "now() - interval '1 ms'"
            db.execute(text(f"UPDATE webhook_deliveries SET due_at = {past}"))
            db.execute(text(f"UPDATE webhook_deliveries SET lease_until = {past} WHERE lease_until IS NOT NULL"))

    return run


@pytest.fixture
def publish(engine: Engine) -> Callable[..., None]:
    """Publish events of one subject, each in a transaction of its own, as a job that ends does."""

    def run(*numbers: int, type_: Any = "job.completed", subject: uuid.UUID = SUBJECT) -> None:
        for number in numbers:
            with Session(engine) as db:
                service.publish(db, type_, subject, {"number": number}, service.repository.now(db))
                db.commit()

    return run


@pytest.fixture
def log(admin: TestClient) -> Callable[..., list[dict[str, Any]]]:
    """The deliveries of an endpoint, the oldest first."""

    def run(document: dict[str, Any], **query: Any) -> list[dict[str, Any]]:
        answer = admin.get(document["links"]["deliveries"], params=query)
        assert answer.status_code == 200, answer.text
        return list(reversed(answer.json()["items"]))

    return run
