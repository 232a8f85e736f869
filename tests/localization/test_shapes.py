"""Probe shapes: what they send, how much, and how they are written down."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.errors import EventError, ShapeError
from app.localization.events import dump_log, failed, load_log, measured, timed_out
from app.localization.probes import Probe
from app.localization.shapes import Bipartite, Clique, Exchange, Shape, Shift, read_shape

ranks = st.sets(st.integers(0, 40), min_size=1, max_size=9).map(lambda found: tuple(sorted(found)))
counts = st.integers(1, 5)
cliques = st.builds(Clique, ranks, counts)
bipartites = st.builds(Bipartite, ranks, ranks, counts)


@st.composite
def shifts(draw: st.DrawFn) -> Shift:
    order = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True))
    cuts = draw(st.sets(st.integers(1, len(order)), max_size=3)) | {0, len(order)}
    ends = sorted(cuts)
    rings = tuple(tuple(order[a:b]) for a, b in pairwise(ends))
    distances = draw(st.sets(st.integers(1, 13), min_size=1, max_size=4))
    return Shift(rings, tuple(sorted(distances)), draw(counts))


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    taking_part = draw(ranks)
    possible = list(combinations(taking_part, 2))
    pairs = draw(st.lists(st.sampled_from(possible), unique=True, max_size=9)) if possible else []
    return of_degree(taking_part, tuple(pairs), draw(counts))


def of_degree(taking_part: tuple[int, ...], pairs: tuple[tuple[int, int], ...], each: int) -> Exchange:
    """The exchange in which every pair carries ``each`` sequences each way."""
    return Exchange(taking_part, pairs, each * max(1, Exchange(taking_part, pairs).degree))


shapes = st.one_of(cliques, bipartites, shifts(), exchanges())


def sent(shape: Shape) -> dict[int, int]:
    return {sender: sum(row.values()) for sender, row in shape.sends.items()}


def received(shape: Shape) -> Counter[int]:
    counter: Counter[int] = Counter()
    for row in shape.sends.values():
        counter.update(row)
    return counter


@given(shapes)
def test_a_document_is_json_and_reads_back_the_same(shape: Shape) -> None:
    again = read_shape(json.loads(json.dumps(shape.document())))
    assert again == shape
    assert again.sends == shape.sends


@given(shapes)
def test_members_load_paths_and_components_are_those_of_the_sends(shape: Shape) -> None:
    sends, own = shape.sends, sum(row.get(sender, 0) for sender, row in shape.sends.items())
    assert shape.members == tuple(sorted({*sends, *received(shape)}))
    assert shape.load == max(*sent(shape).values(), *received(shape).values())
    assert shape.path_units == sum(sent(shape).values()) - own
    gpus = [c.members[0] for c in shape.components() if c.kind == "gpu"]
    paths = [c.members for c in shape.components() if c.kind == "path"]
    assert gpus == list(shape.members)
    assert paths == sorted({(min(u, v), max(u, v)) for u, row in sends.items() for v in row if u != v})
    assert [c.kind for c in shape.components(paths=False)] == ["gpu"] * len(gpus)


@given(shapes)
def test_edges_are_the_sends_and_none_is_empty(shape: Shape) -> None:
    found: dict[int, dict[int, int]] = {}
    edges = shape.edges
    for u, v, count in zip(edges.sender, edges.receiver, edges.sequences, strict=True):
        row = found.setdefault(int(u), {})
        row[int(v)] = row.get(int(v), 0) + int(count)
    assert found == shape.sends
    assert edges.sequences.min() > 0


@given(shifts())
def test_in_a_shift_every_rank_carries_the_same_load(shift: Shift) -> None:
    load = len(shift.shifts) * shift.sequences
    assert set(sent(shift).values()) == set(received(shift).values()) == {load}
    assert shift.load == load
    where = {rank: (ring, place) for ring in shift.rings for place, rank in enumerate(ring)}
    for u, row in shift.sends.items():
        ring, place = where[u]
        expected = Counter(ring[(place + s) % len(ring)] for s in shift.shifts)
        assert row == {v: times * shift.sequences for v, times in expected.items()}


@given(exchanges())
def test_in_an_exchange_every_rank_carries_the_same_load(exchange: Exchange) -> None:
    assert sent(exchange) == dict.fromkeys(exchange.ranks, exchange.width)
    assert received(exchange) == sent(exchange)
    assert exchange.load == exchange.width
    crossing = {(u, v): c for u, row in exchange.sends.items() for v, c in row.items() if u != v}
    assert {pair for pair in crossing if pair[0] < pair[1]} == set(exchange.pairs)
    assert all(crossing[v, u] == count for (u, v), count in crossing.items())
    # However many pairs a rank is in, a pair carries the same: one slow path shows as any other.
    assert set(crossing.values()) <= {exchange.width // max(1, exchange.degree)}


def test_shapes_on_four_ranks_send_what_they_say() -> None:
    assert Clique((1, 3), 2).sends == {1: {1: 2, 3: 2}, 3: {1: 2, 3: 2}}
    assert Bipartite((0, 1), (1, 2)).sends == {0: {1: 1, 2: 1}, 1: {1: 1, 2: 1}}
    assert Shift(((0, 1, 2, 3),), (1, 2), 3).sends[3] == {0: 3, 1: 3}
    assert Shift(((0, 1), (2, 3)), (1,)).sends == {0: {1: 1}, 1: {0: 1}, 2: {3: 1}, 3: {2: 1}}
    assert Exchange((0, 1, 2, 3), ((1, 3),), 4).sends == {1: {3: 4}, 3: {1: 4}, 0: {0: 4}, 2: {2: 4}}
    assert Exchange((0, 1, 2), ((0, 1), (1, 2)), 4).sends == {
        0: {1: 2, 0: 2},
        1: {0: 2, 2: 2},
        2: {1: 2, 2: 2},
    }
    assert Exchange((2,), width=4).sends == {2: {2: 4}}


def test_two_shifts_that_meet_in_a_small_ring_add_up() -> None:
    shift = Shift(((0, 1, 2), (3, 4, 5, 6, 7)), (1, 4))
    assert shift.sends[0] == {1: 2}
    assert shift.sends[3] == {4: 1, 7: 1}
    assert shift.path_units == 16


WRONG: dict[str, Any] = {
    "no object": (7, "is not an object"),
    "no kind": ({}, "kind must be"),
    "another kind": ({"kind": "torus"}, "'torus'"),
    "no ranks": ({"kind": "clique", "sequences": 1}, "ranks must be a list"),
    "empty": ({"kind": "clique", "ranks": [], "sequences": 1}, "ranks must be a list"),
    "negative": ({"kind": "clique", "ranks": [-1, 2], "sequences": 1}, "ranks must be a list"),
    "true": ({"kind": "clique", "ranks": [True], "sequences": 1}, "ranks must be a list"),
    "descending": ({"kind": "clique", "ranks": [2, 1], "sequences": 1}, "ranks must ascend"),
    "twice": ({"kind": "bipartite", "senders": [1], "receivers": [2, 2], "sequences": 1}, "receivers must ascend"),
    "no sequences": ({"kind": "clique", "ranks": [1]}, "sequences must be a whole number"),
    "zero sequences": ({"kind": "clique", "ranks": [1], "sequences": 0}, "sequences must be a whole number"),
    "half a sequence": ({"kind": "clique", "ranks": [1], "sequences": 1.5}, "sequences must be a whole number"),
    "no rings": ({"kind": "shift", "rings": [], "shifts": [1], "sequences": 1}, "rings must be a list"),
    "an empty ring": ({"kind": "shift", "rings": [[]], "shifts": [1], "sequences": 1}, "rings must be a list"),
    "shared": ({"kind": "shift", "rings": [[1, 2], [2]], "shifts": [1], "sequences": 1}, "must not share"),
    "twice in a ring": ({"kind": "shift", "rings": [[1, 1]], "shifts": [1], "sequences": 1}, "must not share"),
    "no shift": ({"kind": "shift", "rings": [[1, 2]], "shifts": [], "sequences": 1}, "shifts must be a list"),
    "a shift of 0": ({"kind": "shift", "rings": [[1, 2]], "shifts": [0], "sequences": 1}, "at least 1"),
    "no pairs": ({"kind": "exchange", "ranks": [1, 2], "width": 1}, "pairs must be a list"),
    "a loop": ({"kind": "exchange", "ranks": [1, 2], "pairs": [[1, 1]], "width": 1}, "ascending pairs"),
    "a stranger": ({"kind": "exchange", "ranks": [1, 2], "pairs": [[1, 3]], "width": 1}, "ascending pairs"),
    "a triple": ({"kind": "exchange", "ranks": [1, 2, 3], "pairs": [[1, 2, 3]], "width": 1}, "ascending pairs"),
    "a pair twice": (
        {"kind": "exchange", "ranks": [1, 2], "pairs": [[1, 2]] * 2, "width": 1},
        "pairs must differ",
    ),
    "no width": ({"kind": "exchange", "ranks": [1, 2], "pairs": []}, "width must be a whole number"),
    "too narrow": (
        {"kind": "exchange", "ranks": [1, 2, 3], "pairs": [[1, 2], [2, 3]], "width": 1},
        "width must be at least 2",
    ),
}


@pytest.mark.parametrize(("document", "why"), WRONG.values(), ids=WRONG)
def test_a_document_that_is_no_shape_is_refused(document: object, why: str) -> None:
    with pytest.raises(ShapeError, match=why):
        read_shape(document)


def event_line(**changes: Any) -> str:
    data = {"seq": 0, "type": "measured", "number": 1, "repeat": 0, "members": [1, 2], "phase": 1}
    data |= {"purpose": "cover", "tbt_ms": 5.0, "ttft_ms": 9.0, "wall_ms": 80.0}
    return json.dumps(data | changes)


@given(shapes)
@settings(max_examples=50)
def test_an_answer_to_any_shape_goes_through_the_log(shape: Shape) -> None:
    probe = Probe(3, shape, 1, "cover", repeat=1)
    answers = [
        measured(probe, tbt_ms=1.5, ttft_ms=9.0, wall_ms=80.0),
        timed_out(probe, waited_ms=1000.0, engine_alive=True, wall_ms=1001.0, in_flight=shape.sends),
        failed(probe, code="load_too_high", detail="too much"),
    ]
    assert load_log(dump_log(answers)) == answers
    assert all(answer.answers(probe) for answer in load_log(dump_log(answers)))
    assert not any(answer.answers(probe.again(2)) for answer in answers)
    assert all(("shape" in answer.data) != isinstance(shape, Clique) for answer in answers)


def test_answers_to_different_shapes_of_the_same_members_are_told_apart() -> None:
    ring = tuple(range(4))
    others: list[Shape] = [Shift((ring,), (1,)), Shift((ring,), (2,)), Exchange(ring), Exchange(ring, width=2)]
    for shape in (Clique(ring), *others):
        probe = Probe(1, shape, 1, "cover")
        answer = measured(probe, tbt_ms=1.0, ttft_ms=1.0, wall_ms=1.0)
        matching = [s for s in (Clique(ring), *others) if answer.answers(Probe(1, s, 1, "cover"))]
        assert matching == [shape]


def test_a_log_from_before_shapes_still_loads_and_answers_a_clique() -> None:
    (event,) = load_log([event_line(sequences=2)])
    assert event.answers(Probe(1, Clique((1, 2), 2), 1, "cover"))
    assert not event.answers(Probe(1, Clique((1, 2), 1), 1, "cover"))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "line 1: sequences must be a whole number"),
        ({"shape": {"kind": "torus"}}, "line 1: shape: kind must be"),
        ({"shape": None}, "line 1: shape: is not an object"),
    ],
)
def test_an_answer_without_a_readable_shape_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(EventError, match=why):
        load_log([event_line(**changes)])
