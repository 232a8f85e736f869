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


def _sent(document: object) -> None:
    """What a web framework does with an answer: the test of `json.dumps` alone hides what UTF-8 cannot hold."""
    json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


def _answer_or_refusal(text: str) -> None:
    try:
        answer = analyze(text)
    except UnreadableInput as refused:
        _sent([refused.code, refused.detail, refused.place])
        return
    _sent(answer.to_dict())
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


#: With lone surrogates, which JSON can write as escapes.
TEXT = st.text(st.characters(exclude_categories=()), max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
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


@pytest.mark.parametrize(
    "text",
    [
        r'{"kind": "\ud800"}',
        r'{"kind": "per_rank", "\uD800": 1, "\uD800": 2}',
        r'{"kind": "per_rank", "unit": "s", "values": {"\udfff": 1, "b": 1, "c": 3, "d": 1, "e": 1}}',
    ],
)
def test_half_of_a_surrogate_pair_is_no_character(text: str) -> None:
    with pytest.raises(UnreadableInput) as refused:
        analyze(text)
    assert refused.value.code == "broken_json"
    _sent([refused.value.detail, refused.value.place])


def test_a_whole_surrogate_pair_is_a_character() -> None:
    values = {"\U0001f525": 3, "b": 1, "c": 1, "d": 1, "e": 1}
    answer = analyze(json.dumps({"kind": "per_rank", "unit": "s", "values": values}))
    assert [suspect.members for suspect in answer.suspects] == [["\U0001f525"]]
