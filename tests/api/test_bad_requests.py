"""Requests that no generator makes: each is answered by a problem document, never by a 500."""

from __future__ import annotations

import base64
import json
import socket
import uuid
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.emulator.replica import EmulatedReplica
from app.kit import middleware
from app.settings import Settings
from tests.conftest import replica_document
from tests.outbound.servers import Authority
from tests.support.api import ServedApi

LONE = "\ud800"  # half of a surrogate pair: JSON can write it, UTF-8 and PostgreSQL cannot
NUL = "\0"


def send(client: TestClient, method: str, path: str, body: bytes | str) -> tuple[int, dict[str, Any]]:
    response = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem: dict[str, Any] = response.json()
    assert problem["status"] == response.status_code
    return response.status_code, problem


BODIES: list[tuple[bytes | str, int]] = [
    ("", 422),
    ("null", 422),
    ("[]", 422),
    ('"text"', 422),
    ('{"a": 1', 422),
    ('{"gpus": NaN, "name": Infinity}', 422),
    ("[" * 100_000, 400),
    ("1" * 5000, 400),
    (b'"\xff"', 400),
    (b"\xff\xfe", 422),
    ('{"\\ud800": 1}', 422),
]


def test_bodies_that_are_no_documents(client: TestClient) -> None:
    topology = f"/replicas/{uuid.uuid4()}/topology"
    for body, status in BODIES:
        for method, path in (("POST", "/replicas"), ("PUT", topology)):
            assert send(client, method, path, body)[0] == status, (path, body[:20])


def test_texts_that_cannot_be_stored(client: TestClient, emulated: EmulatedReplica) -> None:
    good = replica_document(emulated)
    url = "http://127.0.0.1:1"
    pem = Authority().pem
    changes: list[tuple[str, dict[str, Any]]] = [
        ("body.name", {"name": LONE}),
        ("body.name", {"name": f"a{NUL}b"}),
        ("body.name", {"name": "a\n"}),
        ("body", {LONE: 1}),
        ("body.layout.all2all", {"layout": {"all2all": LONE}}),
        ("body.auth.bearer", {"auth": {"bearer": LONE}}),
        ("body.auth.bearer", {"auth": {"bearer": "a\r\nHost: b"}}),
        ("body.ca_pem", {"ca_pem": LONE}),
        ("body.ca_pem", {"ca_pem": pem + NUL}),
        ("body.ca_pem", {"ca_pem": "-----BEGIN CERTIFICATE-----"}),
        ("body.probe_endpoints.0.url", {"probe_endpoints": [{"url": f"http://{LONE}/", "ranks": "0-7"}]}),
        ("body.probe_endpoints.0.ranks", {"probe_endpoints": [{"url": url, "ranks": LONE}]}),
        ("body.probe_endpoints.0.ranks", {"probe_endpoints": [{"url": url, "ranks": f"0-7{NUL}"}]}),
        ("body.manifest.model", {"manifest": good["manifest"] | {"model": LONE}}),
    ]
    for field, change in changes:
        status, problem = send(client, "POST", "/replicas", json.dumps({**good, **change}))
        assert status == 422
        assert [error["field"] for error in problem["errors"]] == [field], change
    assert client.post("/replicas", json={**good, "ca_pem": pem}).status_code == 201


def test_labels_that_cannot_be_stored(client: TestClient, emulated: EmulatedReplica) -> None:
    path = client.post("/replicas", json=replica_document(emulated)).json()["links"]["topology"]
    for label in (LONE, NUL, "a\n", ""):
        places = [{"rank": rank, "host": "a" if rank else label} for rank in range(8)]
        status, problem = send(client, "PUT", path, json.dumps({"gpus": places}))
        assert (status, problem["errors"][0]["field"]) == (422, "body.gpus.0.host")


def test_queries(client: TestClient) -> None:
    cursors = ("%00", "%FF", "%ED%A0%80", "MTIz")
    limits = ("1e400", "9" * 5000, "0", "-1")
    queries = [f"cursor={value}" for value in cursors] + [f"limit={value}" for value in limits]
    for path in ("/replicas", "/jobs"):
        for query in queries:
            assert send(client, "GET", f"{path}?{query}", b"")[0] == 422, query[:20]


def test_cursors_at_the_ends_of_time(client: TestClient) -> None:
    """Well formed, though never given out: an empty or a full page, not an error of the database."""
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        cursor = base64.urlsafe_b64encode(f"{moment}|{uuid.uuid4()}".encode()).decode()
        for path in ("/replicas", "/jobs"):
            assert client.get(path, params={"cursor": cursor}).status_code == 200


def test_paths(client: TestClient) -> None:
    for path in ("/%ED%A0%80", "/replicas/%00", "/replicas/%ED%A0%80", "/jobs/..%2f", "//", "/jobs/x/y"):
        assert send(client, "GET", path, b"")[0] in {404, 422}, path


def test_a_method_that_is_not_allowed_names_all_that_are(client: TestClient) -> None:
    response = client.request("PUT", f"/replicas/{uuid.uuid4()}")
    assert response.status_code == 405
    assert response.headers["content-type"] == "application/problem+json"
    assert set(response.headers["allow"].split(", ")) == {"GET", "PATCH", "DELETE"}


def test_problems_are_documented_under_their_media_type(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    answers = [
        (status, answer["content"])
        for path in document["paths"].values()
        for operation in path.values()
        if operation.get("security")
        for status, answer in operation["responses"].items()
        if status.startswith(("4", "5"))
    ]
    assert len(answers) > 40
    assert all(content == {"application/problem+json": {"schema": schema}} for _, content in answers)


def test_a_stranger_may_not_fill_the_memory(anonymous: TestClient) -> None:
    """Bodies are read before keys are looked at."""
    assert anonymous.post("/replicas", content=b"x" * (65 << 10)).status_code == 413
    assert anonymous.post("/replicas", content=b"x" * 1000).status_code == 401


def test_a_body_that_does_not_come_is_not_waited_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.1)
    with ServedApi(settings) as api, socket.create_connection(("127.0.0.1", httpx.URL(api.url).port)) as slow:
        slow.sendall(b"POST /replicas HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        answer = slow.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_too_slow" in answer or b"application/problem+json" in answer


def test_a_bug_has_an_id_and_is_counted(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise RuntimeError("the ghost in the machine")

    monkeypatch.setattr("app.replicas.repository.page", bug)
    answer = client.get("/replicas", headers={"X-Request-ID": "bug-1"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["X-Request-ID"] == "bug-1"
    assert 'route="/replicas",status="500"' in client.get("/metrics").text
    assert "the ghost in the machine" not in answer.text


def test_a_plan_that_nobody_can_run_is_refused_before_it_is_made(client: TestClient) -> None:
    from app.probe_model.synthetic import synthetic_manifest

    document = {
        "name": "large",
        "gpus": 1024,
        "probe_endpoints": [{"url": "http://127.0.0.1:1", "ranks": "0-1023"}],
        "manifest": synthetic_manifest(1024).model_dump(mode="json"),
        "layout": {"all2all": "sparse"},
    }
    replica = client.post("/replicas", json=document).json()
    for request in ({"strategy": "pairwise"}, {"k": 3}):
        refused = client.post(replica["links"]["localize"], json={**request, "dry_run": True})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == "body.k"
