"""Metrics: counted once and for good, without ids, and there even when the database is not."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.jobs import repository, service
from app.kit.db import engine_for
from app.metrics.endpoints import serve_privately
from app.metrics.requests import registry
from app.settings import Settings
from tests.conftest import QUICK, replica_document

Localize = Callable[..., dict[str, Any]]


def scrape(client: TestClient) -> dict[tuple[str, ...], float]:
    """Values by name and label values."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_a_job_is_counted_where_it_ends(localize: Localize, client: TestClient, emulated: EmulatedReplica) -> None:
    emulated.set_faults(["gpu:5*4"])
    job = localize(emulated)
    found = scrape(client)
    assert found["faultsense_jobs_finished_total", "localized", "succeeded"] == 1
    by_phase = [found.get(("faultsense_probes_total", phase, "measured"), 0) for phase in "12"]
    assert sum(by_phase) == job["verdict"]["cost"]["measurements"]
    assert all(by_phase)
    assert found["faultsense_probe_seconds_bucket", "+Inf", "1"] == by_phase[0]
    assert found["faultsense_probe_seconds_count", "1"] == by_phase[0]
    seconds = [found["faultsense_probe_seconds_sum", phase] for phase in "12"]
    assert sum(seconds) == pytest.approx(job["verdict"]["cost"]["seconds"], abs=0.01)
    assert found["faultsense_probes_allowed_total",] > sum(by_phase)  # the test replica's limit is 10,000 a second
    assert found["faultsense_replicas",] == 1
    assert found["faultsense_database_up",] == 1


def test_buckets_grow_to_the_count(localize: Localize, client: TestClient, emulated: EmulatedReplica) -> None:
    localize(emulated)
    found = scrape(client)
    buckets = {key[1]: value for key, value in found.items() if key[0] == "faultsense_probe_seconds_bucket"}
    ordered = [buckets[le] for le in sorted(buckets, key=float)]
    assert ordered == sorted(ordered)
    assert ordered[0] < ordered[-1]


def test_the_queue_and_its_end(client: TestClient, emulated: EmulatedReplica, db: Session) -> None:
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    job = client.post(f"/replicas/{replica}/localize", json=QUICK).json()
    db.execute(text("UPDATE jobs SET created_at = now() - interval '50 s', deadline_at = now() - interval '1 s'"))
    db.commit()
    found = scrape(client)
    assert found["faultsense_jobs_live", "queued"] == 1
    assert 50 <= found["faultsense_queue_age_seconds",] < 60
    service.sweep(db, 30)
    db.commit()
    found = scrape(client)
    assert found["faultsense_jobs_live", "queued"] == found["faultsense_queue_age_seconds",] == 0
    assert found["faultsense_jobs_finished_total", "none", "expired"] == 1
    assert client.get(f"/jobs/{job['id']}").json()["state"] == "expired"


def test_a_silent_worker_is_counted_when_its_job_is_taken_up(
    client: TestClient, emulated: EmulatedReplica, db: Session
) -> None:
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]
    job_id = uuid.UUID(client.post(f"/replicas/{replica}/localize", json=QUICK).json()["id"])
    assert repository.claim(db, job_id, 15)[1] is False
    db.execute(text("UPDATE jobs SET lease_until = now() - interval '1 s'"))
    db.commit()
    assert scrape(client)["faultsense_expired_leases",] == 1
    assert repository.claim(db, job_id, 15)[1] is True


def test_counters_are_there_before_they_count(client: TestClient) -> None:
    """One that is born at 1 never increases to Prometheus, and its alert misses the first time."""
    found = scrape(client)
    assert found["faultsense_webhook_deliveries_total", "exhausted"] == 0
    assert found["faultsense_jobs_finished_total", "none", "failed"] == 0
    assert found["faultsense_probes_total", "2", "timed_out"] == 0


def test_a_request_line_holds_ids_and_nothing_made_up(
    client: TestClient, keys: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="app.requests")
    job = str(uuid.uuid4())
    client.get(f"/jobs/{job}")
    client.get("/jobs/x%0Aforged")
    client.delete(f"/keys/{keys['admin']}")
    lines = [{**vars(record), "text": record.getMessage()} for record in caplog.records]
    assert lines[0]["job_id"] == job
    assert all("caller_key_id" in line for line in lines[:1])
    assert "job_id" not in lines[1]
    assert keys["admin"] not in str(lines)


def test_no_label_holds_an_id(localize: Localize, client: TestClient, emulated: EmulatedReplica) -> None:
    job = localize(emulated)
    client.get(f"/jobs/{job['id']}")
    client.get(f"/nothing/{job['id']}")
    client.get(f"/jobs/{uuid.uuid4()}/probes")
    found = client.get("/metrics").text
    assert job["id"] not in found
    assert job["replica_id"] not in found
    assert 'route="/jobs/{job_id}"' in found
    assert 'route="none"' in found
    assert "/nothing" not in found


def test_a_key_with_read_scope_is_needed(anonymous: TestClient) -> None:
    assert anonymous.get("/metrics").status_code == 401


def test_the_private_port_needs_none(settings: Settings, engine: object) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    serve_privately("127.0.0.1", port)
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
    assert "faultsense_database_up 1.0" in answer.text


def test_without_the_database(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = engine_for("postgresql+psycopg://nobody@127.0.0.1:1/none")
    monkeypatch.setattr("app.metrics.collector.get_engine", lambda: nobody)
    found = generate_latest(registry).decode()
    assert "faultsense_database_up 0.0" in found
    assert "faultsense_jobs_live" not in found
