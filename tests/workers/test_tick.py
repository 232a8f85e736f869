"""The tick works without any worker, survives a missing database, and ends when it is told to."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.kit import broker
from app.settings import Settings
from tests.conftest import replica_document
from workers import tick


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    sent: list[tuple[str, ...]] = []
    monkeypatch.setattr(broker, "hint", lambda task, *args, **_: sent.append((task, *args)))
    yield sent


def run_until(engine: Engine, settings: Settings, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tick for some sweeps, in this thread."""
    over = threading.Event()
    swept = 0
    sweep = tick.sweep

    def counted(*arguments: object) -> None:
        nonlocal swept
        swept += 1
        if swept == rounds:
            over.set()
        sweep(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tick, "sweep", counted)
    tick.run(engine, settings.model_copy(update={"sweep_s": 0.01}), over)


def test_lost_jobs_are_told_of_while_no_worker_is_free(
    client: TestClient,
    emulated: EmulatedReplica,
    engine: Engine,
    db: Session,
    settings: Settings,
    hints: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    job = client.post(f"/replicas/{replica}/localize", json={}).json()["id"]
    db.execute(text("UPDATE jobs SET state = 'running', lease_until = now() - interval '1 s', hinted_at = NULL"))
    db.commit()
    hints.clear()
    run_until(engine, settings, 4, monkeypatch)
    assert hints.count((broker.LOCALIZE, job)) == 1, "a worker that is busy is not told again at every sweep"
    assert (broker.DELIVER,) in hints
    counted = db.execute(text("SELECT value FROM counters WHERE name = 'sweeps_total'")).scalar_one()
    assert counted == 4
    age_s = broker.tick_age_s()
    assert age_s is not None
    assert age_s < 60


def test_a_missing_database_is_waited_for(
    settings: Settings, hints: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    run_until(nobody, settings, 3, monkeypatch)


def test_deployments_on_one_machine_have_their_own_sign_of_life(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = broker.tick_file()
    other = settings.model_copy(update={"database_url": settings.database_url.__class__(f"x{uuid.uuid4()}")})
    monkeypatch.setattr(broker, "get_settings", lambda: other)
    assert broker.tick_file() != mine
