"""Damaged inputs: an answer that is plain JSON, or a typed refusal; never another error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analyses import UnreadableInput, analyze

FILES = sorted(p for p in (Path(__file__).parents[1] / "data" / "cases").glob("*/*") if p.name != "README.md")
BITS = st.sampled_from(
    ["", " ", ",", "|", "-1", "0", "nan", "1e999", "9" * 400, "[", "}", '"', "\t", "\n", "x", "é"]
)


def _answer_or_refusal(text: str) -> None:
    try:
        answer = analyze(text)
    except UnreadableInput as refused:
        json.dumps(refused.document(), allow_nan=False)
        return
    json.dumps(answer.to_dict(), allow_nan=False)
    assert bool(answer.suspects) == (answer.outcome == "localized")


@given(st.sampled_from(FILES), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), BITS), max_size=4))
@settings(max_examples=100, deadline=None)
def test_damage_in_a_real_file(path: Path, cuts: list[tuple[float, int, str]]) -> None:
    text = path.read_text(encoding="utf-8")
    for where, length, put in cuts:
        at = int(where * len(text))
        text = text[:at] + put + text[at + length :]
    _answer_or_refusal(text)


@given(st.sampled_from(FILES), st.sampled_from(FILES))
@settings(max_examples=30, deadline=None)
def test_two_files_in_one_paste(one: Path, two: Path) -> None:
    _answer_or_refusal(one.read_text(encoding="utf-8") + "\n" + two.read_text(encoding="utf-8"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
KINDS = ["path_matrix", "pair_list", "per_rank", "rounds", "collective_sweep", "concurrent_runs", "port_counters"]


@pytest.mark.parametrize("kind", [*KINDS, "link_state"])
@given(values=JSON, unit=JSON, more=JSON)
@settings(max_examples=30, deadline=None)
def test_any_json_as_a_normalised_document(kind: str, values: object, unit: object, more: object) -> None:
    document = {"kind": kind, "values": values, "unit": unit, "higher_is_worse": True}
    document |= dict.fromkeys(
        ("placement", "position", "labels", "columns", "tags", "reference", "baseline"), more
    )
    _answer_or_refusal(json.dumps(document))
