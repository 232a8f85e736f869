"""``POST /analyses``: the command's answer over HTTP, refusals that name the place, nothing stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.analyzing.schemas import MATRIX
from app.analyzing.service import analyze
from tests.cli.support import run
from tests.replicas.test_replicas import GOOD

CASES = Path(__file__).parents[1] / "data" / "cases"


def post(client: TestClient, text: str, **more: Any) -> httpx.Response:
    return client.post("/analyses", json={"text": text, **more})


@pytest.mark.parametrize(
    "case", ["01-deepxtrace-ep16-wait/matrix.txt", "11-p2p-9gpu-healthy-no-header/matrix.txt"]
)
def test_it_answers_as_the_command_does(client: TestClient, case: str) -> None:
    answer = post(client, (CASES / case).read_text())
    assert answer.status_code == 200, answer.text
    assert answer.json() == run("analyze", CASES / case, "--json").document


def test_the_example_names_the_slow_path(client: TestClient) -> None:
    (suspect,) = post(client, MATRIX).json()["suspects"]
    assert (suspect["kind"], suspect["members"]) == ("path", [2, 3])


def test_the_replicas_topology_tells_the_hop_classes(client: TestClient) -> None:
    """Two hosts, between which everything takes three times as long: no fault once it is known."""
    hosts = [0, 0, 0, 1, 1, 1, 1, 1]
    rows = [
        ",".join([str(u), *("" if u == v else "30" if hosts[u] != hosts[v] else "10" for v in range(8))])
        for u in range(8)
    ]
    text = "\n".join([",".join(["latency_us", *map(str, range(8))]), *rows]) + "\n"
    replica = client.post("/replicas", json=GOOD).json()
    refused = post(client, text, replica_id=replica["id"])
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "body.replica_id")
    topology = {"gpus": [{"rank": rank, "host": f"host-{host}"} for rank, host in enumerate(hosts)]}
    assert client.put(replica["links"]["topology"], json=topology).status_code == 200
    for more in ({"replica_id": replica["id"]}, {"topology": topology}):
        answer = post(client, text, **more).json()
        assert (answer["outcome"], answer["suspects"]) == ("healthy", [])
    both = post(client, text, replica_id=replica["id"], topology=topology)
    assert both.status_code == 422


def test_the_topologys_leaves_tell_what_they_share(client: TestClient) -> None:
    """Everything to and from the ranks under one leaf is slow, but not between them."""
    leaves = [0, 0, 1, 1, 2, 2, 3, 3]
    rows = [
        ",".join(
            [str(u), *("" if u == v else "30" if (leaves[u] == 1) != (leaves[v] == 1) else "10" for v in range(8))]
        )
        for u in range(8)
    ]
    text = "\n".join([",".join(["latency_us", *map(str, range(8))]), *rows]) + "\n"
    replica = client.post("/replicas", json=GOOD).json()
    gpus = [{"rank": rank, "host": f"host-{rank}", "leaf": f"leaf-{leaf}"} for rank, leaf in enumerate(leaves)]
    topology = {"gpus": gpus, "parents": {f"leaf-{leaf}": "spine" for leaf in range(4)}}
    assert client.put(replica["links"]["topology"], json=topology).status_code == 200
    for more in ({"replica_id": replica["id"]}, {"topology": topology}):
        answer = post(client, text, **more).json()
        (suspect,) = answer["suspects"]
        assert (suspect["kind"], suspect["members"], suspect["name"]) == ("group", [2, 3], "leaf leaf-1 {2,3}")
        assert any(reason["code"] == "shared_part" for reason in answer["reasons"])


@pytest.mark.parametrize(
    ("text", "more", "code", "field"),
    [
        ("latency_us,0,1\n0,,nan\n1,3,\n", {}, None, "body.text"),
        ("what is this\n", {}, "unknown_format", "body.text"),
        ('{"seq": 1, "type": "settings"}\nbroken\n', {"kind": "job-log"}, "broken_log", "body.text"),
        ("", {}, "invalid_request", "body.text"),
        (MATRIX, {"kind": 3}, "invalid_request", "body.kind"),
        (MATRIX, {"kind": "made-up"}, "unknown_kind", "body.kind"),
        (r'{"kind": "\ud800"}', {}, "broken_json", "body.text"),
        (MATRIX, {"colour": "red"}, "invalid_request", "body.colour"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    client: TestClient, text: str, more: dict[str, Any], code: str | None, field: str
) -> None:
    refused = post(client, text, **more)
    problem = refused.json()
    assert (refused.status_code, problem["errors"][0]["field"]) == (422, field), problem
    assert code is None or problem["code"] == code
    assert "line 2" in problem["detail"] or not text.startswith("latency_us,0,1\n0,,nan")


def test_a_job_log_is_replayed() -> None:
    from app.localization.components import gpu
    from app.localization.events import Event, dump_log
    from tests.localization.adaptive.sessions import adaptive, noise_free

    settings = adaptive(8)
    found = noise_free(settings, [gpu(3)])
    log = [
        Event("settings", settings.to_dict()),
        *found.events,
        Event("verdict", {"verdict": found.verdict.to_dict()}),
    ]
    answer = analyze("\n".join(dump_log(log)))
    assert (answer.format, answer.outcome) == ("job-log", "localized")
    assert [suspect.members for suspect in answer.suspects] == [[3]]
    assert json.loads(json.dumps(answer.to_dict()))["suspects"][0]["name"] == "gpu 3"
