"""Real PostgreSQL, real Redis, the real API in process, and emulated replicas over real HTTP.

Each pytest worker starts its own embedded servers once and migrates one template database; every test that
asks for a database gets a copy of it, which takes about 50 ms.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from app.embedded import EmbeddedServices
from app.emulator.replica import EmulatedReplica
from app.jobs.runner import run_slice
from app.kit import migrate
from app.kit.auth import create_key
from app.kit.db import engine_for
from app.kit.secrets import generate_key
from app.main import create_app
from app.settings import Settings, get_settings

TEMPLATE = "faultsense_template"
FAST = {"fixed_ms": 1.0, "compute_ms": 0.5, "path_ms": {"same_host": 0.5, "cross_host": 0.5}}


@pytest.fixture(scope="session")
def services() -> Iterator[EmbeddedServices]:
    """PostgreSQL and Redis of this pytest worker."""
    with EmbeddedServices() as running:
        yield running


@pytest.fixture(scope="session")
def template(services: EmbeddedServices) -> str:
    """A migrated database to copy."""
    migrate.upgrade(services.create_database(TEMPLATE))
    return TEMPLATE


@pytest.fixture
def database_url(services: EmbeddedServices, template: str) -> Iterator[str]:
    """A database of one's own."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    url = services.create_database(name, template)
    yield url
    engine_for(url).dispose()
    services.drop_database(name)


@pytest.fixture
def settings(services: EmbeddedServices, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The process's settings: this test's database, loopback replicas only."""
    environment = {
        "DATABASE_URL": database_url,
        "REDIS_URL": services.redis_url,
        "REPLICA_NETWORKS": '["127.0.0.0/8", "::1/128"]',
        "WEBHOOK_NETWORKS": '["127.0.0.0/8", "::1/128"]',
        "SECRET_KEYS": f'["{generate_key()}"]',
        "PROBE_TIMEOUT_S": "5",
        "WARM_UP_S": "0",  # the emulator is as quick at first as later
        "AUTH_FAILURES_PER_MINUTE": "10000",  # all tests come from one address
    }
    for name, value in environment.items():
        monkeypatch.setenv(f"FAULTSENSE_{name}", value)
    get_settings.cache_clear()
    yield get_settings()
    get_settings.cache_clear()


@pytest.fixture
def engine(settings: Settings) -> Engine:
    """Engine of this test's database."""
    return engine_for(settings.database_url.get_secret_value())


@pytest.fixture
def db(engine: Engine) -> Iterator[Session]:
    """A session on this test's database."""
    with Session(engine, expire_on_commit=False) as session:
        yield session


@pytest.fixture
def keys(db: Session) -> dict[str, str]:
    """One API key for each scope."""
    texts = {scope: create_key(db, scope, scope)[1] for scope in ("read", "operate", "admin")}  # type: ignore[arg-type]
    db.commit()
    return texts


@pytest.fixture
def anonymous(settings: Settings) -> Iterator[TestClient]:
    """A client without a key; errors of the app are answers, not exceptions."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(anonymous: TestClient, keys: dict[str, str]) -> TestClient:
    """A client with an operate key."""
    anonymous.headers["Authorization"] = f"Bearer {keys['operate']}"
    return anonymous


@pytest.fixture(scope="session")
def emulated() -> Iterator[EmulatedReplica]:
    """Eight emulated GPUs on two hosts, shared by the tests of this worker: set the faults you need."""
    with EmulatedReplica(gpus=8, hosts=2, noise_sigma=0.01, **FAST) as replica:
        yield replica


def replica_document(replica: EmulatedReplica, **changes: Any) -> dict[str, Any]:
    """The document that registers an emulated replica."""
    return {
        "name": f"replica-{uuid.uuid4().hex[:8]}",
        "gpus": replica.config.gpus,
        "probe_endpoints": replica.endpoints,
        "manifest": replica.manifest,
        "layout": {"all2all": "sparse" if replica.config.mode == "sparse" else "allgather"},
        "limits": {"probes_per_second": 10_000},
        **changes,
    }


QUICK = {"k": 4, "repeats": 1, "prompt_tokens": 1, "decode_tokens": 8}


@pytest.fixture
def localize(client: TestClient, engine: Engine, settings: Settings) -> Callable[..., dict[str, Any]]:
    """Register a replica, run one job on it to its end in this process, and return the job."""

    def run(replica: EmulatedReplica, request: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        registered = client.post("/replicas", json=replica_document(replica, **changes))
        assert registered.status_code == 201, registered.text
        accepted = client.post(f"/replicas/{registered.json()['id']}/localize", json={**QUICK, **(request or {})})
        assert accepted.status_code == 202, accepted.text
        job_id = uuid.UUID(accepted.json()["id"])
        while run_slice(engine, settings, job_id) == "again":
            pass
        document: dict[str, Any] = client.get(f"/jobs/{job_id}").json()
        return document

    return run
