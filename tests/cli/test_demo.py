"""The demo as a process of its own: the last line is the contract's document, the status says whether it fits."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.localization.expectation import expected_names
from app.localization.faults import parse_faults
from tests.cli.support import finish, refused, run, start

DEMO = ("demo", "--gpus", 8, "--hosts", 2, "--json")
KEYS = ["job", "verdict", "expected", "match", "probes", "seconds"]


def demo(*words: object) -> tuple[int, list[str], dict[str, Any]]:
    outcome = finish(start(*DEMO, *words))
    assert "Traceback" not in outcome.err
    *lines, last = outcome.out.splitlines()
    return outcome.status, lines, json.loads(last)


@pytest.mark.slow  # it measures: not beside other tests
def test_demo_finds_what_it_injects() -> None:
    status, lines, result = demo("--fault", "gpu:1*4")
    assert status == 0, lines
    assert list(result) == KEYS
    assert (result["expected"], result["match"]) == (["gpu:1"], True)
    assert result["verdict"]["outcome"] == "localized"
    assert [(s["kind"], s["members"]) for s in result["verdict"]["suspects"]] == [("gpu", [1])]
    assert result["probes"] == result["verdict"]["cost"]["probes"] > 0
    assert result["seconds"] > 0
    assert any(line.lstrip().startswith("gpu:1 ") for line in lines), "the evidence is shown"


@pytest.mark.slow
def test_demo_admits_what_it_did_not_find() -> None:
    """One per cent on one path is below what any probe can show."""
    status, lines, result = demo("--fault", "path:0-1*1.01")
    assert status == 1
    assert list(result) == KEYS
    assert (result["expected"], result["match"]) == (["path:0-1"], False)
    assert result["verdict"]["suspects"] == []
    assert "expected path:0-1; a fault below what the job could see" in lines[-1]


@pytest.mark.slow
def test_demo_reports_a_hang_as_one() -> None:
    status, _, result = demo("--fault", "gpu:6!hang")
    assert status == 0
    assert (result["expected"], result["match"]) == ([], True)
    assert "engine_hung" in {reason["code"] for reason in result["verdict"]["reasons"]}


@pytest.mark.slow
def test_demo_refuses_what_the_service_refuses() -> None:
    outcome = finish(start(*DEMO, "--k", 1))
    assert outcome.status == 2
    assert outcome.err.splitlines()[-1].startswith("faultsense: body.k")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("faults", "selectable", "expected"),
    [
        (["gpu:5*2", "path:3-17*4"], True, ["gpu:5", "path:3-17"]),
        (["gpu:5*2", "path:3-17*4"], False, ["gpu:5"]),
        (["gpu:5*2", "path:3>5+20ms"], True, ["gpu:5"]),
        (["path:17>3+20ms"], True, ["path:3-17"]),
        (["gpu:5*2", "gpu:6!hang"], True, []),
        ([], True, []),
    ],
)
def test_what_a_right_verdict_names(faults: list[str], selectable: bool, expected: list[str]) -> None:
    assert expected_names(list(parse_faults(faults)), selectable=selectable) == expected


@pytest.mark.slow
def test_demo_says_that_a_shared_part_is_not_what_the_threshold_names() -> None:
    """The NIC of one GPU, many times slower: the two phases blame the GPU, which is no match."""
    status, lines, result = demo("--fault", "nic:host-a/0*40", "--strategy", "faultsense")
    assert status == 1
    assert (result["expected"], result["match"]) == (["nic:host-a/0"], False)
    assert lines[-1].startswith("expected nic:host-a/0; ")


@pytest.mark.slow
def test_demo_finds_the_nic_of_a_gpu() -> None:
    status, _, result = demo("--fault", "nic:host-a/0*40")
    assert (status, result["expected"], result["match"]) == (0, ["nic:host-a/0"], True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--fault", "nic:host-z/0*3"), "it has host-a/0, host-a/1"),
        (("--fault", "spine:1*3"), "host:host-b*2"),
        (("--fault", "switch:1*3"), "the topology states no switch above leaves"),
        (("--fault", "gpu:8*3"), "ranks go from 0 to 7"),
        (("--gpus-per-host", 4), "give --hosts or --gpus-per-host"),
        (("--leaves", 3), "leaves: must be 1 to 2"),
        (("--production-load", 9), "production.load"),
        (("--gpus", 513, "--fault", "none"), "gpus"),
    ],
)
def test_demo_refuses_before_it_starts_anything(words: tuple[object, ...], expected: str) -> None:
    refused(run("demo", "--gpus", 8, "--hosts", 2, *words), expected)


def test_emulate_serves_a_topology_file_with_a_production_server(tmp_path: Path) -> None:
    places = [{"rank": r, "host": f"node{r // 2}", "nic": "mlx5_0", "leaf": str(r // 4)} for r in range(8)]
    path = tmp_path / "topology.json"
    path.write_text(json.dumps({"gpus": places[::-1]}))
    words = ("--gpus", 8, "--topology", path, "--fault", "nic:node1/mlx5_0*3@0.5", "--production-load", 0.2)
    process = start("emulate", *words, "--path-ms", "cross_leaf=2", "--port", 0)
    try:
        assert process.stdout is not None
        document = json.loads(process.stdout.readline())
        (probe,), (production,) = document["probe_endpoints"], document["production_endpoints"]
        with httpx.Client(trust_env=False, timeout=20.0) as client:
            assert client.get(f"{probe['url']}/emulator/topology").json() == {"gpus": places}
            assert client.get(f"{probe['url']}/emulator/faults").json() == {"faults": ["nic:node1/mlx5_0*3@0.5"]}
            assert client.get(f"{production['url']}/v1/models").json()["data"][0]["id"] == "production"
    finally:
        process.send_signal(signal.SIGINT)
        outcome = finish(process)
    assert (outcome.status, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("{", "Invalid JSON"),
        ('{"gpus": [{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}]}', "has 2 GPUs, not 4"),
        ('{"gpus": [{"rank": 0, "host": "a"}, {"rank": 0, "host": "b"}]}', "exactly once"),
        (r'{"gpus": [{"rank": 0, "host": "a\u0007"}, {"rank": 1, "host": "b"}]}', "printable"),
        (" " * (2**20 + 1), "larger than 1048576 bytes"),
    ],
    ids=["missing", "broken", "other size", "twice", "control", "large"],
)
def test_topology_files_that_are_none_are_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "topology.json"
    if content is not None:
        path.write_text(content)
    refused(run("emulate", "--gpus", 4, "--topology", path), words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--path-ms", "cross_leaf"), "cross_leaf=1.5"),
        (("--path-ms", "cross_sea=2"), "path_ms"),
        (("--topology", "x.json", "--hosts", 2), "leave --hosts"),
        (("--gpus-per-host", 3), "must divide the 4 GPUs"),
        (("--hosts", 5), "hosts: must be 1 to 4"),
        (("--hosts", 2, "--fault", "rail:2*2"), "it has 0, 1"),
    ],
)
def test_emulate_refuses(words: tuple[object, ...], expected: str) -> None:
    refused(run("emulate", "--gpus", 4, *words), expected)


def test_emulate_prints_the_document_to_register_and_stops_at_ctrl_c() -> None:
    process = start("emulate", "--gpus", 4, "--hosts", 2, "--fault", "gpu:1*2", "--port", 0)
    try:
        assert process.stdout is not None
        document = json.loads(process.stdout.readline())
        assert list(document) == ["name", "gpus", "probe_endpoints", "manifest", "layout", "limits"]
        (endpoint,) = document["probe_endpoints"]
        port = endpoint["url"].rpartition(":")[2]
        refused(run("emulate", "--gpus", 4, "--hosts", 2, "--port", port), f"ports from {port}")
    finally:
        process.send_signal(signal.SIGINT)
        outcome = finish(process)
    assert (outcome.status, outcome.err) == (0, "")
