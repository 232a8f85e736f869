"""Replicas and topologies over the API: what is stored, what is refused, and how it is said."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.probe_model.synthetic import synthetic_manifest
from app.replicas.ranks import format_ranks, parse_ranks

MANIFEST = synthetic_manifest(8).model_dump(mode="json")
GOOD: dict[str, Any] = {
    "name": "moe-1",
    "gpus": 8,
    "probe_endpoints": [
        {"url": "http://127.0.0.1:8000", "ranks": "0-3"},
        {"url": "http://127.0.0.1:8001/probe/", "ranks": "4-7"},
    ],
    "manifest": MANIFEST,
    "layout": {"all2all": "deepep_low_latency"},
}


def topology(n: int = 8) -> dict[str, Any]:
    return {"gpus": [{"rank": r, "host": f"host-{r // 4}", "device": str(r % 4)} for r in range(n)]}


def test_register_read_list_delete(client: TestClient) -> None:
    created = client.post("/replicas", json=GOOD)
    assert created.status_code == 201, created.text
    shown = client.get(created.headers["Location"]).json()
    assert shown == created.json()
    assert shown["probe_endpoints"][1]["url"] == "http://127.0.0.1:8001/probe"
    assert shown["limits"] == {"probes_per_second": 10.0, "tokens_per_second": None, "max_in_flight": 1}
    assert shown["targets"] == {"gpu_slowdown": 1.5, "path_slowdown": 3.0, "delay_ms": 10.0}
    assert [r["id"] for r in client.get("/replicas").json()["items"]] == [shown["id"]]
    assert client.delete(created.headers["Location"]).status_code == 204
    assert client.get(created.headers["Location"]).status_code == 404
    assert client.get("/replicas").json() == {"items": [], "next_cursor": None}
    assert client.post("/replicas", json=GOOD).status_code == 201, "the name is free again"


def test_a_name_in_use_is_a_conflict_with_its_location(client: TestClient) -> None:
    first = client.post("/replicas", json=GOOD)
    second = client.post("/replicas", json=GOOD)
    assert (second.status_code, second.json()["code"]) == (409, "name_taken")
    assert second.headers["Location"] == first.headers["Location"]


def test_pages_continue_where_they_ended(client: TestClient) -> None:
    created = [client.post("/replicas", json={**GOOD, "name": f"r{i}"}).json()["id"] for i in range(5)]
    seen, cursor = [], None
    for _ in range(3):
        page = client.get("/replicas", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [r["id"] for r in page["items"]]
        cursor = page["next_cursor"]
    assert seen == created[::-1]
    assert cursor is None
    for bad in ("x", "!!!", "MjAyNi0wMS0wMXxhYmM="):
        refused = client.get("/replicas", params={"cursor": bad})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "query.cursor")


def test_a_token_is_stored_encrypted_and_never_shown(client: TestClient, db: Session) -> None:
    created = client.post("/replicas", json={**GOOD, "auth": {"bearer": "very-secret-token"}})
    assert created.json()["has_bearer"] is True
    assert "very-secret-token" not in created.text
    assert "very-secret-token" not in client.get(created.headers["Location"]).text
    row = db.execute(text("SELECT replicas::text, bearer FROM replicas")).one()
    assert "very-secret-token" not in row[0]
    from app.kit.secrets import decrypt

    assert decrypt(bytes(row.bearer)) == "very-secret-token"
    client.delete(created.headers["Location"])
    assert db.execute(text("SELECT bearer FROM replicas")).scalar() is None


def change(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


def endpoint(**changes: Any) -> dict[str, Any]:
    return change(probe_endpoints=[{"url": "http://127.0.0.1:1", "ranks": "0-7", **changes}])


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (change(gpus=1), "body.gpus"),
        (change(gpus="8"), "body.gpus"),
        (change(gpus=16), "body"),
        (change(name=" moe"), "body.name"),
        (change(name="a\x00b"), "body.name"),
        (change(colour="red"), "body.colour"),
        (change(probe_endpoints=[]), "body.probe_endpoints"),
        (endpoint(ranks="0-6"), "body"),
        (endpoint(ranks="0-8"), "body"),
        (endpoint(ranks="0-7,7"), "body.probe_endpoints.0.ranks"),
        (endpoint(ranks="7-0"), "body.probe_endpoints.0.ranks"),
        (endpoint(ranks="zero"), "body.probe_endpoints.0.ranks"),
        (endpoint(rank_choice="url"), "body.probe_endpoints.0"),
        (endpoint(url="ftp://127.0.0.1"), "body.probe_endpoints.0.url"),
        (endpoint(url="http://user:pw@127.0.0.1"), "body.probe_endpoints.0.url"),
        (endpoint(url="http://127.0.0.1:99999"), "body.probe_endpoints.0.url"),
        (endpoint(url="http://8.8.8.8:8000"), "body.probe_endpoints.0.url"),
        (endpoint(url="http://169.254.169.254"), "body.probe_endpoints.0.url"),
        (endpoint(url="http://2852039166"), "body.probe_endpoints.0.url"),
        (endpoint(url="http://[::ffff:169.254.169.254]"), "body.probe_endpoints.0.url"),
        (change(production_endpoints=[{"url": "http://10.0.0.1"}]), "body.production_endpoints.0.url"),
        (change(layout={"all2all": "moonep"}), "body.layout.all2all"),
        (change(layout={"dp": 4}), "body"),
        (change(limits={"probes_per_second": 0.01}), "body.limits.probes_per_second"),
        (change(limits={"max_in_flight": 2}), "body.limits.max_in_flight"),
        (change(ca_pem="not a certificate"), "body.ca_pem"),
        (change(auth={"bearer": "two\nlines"}), "body.auth.bearer"),
        (change(manifest={**MANIFEST, "gpus": 4}), "body.manifest"),
        (change(manifest={**MANIFEST, "model": "../../etc/passwd"}), "body.manifest.model"),
        (change(manifest={**MANIFEST, "extra": 1}), "body.manifest.extra"),
        ([], "body"),
    ],
)
def test_what_is_refused_names_the_field(client: TestClient, document: Any, field: str) -> None:
    refused = client.post("/replicas", json=document)
    assert refused.status_code == 422, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert field in {e["field"] for e in refused.json()["errors"]}, refused.text
    assert client.get("/replicas").json()["items"] == []


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"name": NaN}'])
def test_a_malformed_body_is_a_problem_document(client: TestClient, body: bytes) -> None:
    refused = client.post("/replicas", content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code in {400, 422}, refused.text
    assert refused.headers["content-type"] == "application/problem+json"


def test_an_oversized_body_is_refused_declared_or_not(client: TestClient) -> None:
    big = b'{"name": "' + b"x" * (5 << 20) + b'"}'
    for content in (big, iter([big[: 3 << 20], big[3 << 20 :]])):
        refused = client.post("/replicas", content=content, headers={"Content-Type": "application/json"})
        assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/replicas/{id}"),
        ("DELETE", "/replicas/{id}"),
        ("GET", "/replicas/{id}/topology"),
        ("PUT", "/replicas/{id}/topology"),
        ("POST", "/replicas/{id}/localize"),
        ("GET", "/jobs/{id}"),
        ("POST", "/jobs/{id}/cancel"),
        ("GET", "/jobs/{id}/probes"),
        ("GET", "/jobs/{id}/log"),
    ],
)
def test_unknown_ids_are_404(client: TestClient, method: str, path: str) -> None:
    body = topology() if method == "PUT" else None
    answer = client.request(method, path.format(id=uuid.uuid4()), json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert client.request(method, path.format(id="not-an-id"), json=body).status_code == 422


def test_keys_and_scopes(anonymous: TestClient, keys: dict[str, str], db: Session) -> None:
    assert anonymous.get("/replicas").status_code == 401
    assert anonymous.get("/replicas", headers={"Authorization": "Bearer fs_wrong"}).status_code == 401
    assert anonymous.get("/livez").status_code == 200
    read = {"Authorization": f"Bearer {keys['read']}"}
    assert anonymous.get("/replicas", headers=read).status_code == 200
    refused = anonymous.post("/replicas", json=GOOD, headers=read)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    for scope in ("operate", "admin"):
        headers = {"Authorization": f"Bearer {keys[scope]}"}
        assert anonymous.post("/replicas", json={**GOOD, "name": scope}, headers=headers).status_code == 201
    from app.kit.auth import list_keys, revoke_key

    revoke_key(db, next(k.id for k in list_keys(db) if k.name == "read"))
    db.commit()
    assert anonymous.get("/replicas", headers=read).status_code == 401
    stored = db.execute(text("SELECT string_agg(api_keys::text, ' ') FROM api_keys")).scalar()
    assert stored is not None
    assert not any(key in stored for key in keys.values())


class TestTopology:
    """Versioned, never edited in place."""

    @pytest.fixture
    def url(self, client: TestClient) -> str:
        return str(client.post("/replicas", json=GOOD).json()["links"]["topology"])

    def test_a_new_version_only_when_something_changed(self, client: TestClient, url: str) -> None:
        assert client.get(url).status_code == 404
        first = client.put(url, json=topology()).json()
        assert (first["version"], first["valid_to"]) == (1, None)
        shuffled = {"gpus": topology()["gpus"][::-1]}
        assert client.put(url, json=shuffled).json()["version"] == 1
        moved = topology()
        moved["gpus"][7]["host"] = "host-9"
        assert client.put(url, json=moved).json()["version"] == 2
        assert client.get(url).json()["gpus"][7]["host"] == "host-9"

    def test_another_size_is_refused(self, client: TestClient, url: str) -> None:
        refused = client.put(url, json=topology(6))
        assert refused.status_code == 422
        assert "6 GPUs given, the replica has 8" in refused.json()["detail"]

    @pytest.mark.parametrize(
        "gpus",
        [
            [],
            [{"rank": 0, "host": "a"}] * 8,
            [{"rank": r + 1, "host": "a"} for r in range(8)],
            [{"rank": r, "host": "a", "device": "same"} for r in range(8)],
            [{"rank": r, "host": "a\u0000"} for r in range(8)],
            [{"rank": r} for r in range(8)],
        ],
    )
    def test_broken_documents_are_refused(self, client: TestClient, url: str, gpus: list[Any]) -> None:
        assert client.put(url, json={"gpus": gpus}).status_code == 422
        assert client.get(url).status_code == 404


@given(st.sets(st.integers(0, 1023), min_size=1))
def test_rank_lists_survive_printing(ranks: set[int]) -> None:
    assert set(parse_ranks(format_ranks(sorted(ranks)))) == ranks
