"""Two topologies compared: what is said, and which measurements stay comparable."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.localization.placement import Place, Placement, layout
from app.topology import diff as module
from app.topology.diff import diff

HOSTS = tuple("abcd")


def placement(*places: Place, **parents: str) -> Placement:
    return Placement(places, parents)


def known(gpus: int = 16) -> Placement:
    """Four hosts whose GPUs have global ids."""
    places = layout(gpus, 4, leaves=2).places
    return Placement(tuple(replace(place, device=f"GPU-{rank:02}") for rank, place in enumerate(places)))


def texts(old: Placement, new: Placement) -> list[str]:
    return [change.text for change in diff(old, new).changes]


def test_nothing_changed() -> None:
    found = diff(known(), known())
    assert found.changes == ()
    assert found.ranks == found.unchanged == tuple(range(16))


def test_moved_with_its_nic() -> None:
    old, new = list(known().places), list(known().places)
    new[12] = replace(old[12], host="host-f", nic="mlx5_9", leaf=None)
    found = diff(Placement(tuple(old)), Placement(tuple(new)))
    (change,) = found.changes
    assert change.text == (
        "rank 12 (GPU-12) moved from host-d to host-f; NIC 0 replaced by mlx5_9; leaf no longer stated (was 1)"
    )
    assert (change.kind, change.old_rank, change.rank) == ("moved", 12, 12)
    assert found.ranks[12] == 12
    assert found.unchanged == tuple(r for r in range(16) if r != 12)


def test_renumbering_is_said_as_renumbering() -> None:
    old = known(8)
    new = Placement((*old.places[1:6], old.places[0], *old.places[6:]))
    found = diff(old, new)
    assert texts(old, new)[:2] == ["device GPU-01 is now rank 0 (was 1)", "device GPU-02 is now rank 1 (was 2)"]
    assert {change.kind for change in found.changes} == {"renumbered"}
    assert found.ranks == (5, 0, 1, 2, 3, 4, 6, 7)
    assert found.unchanged == tuple(range(8))


def test_a_device_that_was_replaced_is_not_the_same_gpu() -> None:
    old = known(4)
    new = Placement((*old.places[:3], replace(old.places[3], device="GPU-99")))
    found = diff(old, new)
    assert texts(old, new) == ["rank 3: device GPU-03 replaced by GPU-99"]
    assert found.changes[0].kind == "replaced"
    assert (found.ranks, found.unchanged) == ((0, 1, 2, None), (0, 1, 2))


def test_numbers_in_a_host_do_not_follow_to_another_host() -> None:
    """cuda:0 of one host is not cuda:0 of another: whether the GPU moved or its rank is not known."""
    old = placement(Place("a", "cuda:0"), Place("a", "cuda:1"))
    new = placement(Place("a", "cuda:0"), Place("b", "cuda:1"))
    found = diff(old, new)
    assert texts(old, new) == ["rank 1 (cuda:1) moved from a to b"]
    assert (found.ranks, found.unchanged) == ((0, None), (0,))
    swapped = placement(*old.places[::-1])
    assert texts(old, swapped)[0] == "device cuda:1 of a is now rank 0 (was 1)"


def test_without_device_ids_ranks_are_all_there_is() -> None:
    old = placement(Place("a"), Place("a"), Place("b", nic="0"))
    new = placement(Place("a", rail="3"), Place("c"), Place("b", nic="1"))
    found = diff(old, new)
    assert texts(old, new) == [
        "rank 0: rail now stated: 3",
        "rank 1 moved from a to c",
        "rank 2: NIC 0 replaced by 1",
    ]
    assert (found.ranks, found.unchanged) == ((0, None, 2), ())


def test_a_device_id_that_is_stated_later_is_no_replacement() -> None:
    old, new = placement(Place("a"), Place("a")), placement(Place("a", "GPU-1"), Place("a"))
    found = diff(old, new)
    assert texts(old, new) == ["rank 0 (GPU-1): device now stated: GPU-1"]
    assert (found.ranks, found.unchanged) == ((0, 1), (0, 1))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("0000:3B:00.{}", "00000000:3b:00.{}"),
        ("3b:00.{}", "0000:3b:00.{}"),
        ("GPU-5F1C0A3E-{}", "gpu-5f1c0a3e-{}"),
        ("cuda:{}", "CUDA{}"),
    ],
)
def test_an_id_in_another_spelling_is_no_change(before: str, now: str) -> None:
    old, new = (placement(*(Place("a", form.format(n), f"m{n}") for n in range(4))) for form in (before, now))
    found = diff(old, new)
    assert found.changes == ()
    assert found.ranks == found.unchanged == (0, 1, 2, 3)
    swapped = diff(old, Placement((*new.places[2:], *new.places[:2])))
    assert {change.kind for change in swapped.changes} == {"renumbered"}
    assert swapped.ranks == (2, 3, 0, 1)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("GPU0", "cuda:0"),
        ("GPU0", "GPU-5f1c0a3e"),
        ("GPU-5f1c0a3e", "0000:3b:00.0"),
        ("0000:3b:00.0", "0"),
        ("GPU-5f1c0a3e", "serial-7"),
    ],
)
def test_an_id_in_another_notation_is_no_replacement(before: str, now: str) -> None:
    """Neither is known: that it is the same GPU, nor that it is another. With the rest alike, its rank must do."""
    old = placement(Place("a", before, "m0", leaf="l"), Place("a"))
    new = placement(Place("a", now, "m0", leaf="l"), Place("a"))
    found = diff(old, new)
    (change,) = found.changes
    assert change.text == f"rank 0: device id now {now} (was {before}, another notation)"
    assert change.kind == "changed"
    assert found.ranks == found.unchanged == (0, 1)
    other_nic = diff(old, placement(Place("a", now, "m9", leaf="l"), Place("a")))
    assert other_nic.changes[0].text == f"{change.text}; NIC m0 replaced by m9"
    assert (other_nic.changes[0].kind, other_nic.ranks) == ("changed", (None, 1))
    moved = diff(old, placement(Place("b", now, "m0", leaf="l"), Place("a")))
    assert moved.changes[0].text.startswith("rank 0 moved from a to b; device id now")
    assert (moved.changes[0].kind, moved.ranks) == ("moved", (None, 1))


def test_other_numbers_in_another_notation_do_not_say_which_gpu_it_is() -> None:
    old, new = (
        placement(Place("a", "GPU0"), Place("a", "GPU1")),
        placement(Place("a", "cuda:1"), Place("a", "cuda:0")),
    )
    found = diff(old, new)
    assert {change.kind for change in found.changes} == {"changed"}
    assert (found.ranks, found.unchanged) == ((None, None), ())


def test_another_gpu_in_another_spelling_is_replaced() -> None:
    for before, now in (("GPU-AB", "gpu-ac"), ("0000:3B:00.0", "00000000:3c:00.0"), ("GPU0", "gpu1")):
        found = diff(placement(Place("a", before), Place("a")), placement(Place("a", now), Place("a")))
        assert [(c.kind, c.text) for c in found.changes] == [
            ("replaced", f"rank 0: device {before} replaced by {now}")
        ]
        assert found.ranks == (None, 1)


def test_gpus_that_came_and_went() -> None:
    old, new = known(8), known(12)
    assert [change.kind for change in diff(old, new).changes].count("added") >= 4
    gone = diff(new, Placement(new.places[:10]))
    assert [(c.kind, c.text) for c in gone.changes] == [
        ("removed", "rank 10 (GPU-10) is gone from host-d"),
        ("removed", "rank 11 (GPU-11) is gone from host-d"),
    ]
    assert gone.ranks[8:] == (8, 9, None, None)


def test_a_rank_is_no_place_for_two() -> None:
    """The GPU of rank 0 is gone, and that of rank 1 has taken its number."""
    old, new = (
        placement(Place("a", "GPU-0"), Place("a", "GPU-1")),
        placement(Place("a", "GPU-1"), Place("a", "GPU-2")),
    )
    found = diff(old, new)
    assert texts(old, new) == [
        "device GPU-1 is now rank 0 (was 1)",
        "rank 1 (GPU-2) is new, on a",
        "rank 0 (GPU-0) is gone from a",
    ]
    assert (found.ranks, found.unchanged) == ((None, 0), (0,))


def test_a_switch_that_was_moved_leaves_what_is_below_it_incomparable() -> None:
    places = (Place("a", leaf="l0"), Place("b", leaf="l1"), Place("c"))
    old = placement(*places, l0="s0", l1="s0", s0="core")
    new = placement(*places, l0="s0", l1="s1", s1="core")
    found = diff(old, new)
    assert [(change.kind, change.text) for change in found.changes] == [
        ("switch", "switch l1 is now under s1 (was under s0)"),
        ("switch", "switch s0 is now under no stated switch (was under core)"),
        ("switch", "switch s1 is now under core (was under none)"),
    ]
    assert found.unchanged == (2,)


@given(
    st.lists(st.sampled_from(HOSTS), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
)
def test_any_renumbering_is_nothing_but_that(hosts: list[str], random: object) -> None:
    places = [Place(host, f"GPU-{rank}") for rank, host in enumerate(hosts)]
    shuffled = list(places)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = diff(Placement(tuple(places)), Placement(tuple(shuffled)))
    assert {change.kind for change in found.changes} <= {"renumbered"}
    assert [shuffled[rank] for rank in found.ranks if rank is not None] == places
    assert found.unchanged == tuple(range(len(places)))


def test_the_examples_in_the_docstrings() -> None:
    result = doctest.testmod(module)
    assert (result.attempted > 0, result.failed) == (True, 0)
