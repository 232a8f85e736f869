"""API keys and migrations, against the test's own database."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from cryptography.fernet import Fernet
from fastapi.testclient import TestClient
from sqlalchemy import inspect

from app.embedded import EmbeddedServices
from app.kit.db import engine_for
from app.settings import get_settings
from tests.cli.support import refused, run


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_key_from_its_making_to_its_end(anonymous: TestClient) -> None:
    made = run("keys", "create", "on call", "--scope", "read", "--json")
    assert made.status == 0
    assert list(made.document) == ["id", "name", "scope", "key", "expires_at"]
    key_id, key = made.document["id"], made.document["key"]
    assert anonymous.get("/replicas", headers=bearer(key)).status_code == 200
    assert anonymous.post("/replicas", headers=bearer(key), json={}).status_code == 403

    (listed,) = run("keys", "list", "--json").document
    assert (listed["id"], listed["name"], listed["scopes"]) == (key_id, "on call", ["read"])
    assert listed["revoked_at"] is None
    assert key not in run("keys", "list").out

    assert run("keys", "revoke", key_id).out == f"revoked {key_id}\n"
    assert anonymous.get("/replicas", headers=bearer(key)).status_code == 401
    (ended,) = run("keys", "list", "--json").document
    assert ended["revoked_at"] is not None
    again = run("keys", "revoke", key_id)
    assert again.status == 0, "revoking twice does no harm"
    assert run("keys", "list", "--json").document == [ended]
    assert f"revoked {ended['revoked_at']}" in run("keys", "list").out


def test_the_default_key_is_an_operators(anonymous: TestClient) -> None:
    made = run("keys", "create")
    key = made.out.strip()
    assert (made.status, made.err) == (0, "")
    assert key.startswith("fs_")
    assert anonymous.post("/replicas", headers=bearer(key), json={}).status_code == 422


def test_unknown_keys_are_refused(anonymous: TestClient) -> None:
    unknown = uuid.uuid4()
    refused(run("keys", "revoke", unknown), f"there is no key {unknown}")
    assert run("keys", "list", "--json").document == []


def test_a_secret_is_a_fernet_key() -> None:
    first, second = (run("keys", "secret").out.strip() for _ in range(2))
    assert first != second
    Fernet(first)


@pytest.fixture
def empty_database(services: EmbeddedServices, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"empty_{uuid.uuid4().hex[:12]}"
    url = services.create_database(name)
    monkeypatch.setenv("FAULTSENSE_DATABASE_URL", url)
    get_settings.cache_clear()
    yield url
    get_settings.cache_clear()
    engine_for(url).dispose()
    services.drop_database(name)


def test_migrate_up_and_down(empty_database: str) -> None:
    refused(run("keys", "list"), "api_keys")
    assert run("migrate").status == 0
    assert run("migrate").status == 0, "nothing to do is no error"
    assert {"replicas", "jobs", "events", "api_keys"} <= set(inspect(engine_for(empty_database)).get_table_names())
    assert run("keys", "list", "--json").document == []
    refused(run("migrate", "no-such-revision"), "no-such-revision")
    assert run("migrate", "base", "--down").status == 0
    assert set(inspect(engine_for(empty_database)).get_table_names()) <= {"alembic_version"}
