"""Every public case, from its normalised numbers and from what was pasted, against the verdict of its source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.analyses import Analysis, UnreadableInput, analyze

CASES = Path(__file__).parents[1] / "data" / "cases"
KINDS = {"vertex": "gpu", "edge": "path", "group": "group"}
#: Texts that show another state than the case's expected one, or hold no measurement, or only a part of it.
ELSEWHERE = {
    "22-nic-bidir-8-ok-and-two-hosts-low/cxibwcheck-low.txt": ("inconclusive", []),
    "63-p2p-8gpu-uplinks-degraded/baseline-matrix.txt": ("none", []),
    "63-p2p-8gpu-uplinks-degraded/topo.txt": ("inconclusive", []),
    "65-root-port-four-lanes/topo.txt": ("inconclusive", []),
    "12-nccl-pairs-five/nccl-tests.txt": ("inconclusive", []),
    # The steps name a stage and a data-parallel number, not the global rank.
    "28-pipeline-one-worker-slow/steps.csv": ("vertex", ["stage 0 dp_rank 0"]),
}
PROSE = CASES / "49-nic-half-idle-unknown" / "port-counters.txt"

NORMALISED = sorted(CASES.glob("*/normalised.json"))
PASTED = sorted(p for p in CASES.glob("*/*") if p.suffix in {".txt", ".csv", ".md"} and p != PROSE)


def _expected(case: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((case / "normalised.json").read_text(encoding="utf-8"))["expected"]
    return document


def _plain(name: object) -> str:
    """``rank 4``, ``node 4`` and 4 are one name; a NIC with and without its host, too."""
    return re.sub(r"^(rank|node) ", "", str(name)).rpartition(":")[2]


def _agrees(answer: Analysis, verdict: str, suspects: list[str]) -> bool:
    if verdict in {"none", "inconclusive"}:
        return not answer.suspects and answer.outcome != "localized"
    if {s.kind for s in answer.suspects} != {KINDS[verdict]}:
        return False
    names = {_plain(s.name) for s in answer.suspects}
    return names == {_plain(name) for name in suspects}


def _check(answer: Analysis, verdict: str, suspects: list[str], also: list[str]) -> None:
    got = f"{answer.outcome} {[s.name for s in answer.suspects]}"
    wanted = f"{verdict} {suspects}, or {also}"
    fine = _agrees(answer, verdict, suspects) or any(_agrees(answer, other, []) for other in also)
    assert fine, f"expected {wanted}; got {got}"


def test_all_cases_are_there() -> None:
    assert len(NORMALISED) == 36
    assert len(PASTED) >= 40


@pytest.mark.parametrize("path", NORMALISED, ids=lambda p: p.parent.name)
def test_normalised(path: Path) -> None:
    expected = _expected(path.parent)
    answer = analyze(path.read_text(encoding="utf-8"))
    _check(answer, expected["verdict"], expected["suspects"], expected.get("also_acceptable", []))


@pytest.mark.parametrize("path", PASTED, ids=lambda p: f"{p.parent.name[:2]}-{p.name}")
def test_pasted(path: Path) -> None:
    expected = _expected(path.parent)
    default = expected["verdict"], expected["suspects"]
    if path.name == "topo.txt":
        default = "inconclusive", []
    verdict, suspects = ELSEWHERE.get(f"{path.parent.name}/{path.name}", default)
    answer = analyze(path.read_text(encoding="utf-8"))
    _check(answer, verdict, suspects, expected.get("also_acceptable", []))


def test_the_strongest_answers_are_not_all_inconclusive() -> None:
    """Where the source names somebody and the numbers suffice, so do we: inconclusive is not a way out."""
    named = [p for p in NORMALISED if _expected(p.parent)["verdict"] in KINDS]
    found = [p.parent.name for p in named if analyze(p.read_text(encoding="utf-8")).suspects]
    assert len(named) - len(found) <= 1, sorted({p.parent.name for p in named} - set(found))


def test_prose_is_refused() -> None:
    with pytest.raises(UnreadableInput) as refused:
        analyze(PROSE.read_text(encoding="utf-8"))
    assert refused.value.code == "unknown_format"
