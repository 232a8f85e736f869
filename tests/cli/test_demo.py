"""The demo as a process of its own: the last line is the contract's document, the status says whether it fits."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from app.cli.demo import expected_names
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
