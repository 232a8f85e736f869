"""Uploaded selection windows over the API: judged, stored whole or not at all, and shown."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.settings import get_settings
from tests.replicas.test_replicas import GOOD, topology
from tests.selection.support import IDLE, MIB, RAILS, counters, lines, record, target

N = 100 * MIB
UPLOAD: dict[str, Any] = {
    "records": lines(record({0: N, 1: N}), target(2 * N)),
    "rails": RAILS,
    "before": IDLE,
    "after": counters({0: N, 1: N}, {4: N, 5: N}),
    "unit": "bytes",
}


@pytest.fixture
def windows(client: TestClient) -> str:
    """Where a replica's windows are."""
    replica = client.post("/replicas", json=GOOD).json()
    return f"/replicas/{replica['id']}/selection-windows"


def test_upload_is_judged_and_stored(client: TestClient, windows: str) -> None:
    created = client.post(windows, json=UPLOAD)
    assert created.status_code == 201, created.text
    shown = client.get(created.headers["Location"]).json()
    assert shown == created.json()
    assert (shown["result"], shown["records"], shown["topology_version"]) == ("pass", 1, None)
    assert [(r["local"], r["remote"], r["source_wire_bytes"]) for r in shown["rails"]] == [
        ("mlx5_0", "mlx5_4", N),
        ("mlx5_1", "mlx5_5", N),
    ]
    assert shown["distribution"]["shape"] == "even"
    assert client.get(shown["links"]["upload"]).json() == UPLOAD


def test_texts_are_taken_as_well_as_documents(client: TestClient, windows: str) -> None:
    texts = {name: json.dumps(UPLOAD[name]) for name in ("rails", "before", "after")}
    assert client.post(windows, json={**UPLOAD, **texts}).json()["result"] == "pass"


def test_it_keeps_the_topology_version_it_was_uploaded_under(client: TestClient, windows: str) -> None:
    place = windows.replace("selection-windows", "topology")
    assert client.put(place, json=topology()).status_code == 200
    first = client.post(windows, json=UPLOAD)
    changed = topology()
    changed["gpus"][0]["device"] = "another"
    assert client.put(place, json=changed).status_code == 200
    second = client.post(windows, json=UPLOAD)
    versions = [client.get(one.headers["Location"]).json()["topology_version"] for one in (first, second)]
    assert versions == [1, 2]


def test_fail_names_the_rails(client: TestClient, windows: str) -> None:
    shown = client.post(windows, json={**UPLOAD, "after": counters({0: N, 1: N}, {4: N, 5: N // 2})}).json()
    assert (shown["result"], [rail["result"] for rail in shown["rails"]]) == ("fail", ["pass", "fail"])


def test_the_tolerances_are_settings(client: TestClient, windows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = {**UPLOAD, "after": counters({0: N, 1: N}, {4: int(0.9 * N), 5: int(1.2 * N)})}
    assert client.post(windows, json=wide).json()["result"] == "fail"
    monkeypatch.setenv("FAULTSENSE_SELECTION_BELOW", "0.1")
    monkeypatch.setenv("FAULTSENSE_SELECTION_ABOVE", "0.2")
    get_settings.cache_clear()
    assert client.post(windows, json=wide).json()["result"] == "pass"


def test_list_is_paged_newest_first_and_of_one_replica(client: TestClient, windows: str) -> None:
    ids = [client.post(windows, json=UPLOAD).json()["id"] for _ in range(3)]
    page = client.get(windows, params={"limit": 2}).json()
    rest = client.get(windows, params={"limit": 2, "cursor": page["next_cursor"]}).json()
    assert [w["id"] for w in (*page["items"], *rest["items"])] == ids[::-1]
    assert rest["next_cursor"] is None
    other = client.post("/replicas", json={**GOOD, "name": "moe-2"}).json()["id"]
    assert client.get(f"/replicas/{other}/selection-windows").json()["items"] == []
    assert client.get(f"/replicas/{other}/selection-windows/{ids[0]}").status_code == 404
    assert client.get(f"/replicas/{other}/selection-windows/{ids[0]}/upload").status_code == 404


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        (
            {"records": lines(record({0: N})) + "{broken\n" + lines(record({0: N}))},
            "body.records:2",
            "not JSON: Expecting",
        ),
        ({"records": lines(record({0: N}, schema_version=9))}, "body.records:1:schema_version", "9 is not known"),
        (
            {"records": "\n" + lines(record({0: N}), record({0: N}, block_size="1M"))},
            "body.records:3:block_size",
            "Input should be a valid integer",
        ),
        ({"records": lines(target(N))}, "body.records", "there is no record"),
        ({"rails": {"all": []}}, "body.rails.all", "at least 1 item"),
        ({"rails": '{"all": [],\n}'}, "body.rails:2", "not JSON"),
        (
            {"rails": {"all": [{"local": "x", "remote": "mlx5_4"}]}},
            "body.rails.all.0.local",
            "unknown local device x",
        ),
        (
            {"rails": json.dumps({"direct": [{"local": "mlx5_0", "remote": "x"}]})},
            "body.rails:direct.0.remote",
            "unknown remote device x",
        ),
        ({"before": {"source": {"a\0": {"port_xmit_data": 1}}}}, "body.before.source", "no name"),
        (
            {"after": {"source": {"mlx5_0": {"port_xmit_data": -1}}}},
            "body.after.source.mlx5_0.1.port_xmit_data",
            "must be a whole number",
        ),
        (
            {"after": "# source\ninfiniband/mlx5_0/ports/1/counters/port_rcv_data:-1"},
            "body.after:2:source.mlx5_0.1.port_rcv_data",
            "must be a whole number",
        ),
        (
            {"after": {"source": "\ninfiniband/mlx5_0/ports/1/counters/port_rcv_data:-1"}},
            "body.after:2:source.mlx5_0.1.port_rcv_data",
            "must be a whole number",
        ),
        ({"after": {**UPLOAD["after"], "unit": "words4"}}, "body.after.unit", "bytes was stated"),
        (
            {"before": json.dumps({**UPLOAD["before"], "unit": "words4"})},
            "body.before:unit",
            "a snapshot says words4",
        ),
        ({"unit": "words"}, "body.unit", "words4"),
        ({"records": ""}, "body.records", "at least 1"),
        ({"before": '{"\\ud800": 1}'}, r"body.before:\ud800", "is none of"),
        ({"before": {"source": {"\ud800": 5}}}, r"body.before.source.\ud800", "must be"),
        ({"rails": {"\ud800": 5}}, "body.rails", "neither"),
    ],
)
def test_refused_with_the_place_and_nothing_stored(
    client: TestClient, windows: str, changes: dict[str, Any], field: str, words: str
) -> None:
    refused = _post(client, windows, {**UPLOAD, **changes})
    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert error["field"] == field
    assert words in error["message"]
    assert refused.json()["detail"].startswith(f"{field}: ")
    assert client.get(windows).json()["items"] == []


@pytest.mark.parametrize("note", ["\0", "\ud800", "é"])
def test_texts_that_postgresql_cannot_hold_as_json_are_kept(client: TestClient, windows: str, note: str) -> None:
    odd = {**UPLOAD, "rails": {**RAILS, "note": note}}
    created = _post(client, windows, odd)
    assert created.status_code == 201, created.text
    assert client.get(created.json()["links"]["upload"]).json() == odd


def _post(client: TestClient, url: str, document: dict[str, Any]) -> httpx.Response:
    """Send JSON in ASCII, whose escapes can say what UTF-8 cannot."""
    return client.post(url, content=json.dumps(document), headers={"Content-Type": "application/json"})


def test_unknown_replica(client: TestClient) -> None:
    nowhere = f"/replicas/{uuid.uuid4()}/selection-windows"
    assert client.post(nowhere, json=UPLOAD).status_code == 404
    assert client.get(nowhere).status_code == 404


def test_reading_keys_may_not_upload(client: TestClient, windows: str, keys: dict[str, str]) -> None:
    client.headers["Authorization"] = f"Bearer {keys['read']}"
    assert client.post(windows, json=UPLOAD).status_code == 403
    assert client.get(windows).status_code == 200


def test_a_long_sweep_is_one_window(client: TestClient, windows: str) -> None:
    many = 500
    records = lines(record({0: MIB, 1: MIB})) * many
    after = counters({0: many * MIB, 1: many * MIB}, {4: many * MIB, 5: many * MIB})
    created = client.post(windows, json={**UPLOAD, "records": records, "after": after})
    assert created.status_code == 201, created.text
    assert (created.json()["result"], created.json()["records"]) == ("pass", many)


def test_an_upload_may_be_larger_than_other_requests_and_has_its_limit(client: TestClient, windows: str) -> None:
    blank = "\n" * (5 << 20)
    assert client.post(windows, json={**UPLOAD, "records": UPLOAD["records"] + blank}).status_code == 201
    assert client.put(windows.replace("selection-windows", "topology"), json={"gpus": blank}).status_code == 413
    refused = client.post(windows, json={**UPLOAD, "records": UPLOAD["records"] + "\n" * (9 << 20)})
    assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
    assert len(client.get(windows).json()["items"]) == 1
