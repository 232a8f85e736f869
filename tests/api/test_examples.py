"""The document's examples are requests that work: Swagger UI sends them as they stand."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from app.emulator.replica import EmulatedReplica
from app.jobs.runner import run_slice
from app.main import create_app
from app.settings import Settings
from tests.conftest import FAST

# What `faultsense emulate` listens on; the test's emulator takes a free port.
EXAMPLE_URL = "http://127.0.0.1:8100"


@pytest.fixture(scope="module")
def eight() -> Iterator[EmulatedReplica]:
    with EmulatedReplica(gpus=8, hosts=2, faults=("gpu:5*4",), **FAST) as replica:
        yield replica


@pytest.fixture
def examples(client: TestClient) -> dict[str, Any]:
    """The first example of each operation that takes a body."""
    document = client.get("/openapi.json").json()
    found: dict[str, Any] = {}
    for path in document["paths"].values():
        for operation in path.values():
            body = operation.get("requestBody")
            if body is None:
                continue
            schema = body["content"]["application/json"]["schema"]
            (reference,) = [s["$ref"] for s in (schema, *schema.get("anyOf", ())) if "$ref" in s]
            named = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
            assert named.get("examples"), f"{operation['operationId']} has no example"
            found[operation["operationId"]] = named["examples"][0]
    return found


def test_all_of_them(
    client: TestClient,
    keys: dict[str, str],
    examples: dict[str, Any],
    eight: EmulatedReplica,
    engine: Engine,
    settings: Settings,
) -> None:
    client.headers["Authorization"] = f"Bearer {keys['admin']}"
    (endpoint,) = examples["registerReplica"]["probe_endpoints"]
    (serving,) = eight.endpoints
    assert {**endpoint, "url": serving["url"]} == serving, "only the port is another"
    assert endpoint["url"] == EXAMPLE_URL
    registered = client.post("/replicas", json={**examples["registerReplica"], "probe_endpoints": [serving]})
    assert registered.status_code == 201, registered.text
    replica = registered.json()["links"]
    assert client.put(replica["topology"], json=examples["putTopology"]).status_code == 200
    accepted = client.post(replica["localize"], json=examples["localize"])
    assert accepted.status_code == 202, accepted.text
    while run_slice(engine, settings, uuid.UUID(accepted.json()["id"])) == "again":
        pass
    suspects = client.get(accepted.headers["Location"]).json()["verdict"]["suspects"]
    assert ("gpu", [5]) in [(suspect["kind"], suspect["members"]) for suspect in suspects]
    windows = f"{replica['self']}/selection-windows"
    assert client.post(windows, json=examples["createSelectionWindow"]).json()["result"] == "pass"
    assert client.patch(replica["self"], json=examples["updateReplica"]).status_code == 200
    assert client.put(replica["probing"], json=examples["setReplicaProbing"]).json()["stopped"] is True
    assert client.put("/probing", json=examples["setProbing"]).json()["stopped"] is True
    hook = client.post("/webhooks", json=examples["createWebhook"]).json()["links"]["self"]
    assert client.patch(hook, json=examples["changeWebhook"]).status_code == 200
    assert client.post(f"{hook}/rotate-secret", json=examples["rotateWebhookSecret"]).status_code == 200
    made = client.post("/keys", json=examples["createKey"])
    assert made.status_code == 201
    assert client.post(f"/keys/{made.json()['id']}/rotate", json=examples["rotateKey"]).status_code == 201


def test_no_two_schemas_share_a_name() -> None:
    """They would be told apart by the names of modules, and so would be the classes of generated clients."""
    names = create_app().openapi()["components"]["schemas"]
    assert [name for name in names if name.startswith("app__")] == []
