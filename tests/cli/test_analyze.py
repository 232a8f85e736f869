"""``faultsense analyze``: one contract for every format; refusals are problem documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app.localization.events import Event, dump_log, failed
from app.localization.probes import Probe
from app.localization.session import Session
from app.localization.settings import Settings
from app.localization.verdict import Verdict
from tests.cli.support import log_lines, refused, run

CASES = Path(__file__).parents[1] / "data" / "cases"


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str | bytes, name: str = "input.txt") -> Path:
        file = tmp_path / name
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    return _write


def test_contract() -> None:
    result = run("analyze", CASES / "01-deepxtrace-ep16-wait" / "matrix.txt", "--json")
    assert (result.status, result.err) == (0, "")
    document = result.document
    assert document.keys() == {"format", "outcome", "suspects", "reasons"}
    assert (document["format"], document["outcome"]) == ("deepxtrace", "localized")
    (suspect,) = document["suspects"]
    assert (suspect["kind"], suspect["members"]) == ("gpu", [4])
    assert suspect["slowdown"] is None  # waits hold how late it is, not how slow
    assert all(reason.keys() == {"code", "text"} for reason in document["reasons"])


def test_in_words() -> None:
    words = run("analyze", CASES / "21-nic-loopback-one-low" / "bwcheck.txt").out
    assert words.splitlines()[:2] == ["localized (nic-check)", "  host-a:mlx5_1: 2.01x slower"]
    words = run("analyze", CASES / "52-ib-port-two-stuck" / "ports.csv").out
    assert "  mlx5_6: failed\n" in words
    words = run("analyze", CASES / "54-nvlink-two-inactive" / "nvlink.txt").out
    assert words.count(": failed\n") == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "rank,barrier_wait_ms\n" + "".join(f"{rank},{1 if rank == 2 else 20}\n" for rank in range(5)),
            "waits_least",
        ),
        ("local_nic,errors\nn4,0\nn5,1500\nn6,0\n", "errors_at_one_port"),
        (
            "rank,busbw GB/s\n" + "".join(f"{rank},{0 if rank == 2 else 20}\n" for rank in range(5)),
            "measured_zero",
        ),
    ],
)
def test_a_suspect_whose_slowdown_has_no_figure_has_not_failed(write: Write, text: str, reason: str) -> None:
    words = run("analyze", write(text)).out.splitlines()
    assert words[0].startswith("localized")
    assert words[1] in {"  rank 2", "  n5"}
    assert words[2].startswith(f"  {reason}: ")


def test_a_refusal_is_a_problem_document(write: Write) -> None:
    file = write("us,0,1,2\n0,1,2,3\n1,2,nan,3\n2,1,2,3\n")
    result = run("analyze", file, "--json")
    assert (result.status, result.out) == (2, "")
    problem = json.loads(result.err)
    assert problem["type"] == "urn:faultsense:problem:bad_number"
    assert (problem["status"], problem["errors"][0]["field"]) == (422, "line 3, column 3")
    refused(run("analyze", file), "line 3, column 3: ", "'nan' is no number")


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\xff\xfe\x00", "unknown_format"), (b"", "unknown_format"), (b"1 " * (21 * 2**20), "too_large")],
)
def test_files_that_are_no_measurement(write: Write, data: bytes, code: str) -> None:
    result = run("analyze", write(data), "--json")
    assert (result.status, json.loads(result.err)["code"]) == (2, code)


def test_the_file_that_is_no_text_is_named(write: Write) -> None:
    matrix, latin = (
        write("us,0,1\n0,1,2\n1,2,1\n"),
        write("[{'host': 'h\u00f6st'}]".encode("latin-1"), "places.json"),
    )
    refused(run("analyze", matrix, "--topology", latin), "places.json, byte 12: ", "no UTF-8")
    assert json.loads(run("analyze", latin, "--json").err)["errors"][0]["field"] == "places.json, byte 12"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = run("analyze", tmp_path / "absent", "--json")
    assert (result.status, json.loads(result.err)["code"]) == (2, "unreadable_file")


def test_a_topology_and_a_kind(write: Write) -> None:
    rows = "\n".join(",".join("1" if i // 4 == j // 4 else "9" for j in range(8)) for i in range(8))
    matrix = write(rows, "bare.csv")
    places = write(json.dumps([{"rank": r, "host": f"host-{r // 4}"} for r in range(8)]), "places.json")
    assert run("analyze", matrix, "--json").status == 2
    alone = run("analyze", matrix, "--kind", "latency-matrix", "--json").document
    placed = run("analyze", matrix, "--kind", "latency-matrix", "--topology", places, "--json").document
    assert (alone["outcome"], placed["outcome"]) == ("inconclusive", "healthy")


def test_what_an_import_prints_is_taken_and_its_leaves_count(write: Write) -> None:
    lines = [f"{r},host-{r},leaf-{r // 2}" for r in range(8)]
    imported = run("topology", "import", write("\n".join(["rank,host,leaf", *lines]), "places.csv"), "--json")
    topology = write(imported.out, "places.json")
    far = [[(i // 2 == 1) != (j // 2 == 1) for j in range(8)] for i in range(8)]
    matrix = write("\n".join(",".join("30" if slow else "10" for slow in row) for row in far), "bare.csv")
    answer = run("analyze", matrix, "--kind", "latency-matrix", "--topology", topology, "--json").document
    assert [(s["kind"], s["members"], s["slowdown"]) for s in answer["suspects"]] == [("group", [2, 3], 3.0)]
    cycle = write(json.dumps(json.loads(imported.out) | {"parents": {"leaf-1": "leaf-1"}}), "cycle.json")
    refusal = run("analyze", matrix, "--kind", "latency-matrix", "--topology", cycle, "--json")
    assert (refusal.status, json.loads(refusal.err)["errors"][0]["field"]) == (2, "topology.parents.leaf-1")


def test_a_rank_that_refused_its_probe_has_failed(write: Write) -> None:
    settings = Settings(gpus=8, k=4, repeats=1)
    session = Session(settings)
    probe = session.next()
    assert isinstance(probe, Probe)
    refusal = failed(probe, code="rank_refused", detail="refused", rank=3)
    session.observe(refusal)
    verdict = session.next()
    assert isinstance(verdict, Verdict)
    log = [Event("settings", settings.to_dict()), refusal, Event("verdict", {"verdict": verdict.to_dict()})]
    words = run("analyze", write("\n".join(dump_log(log)))).out
    assert words.splitlines()[1] == "  gpu 3: failed"


def test_a_log_of_our_own_is_replayed(write: Write) -> None:
    lines = log_lines(slow=(3,))
    answer = run("analyze", write("\n".join(lines)), "--json").document
    assert (answer["format"], answer["outcome"]) == ("job-log", "localized")
    assert [(s["kind"], s["members"], s["name"]) for s in answer["suspects"]] == [("gpu", [3], "gpu 3")]
    broken = run("analyze", write("\n".join([*lines[:2], "{", *lines[2:]])), "--json")
    assert (broken.status, json.loads(broken.err)["code"]) == (2, "broken_log")
