"""``faultsense selection judge``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.output import MAX_INPUT_BYTES
from tests.cli.support import Outcome, refused, run
from tests.selection.support import IDLE, MIB, RAILS, counters, lines, record, target

N = 100 * MIB


class Files:
    """The four files of a run; any of them may be written anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("records", lines(record({0: N, 1: N}), target(2 * N)))
        self.write("rails", RAILS)
        self.write("before", IDLE)
        self.write("after", counters({0: N, 1: N}, {4: N, 5: N}))

    def write(self, name: str, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text, encoding="utf-8")

    def judge(self, *words: object, unit: str = "bytes") -> Outcome:
        named = (w for name in ("records", "rails", "before", "after") for w in (f"--{name}", self.folder / name))
        return run("selection", "judge", *named, "--unit", unit, *words)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_contract(files: Files) -> None:
    result = files.judge("--json")
    assert (result.status, result.err) == (0, "")
    document = result.document
    assert document["result"] == "pass"
    assert document["rails"][0] == {
        "local": "mlx5_0",
        "remote": "mlx5_4",
        "selected_bytes": N,
        "source_wire_bytes": N,
        "target_wire_bytes": N,
        "result": "pass",
        "reason": f"source mlx5_0: {N} wire bytes are 1.000 of {N} selected;"
        f" target mlx5_4: {N} wire bytes are 1.000 of {N} selected",
    }
    assert document["distribution"]["shares"] == {"mlx5_0": 0.5, "mlx5_1": 0.5}


@pytest.mark.parametrize(
    ("after", "result"), [(counters({0: N, 1: 2 * N}, {4: N, 5: N}), "fail"), (IDLE, "inconclusive")]
)
def test_fail_and_inconclusive_are_answers_too(files: Files, after: Any, result: str) -> None:
    files.write("after", after)
    found = files.judge("--json")
    assert (found.status, found.document["result"]) == (0, result)


def test_the_unit_counts(files: Files) -> None:
    files.write("after", counters({0: N // 4, 1: N // 4}, {4: N // 4, 5: N // 4}))
    assert files.judge("--json", unit="words4").document["result"] == "pass"


def test_in_words(files: Files) -> None:
    files.write("after", counters({0: N, 1: N}, {4: N, 5: N // 2}))
    words = files.judge().out.splitlines()
    assert words[0] == "fail: bytes were not where they were selected"
    assert words[2].startswith("  fail         mlx5_1 -> mlx5_5: target mlx5_5: ")
    assert words[-1] == ("selected, not wire: even (mlx5_0 50.0 %, mlx5_1 50.0 %; max/mean 1.00, Gini 0.00)")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("records", "{}\n", ("records", "line 1", "schema_version")),
        ("records", lines(record({0: N})) + "{broken\n", ("records", "line 2", "not JSON")),
        ("records", "", ("records", "no record")),
        ("rails", "", ("rails", "is empty")),
        ("rails", {"all": [{"local": "mlx5_9", "remote": "mlx5_4"}]}, ("unknown local device mlx5_9",)),
        ("before", "", ("before", "names no port")),
        ("after", {"source": {"mlx5_0": {"port_xmit_data": -1}}}, ("after", "port_xmit_data", "whole number")),
    ],
)
def test_refused_with_the_file_and_the_place(
    files: Files, name: str, content: Any, words: tuple[str, ...]
) -> None:
    files.write(name, content)
    refused(files.judge(), *words)
    outcome = files.judge("--json")
    assert (outcome.status, outcome.out) == (2, "")
    problem = json.loads(outcome.err)
    assert problem["code"] == "unreadable_selection"
    assert all(word in problem["detail"] for word in words)


def test_refused_without_unit_or_file(files: Files) -> None:
    refused(files.judge(unit="words"), "unit: must be words4 or bytes")
    (files.folder / "after").write_bytes(b"\xff\xfe")
    refused(files.judge(), "after: is not UTF-8")
    (files.folder / "after").unlink()
    refused(files.judge(), "after: No such file")


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("records", lines(record({0: N}), record({0: N}, block_size="1M")), ":2:block_size"),
        ("rails", {"all": [RAILS["all"][0], {"local": "mlx5_9", "remote": "mlx5_4"}]}, ":all.1.local"),
        ("rails", {"all": [RAILS["all"][0], {"local": "mlx5_1", "remote": "x"}]}, ":all.1.remote"),
        ("rails", {"direct": [{"local": "mlx5_9", "remote": "mlx5_4"}]}, ":direct.0.local"),
        ("rails", "", ""),
        ("before", {**IDLE, "unit": "words4"}, ":before.unit"),
        ("after", {**IDLE, "unit": "words4"}, ":after.unit"),
        ("after", {**IDLE, "unit": "w"}, ":unit"),
    ],
)
def test_the_problem_document_names_file_and_field(files: Files, name: str, content: Any, place: str) -> None:
    files.write(name, content)
    (error,) = json.loads(files.judge("--json").err)["errors"]
    assert error["field"] == f"{files.folder / name}{place}"
    refused(files.judge(), f"{files.folder / name}: ", error["message"], place.rpartition(":")[2])


def test_options_that_cannot_be_are_named(files: Files) -> None:
    for words, unit, place in (
        ((), "words", "--unit"),
        (("--below", "1"), "bytes", "--below"),
        (("--below", "nan"), "bytes", "--below"),
        (("--above", "-0.1"), "bytes", "--above"),
        (("--above", "1.5"), "bytes", "--above"),
    ):
        outcome = files.judge("--json", *words, unit=unit)
        assert outcome.status == 2
        assert [error["field"] for error in json.loads(outcome.err)["errors"]] == [place]


@pytest.mark.parametrize("name", ["records", "rails", "before", "after"])
def test_a_file_that_is_too_large_is_not_read(files: Files, name: str) -> None:
    with (files.folder / name).open("wb") as file:
        file.truncate(MAX_INPUT_BYTES + 1)
    refused(files.judge(), f"{files.folder / name}: larger than {MAX_INPUT_BYTES} bytes")


def test_the_tolerances_are_options(files: Files) -> None:
    files.write("after", counters({0: N, 1: N}, {4: int(0.9 * N), 5: int(1.2 * N)}))
    assert [rail["result"] for rail in files.judge("--json").document["rails"]] == ["fail", "fail"]
    assert files.judge("--json", "--below", "0.1").document["rails"][0]["result"] == "pass"
    assert files.judge("--json", "--below", "0.1", "--above", "0.2").document["result"] == "pass"
    assert "not 0.98 to 1.195" in files.judge("--above", "0.195").out
