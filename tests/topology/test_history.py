"""Topology history over the API: versions, the one that held at a time, and what changed between two."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from app.localization.placement import layout
from app.topology import repository
from tests.replicas.test_replicas import GOOD

HOUR = dt.timedelta(hours=1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def topology(moved_to: str | None = None) -> dict[str, Any]:
    gpus = [{"rank": r, "host": f"host-{r // 4}", "device": f"GPU-{r}", "nic": f"mlx5_{r % 4}"} for r in range(8)]
    if moved_to is not None:
        gpus[7] |= {"host": moved_to, "nic": "mlx5_9"}
    return {"gpus": gpus}


@pytest.fixture
def replica_id(client: TestClient) -> str:
    return str(client.post("/replicas", json=GOOD).json()["id"])


@pytest.fixture
def url(replica_id: str) -> str:
    return f"/replicas/{replica_id}/topology"


@contextmanager
def statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """What is sent to the database meanwhile."""
    seen: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: object, _x: object, _many: bool) -> None:
        seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


def test_every_version_can_be_had_again(client: TestClient, url: str) -> None:
    versions = [client.put(url, json=topology(host)).json() for host in (None, "host-8", "host-9")]
    assert [v["version"] for v in versions] == [1, 2, 3]
    stored = [client.get(url, params={"version": number}).json() for number in (1, 2, 3)]
    assert [s["gpus"] for s in stored] == [v["gpus"] for v in versions]
    assert [s["valid_to"] for s in stored] == [versions[1]["valid_from"], versions[2]["valid_from"], None]
    for first, second in itertools.pairwise(stored):
        at = client.get(url, params={"at": first["valid_from"]}).json()
        assert at == first
        just_before = dt.datetime.fromisoformat(second["valid_from"]) - dt.timedelta(microseconds=1)
        assert client.get(url, params={"at": just_before.isoformat()}).json()["version"] == first["version"]
    assert client.get(url, params={"at": "2999-01-01T00:00:00+05:30"}).json() == stored[2]


def test_times_and_versions_that_are_none(client: TestClient, url: str) -> None:
    created = client.put(url, json=topology()).json()
    before = dt.datetime.fromisoformat(created["valid_from"]) - dt.timedelta(microseconds=1)
    early = client.get(url, params={"at": before.isoformat()})
    assert (early.status_code, early.json()["code"]) == (404, "not_found")
    assert before.isoformat() in early.json()["detail"]
    assert client.get(url, params={"version": 2}).status_code == 404
    for query, field in (
        ({"at": "2026-01-01T00:00:00"}, "query.at"),
        ({"at": "1767225600"}, "query.at"),
        ({"at": created["valid_from"], "version": 1}, "query.version"),
        ({"version": 0}, "query.version"),
    ):
        refused = client.get(url, params=query)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == field
    for extreme, status in (("0001-01-01T00:00:00+14:00", 404), ("9999-12-31T23:59:59-14:00", 200)):
        assert client.get(url, params={"at": extreme}).status_code == status
    unknown = f"/replicas/{uuid.uuid4()}/topology"
    for path in (f"{unknown}/versions", f"{unknown}/diff?from=1&to=1", f"{unknown}?version=1"):
        assert client.get(path).status_code == 404


def test_versions_are_listed_in_pages(client: TestClient, url: str) -> None:
    assert client.get(f"{url}/versions").json() == {"items": [], "next_cursor": None}
    for number in range(5):
        client.put(url, json=topology(f"host-{number + 2}"))
    seen: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = client.get(f"{url}/versions", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        assert len(page["items"]) <= 2
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [item["version"] for item in seen] == [5, 4, 3, 2, 1]
    assert [item["valid_to"] for item in seen[1:]] == [item["valid_from"] for item in seen[:-1]]
    assert client.get(f"{url}/versions", params={"cursor": "x"}).status_code == 422


def test_what_changed_is_said_in_words(client: TestClient, url: str) -> None:
    client.put(url, json=topology())
    renumbered = topology("host-f")
    renumbered["gpus"][0]["device"], renumbered["gpus"][1]["device"] = "GPU-1", "GPU-0"
    renumbered["gpus"][0]["nic"], renumbered["gpus"][1]["nic"] = "mlx5_1", "mlx5_0"
    client.put(url, json=renumbered)
    found = client.get(f"{url}/diff", params={"from": 1, "to": 2}).json()
    assert (found["from_version"], found["to_version"]) == (1, 2)
    assert [(c["kind"], c["text"]) for c in found["changes"]] == [
        ("renumbered", "device GPU-1 is now rank 0 (was 1)"),
        ("renumbered", "device GPU-0 is now rank 1 (was 0)"),
        ("moved", "rank 7 (GPU-7) moved from host-1 to host-f; NIC mlx5_3 replaced by mlx5_9"),
    ]
    assert found["ranks"] == [1, 0, 2, 3, 4, 5, 6, 7]
    assert found["unchanged"] == [0, 1, 2, 3, 4, 5, 6]
    assert client.get(f"{url}/diff", params={"from": 2, "to": 2}).json()["changes"] == []
    assert client.get(f"{url}/diff", params={"from": 1, "to": 3}).status_code == 404
    assert client.get(f"{url}/diff", params={"from": 1}).status_code == 422


def test_racks_and_tiers_make_versions_too(client: TestClient, url: str) -> None:
    client.put(url, json=topology())
    racked = topology()
    for gpu in racked["gpus"]:
        gpu |= {"leaf": "leaf-0", "rack": gpu["host"]}
    assert client.put(url, json=racked).json()["version"] == 2
    tiered = client.put(url, json={**racked, "parents": {"leaf-0": "spine-0"}}).json()
    assert (tiered["version"], tiered["parents"]) == (3, {"leaf-0": "spine-0"})
    assert client.put(url, json={**racked, "parents": {"leaf-0": "spine-0"}}).json()["version"] == 3
    found = client.get(f"{url}/diff", params={"from": 2, "to": 3}).json()
    assert [c["text"] for c in found["changes"]] == ["switch leaf-0 is now under spine-0 (was under none)"]
    assert found["unchanged"] == []


def test_another_spelling_is_kept_as_it_was_sent_and_is_no_change(client: TestClient, url: str) -> None:
    client.put(url, json=topology())
    spelt = topology()
    for gpu in spelt["gpus"]:
        gpu["device"] = gpu["device"].lower()
    stored = client.put(url, json=spelt).json()
    assert (stored["version"], [gpu["device"] for gpu in stored["gpus"]]) == (2, [f"gpu-{r}" for r in range(8)])
    assert client.put(url, json=spelt).json()["version"] == 2
    assert client.get(url, params={"version": 1}).json()["gpus"][0]["device"] == "GPU-0"
    found = client.get(f"{url}/diff", params={"from": 1, "to": 2}).json()
    assert (found["changes"], found["ranks"], found["unchanged"]) == ([], list(range(8)), list(range(8)))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"parents": {"leaf-0": "a", "a": "leaf-0"}}, "body.parents.leaf-0"),
        ({"parents": {"leaf-7": "a"}}, "body.parents.leaf-7"),
        ({"gpus.6.device": "GPU-0"}, "body.gpus.6.device"),
        ({"gpus.6.rank": 3}, "body.gpus.6.rank"),
        ({"gpus.6.shelf": "x"}, "body.gpus.6.shelf"),
    ],
)
def test_what_is_refused_names_its_field(client: TestClient, url: str, change: dict[str, Any], field: str) -> None:
    document = topology()
    document["gpus"][0]["leaf"] = "leaf-0"
    for path, value in change.items():
        if path == "parents":
            document[path] = value
        else:
            _, index, name = path.split(".")
            document["gpus"][int(index)][name] = value
    refused = client.put(url, json=document)
    assert refused.status_code == 422
    assert field in [error["field"] for error in refused.json()["errors"]]
    assert client.get(f"{url}/versions").json()["items"] == []


def test_a_version_stored_with_nulls_is_no_other(
    client: TestClient, url: str, replica_id: str, db: Session
) -> None:
    """Earlier releases stored what was not stated as null."""
    old = [{"rail": None, "leaf": None, **gpu} for gpu in topology()["gpus"]]
    _insert(db, replica_id, {"gpus": old}, versions=1)
    assert client.put(url, json=topology()).json()["version"] == 1
    assert client.get(url).json()["gpus"][3]["rail"] is None
    assert client.put(url, json=topology("host-z")).json()["version"] == 2


def test_a_clock_that_was_set_back_makes_no_gap(
    client: TestClient, url: str, replica_id: str, db: Session
) -> None:
    _insert(db, replica_id, topology(), versions=1, start=dt.datetime.now(dt.UTC) + HOUR)
    created = client.put(url, json=topology("host-z")).json()
    first = client.get(url, params={"version": 1}).json()
    assert first["valid_from"] < first["valid_to"] == created["valid_from"]
    assert client.get(url, params={"at": first["valid_from"]}).json()["version"] == 1


def test_a_thousand_versions_of_512_gpus_are_one_indexed_query(
    client: TestClient, url: str, replica_id: str, db: Session, engine: Engine
) -> None:
    _insert(db, replica_id, layout(512, 64).document(), versions=1000)
    wanted = START + 617 * HOUR + HOUR / 2
    with statements(engine) as seen:
        found = client.get(url, params={"at": wanted.isoformat()}).json()
    assert (found["version"], len(found["gpus"])) == (618, 512)
    asked = [(sql, parameters) for sql, parameters in seen if "topology_versions" in sql]
    assert len(asked) == 1
    statement, parameters = asked[0]
    db.execute(text("ANALYZE topology_versions"))
    plan = db.connection().exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar()
    assert plan is not None
    scan = plan[0]["Plan"]["Plans"][0]
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "ix_topology_versions_replica_id_valid_from")
    assert (scan["Scan Direction"], scan["Actual Rows"]) == ("Backward", 1)


def test_lists_do_not_load_documents(replica_id: str, db: Session, engine: Engine) -> None:
    _insert(db, replica_id, topology(), versions=3)
    with statements(engine) as seen:
        spans = repository.page(db, uuid.UUID(replica_id), limit=2, before=None)
    assert [span.version for span in spans] == [3, 2, 1]
    assert not any("document" in sql for sql, _ in seen)


def _insert(
    db: Session, replica_id: str, document: dict[str, Any], *, versions: int, start: dt.datetime = START
) -> None:
    """Versions of one document, each for an hour; the last one holds."""
    db.execute(
        text(
            "INSERT INTO topology_versions (replica_id, version, document, valid_from, valid_to)"
            " SELECT :id, n, CAST(:document AS jsonb), :start + (n - 1) * interval '1 hour',"
            " CASE WHEN n < :versions THEN :start + n * interval '1 hour' END FROM generate_series(1, :versions) n"
        ),
        {"id": replica_id, "document": json.dumps(document), "start": start, "versions": versions},
    )
    db.commit()
