"""Backup and restore as docs/operations.md describes it: pg_dump, pg_restore, and the service goes on."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.engine import make_url

from app.embedded import EmbeddedServices
from app.embedded.programs import find_postgres
from app.emulator.replica import EmulatedReplica
from app.kit import migrate
from app.kit.db import engine_for
from app.main import create_app
from app.settings import get_settings


def _client_environment(url: str) -> dict[str, str]:
    parts = make_url(url)
    return {
        **os.environ,
        "PGHOST": str(parts.query.get("host") or parts.host),
        "PGPORT": str(parts.port or 5432),
        "PGUSER": str(parts.username),
        "PGPASSWORD": str(parts.password or ""),
        "PGDATABASE": str(parts.database),
    }


def _run(program: str, *arguments: object, url: str) -> None:
    subprocess.run(
        [find_postgres() / program, *map(str, arguments)], env=_client_environment(url), check=True, timeout=60
    )


def test_what_was_dumped_is_served_again(
    localize: Callable[..., dict[str, Any]],
    client: TestClient,
    emulated: EmulatedReplica,
    services: EmbeddedServices,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emulated.set_faults(["gpu:5*4"])
    job = localize(emulated, auth={"bearer": "token"})
    _run("pg_dump", "--format=custom", f"--file={tmp_path / 'backup'}", url=database_url)

    name = f"restored_{uuid.uuid4().hex[:8]}"
    restored = services.create_database(name)
    _run("pg_restore", "--exit-on-error", "--no-owner", f"--dbname={name}", tmp_path / "backup", url=restored)
    migrate.upgrade(restored)  # a backup of an older version is brought up to date this way
    monkeypatch.setenv("FAULTSENSE_DATABASE_URL", restored)
    get_settings.cache_clear()
    with TestClient(create_app(), headers=dict(client.headers)) as again:
        assert again.get(f"/jobs/{job['id']}").json() == job
        assert again.get(f"/jobs/{job['id']}/log").text == client.get(f"/jobs/{job['id']}/log").text
        assert again.post(f"/replicas/{job['replica_id']}/localize", json={"k": 2}).status_code == 202
    engine_for(restored).dispose()
    services.drop_database(name)
