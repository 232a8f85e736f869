"""No secret in any log: the whole service at its most talkative, every secret it has, and a search."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from sqlalchemy.engine import make_url

from app.cli.stack import Stack
from app.emulator.replica import EmulatedReplica
from tests.conftest import FAST, QUICK, replica_document

pytestmark = pytest.mark.slow

BEARER = "the-replicas-own-token"
ENDED = {"succeeded", "failed", "cancelled", "expired"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(settings={"log_level": "DEBUG", "log_format": "json"}) as running:
        yield running


@pytest.fixture(scope="module")
def replica() -> Iterator[EmulatedReplica]:
    with EmulatedReplica(gpus=8, hosts=2, **FAST) as running:
        yield running


def test_logs_tell_what_happened_and_no_secret(stack: Stack, replica: EmulatedReplica) -> None:
    with stack.client() as client:
        document = replica_document(replica, auth={"bearer": BEARER})
        registered = client.post("/replicas", json=document, headers={"X-Request-ID": "told-1"}).json()
        made = client.post("/keys", json={"name": "bot", "scope": "read"}).json()
        job = client.post(registered["links"]["localize"], json=QUICK).json()
        ends = time.monotonic() + 60
        while client.get(f"/jobs/{job['id']}").json()["state"] not in ENDED and time.monotonic() < ends:
            time.sleep(0.1)
        assert client.get(f"/jobs/{job['id']}").json()["state"] == "succeeded"
        client.get("/jobs", headers={"Authorization": "Bearer fs_a-wrong-key"})
    written = "".join(path.read_text(errors="replace") for path in stack.logs.iterdir())

    lines = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    assert any(line.get("request_id") == "told-1" for line in lines)
    about = [line for line in lines if line.get("job_id") == job["id"]]
    assert {line.get("replica_id") for line in about} >= {registered["id"]}
    assert any("taken up" in line["message"] for line in about)

    secrets = {
        "API key": stack.api_key,
        "new API key": made["key"],
        "wrong API key": "fs_a-wrong-key",
        "replica token": BEARER,
        "PostgreSQL password": make_url(stack.services.database_url).password,
        "Redis password": make_url(stack.services.redis_url).password,
        "secret key": json.loads(stack.setting("secret_keys"))[0],
    }
    assert all(secrets.values())
    assert [name for name, secret in secrets.items() if secret and secret in written] == []
