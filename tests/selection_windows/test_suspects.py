"""A rail that failed and what the last job accuses, at the same NICs."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from app.jobs.models import JobVerdict
from app.selection_windows.models import SelectionWindow
from tests.replicas.test_replicas import GOOD, topology
from tests.selection.support import counters
from tests.selection_windows.test_windows import UPLOAD, N

# What arrives at mlx5_5 from mlx5_1 is half of what was selected; the other rail passes.
FAILED = {**UPLOAD, "after": counters({0: N, 1: N}, {4: N, 5: N // 2})}


def with_nics() -> dict[str, Any]:
    """Two GPUs a NIC: ranks 0, 1 at host-0/mlx5_0, ranks 2, 3 at host-0/mlx5_1, and so on host-1."""
    document = topology()
    for gpu in document["gpus"]:
        gpu["nic"] = f"mlx5_{gpu['rank'] % 4 // 2}"
    return document


@pytest.fixture
def replica(client: TestClient) -> str:
    url: str = client.post("/replicas", json=GOOD).headers["Location"]
    assert client.put(f"{url}/topology", json=with_nics()).status_code == 200
    return url


def verdict(client: TestClient, db: Session, replica: str, *suspects: tuple[str, list[int]]) -> str:
    """The verdict of a job that a worker has not taken, as if one had."""
    job: str = client.post(f"{replica}/localize", json={}).json()["id"]
    document = {"suspects": [{"kind": kind, "members": members} for kind, members in suspects]}
    db.add(JobVerdict(job_id=uuid.UUID(job), outcome="localized", baseline_ms=None, document=document))
    db.commit()
    return job


def test_what_sits_at_a_rail_that_failed_is_shown_with_it(client: TestClient, db: Session, replica: str) -> None:
    elsewhere = ("group", [0, 1]), ("path", [2, 3]), ("group", [1, 2])
    job = verdict(client, db, replica, ("group", [2, 3]), ("gpu", [7]), *elsewhere)
    window = client.post(f"{replica}/selection-windows", json=FAILED).json()
    nic = {"job_id": job, "kind": "group", "members": [2, 3], "rails": ["mlx5_1"], "nics": ["host-0/mlx5_1"]}
    gpu = {"job_id": job, "kind": "gpu", "members": [7], "rails": ["mlx5_1"], "nics": ["host-1/mlx5_1"]}
    assert window["suspects"] == [nic, gpu]
    assert client.get(window["links"]["self"]).json() == window
    assert client.get(f"{replica}/selection-windows").json()["items"] == [window]


def test_what_sits_at_a_remote_of_a_mesh_is_shown_with_the_rail(
    client: TestClient, db: Session, replica: str
) -> None:
    document = with_nics()
    for gpu in document["gpus"]:
        gpu["nic"] = f"mlx5_{4 + gpu['rank'] % 4 // 2}"
    assert client.put(f"{replica}/topology", json=document).status_code == 200
    mesh = {"all": [{"local": a, "remote": b} for a in ("mlx5_0", "mlx5_1") for b in ("mlx5_4", "mlx5_5")]}
    verdict(client, db, replica, ("group", [2, 3]))
    window = client.post(f"{replica}/selection-windows", json={**FAILED, "rails": mesh}).json()
    assert [(rail["remote"], rail["result"]) for rail in window["rails"]] == [("mlx5_4+mlx5_5", "fail")] * 2
    assert [suspect["nics"] for suspect in window["suspects"]] == [["host-0/mlx5_5"]]
    stored = db.get(SelectionWindow, uuid.UUID(window["id"]))
    assert stored is not None
    older = [{name: rail[name] for name in rail if name != "remotes"} for rail in stored.judgement["rails"]]
    stored.judgement = {**stored.judgement, "rails": older}
    db.commit()
    assert client.get(window["links"]["self"]).json() == window


def test_rails_that_passed_have_no_suspects(client: TestClient, db: Session, replica: str) -> None:
    verdict(client, db, replica, ("group", [2, 3]))
    assert client.post(f"{replica}/selection-windows", json=UPLOAD).json()["suspects"] == []


def test_nothing_is_joined_across_topologies(client: TestClient, db: Session, replica: str) -> None:
    verdict(client, db, replica, ("group", [2, 3]))
    changed = with_nics()
    changed["gpus"][2]["device"] = "another"
    assert client.put(f"{replica}/topology", json=changed).status_code == 200
    assert client.post(f"{replica}/selection-windows", json=FAILED).json()["suspects"] == []


def test_without_nics_or_a_verdict_there_is_nothing_to_join(client: TestClient, db: Session) -> None:
    url = client.post("/replicas", json=GOOD).headers["Location"]
    assert client.post(f"{url}/selection-windows", json=FAILED).json()["suspects"] == []
    assert client.put(f"{url}/topology", json=topology()).status_code == 200
    verdict(client, db, url, ("group", [2, 3]))
    assert client.post(f"{url}/selection-windows", json=FAILED).json()["suspects"] == []
