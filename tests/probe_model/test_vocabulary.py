"""Token layout: pure arithmetic."""

from __future__ import annotations

from itertools import combinations

import pytest

from app.probe_model.errors import ProbeModelError
from app.probe_model.vocabulary import lay_out


@pytest.mark.parametrize(
    ("gpus", "experts_per_gpu", "top_k"), [(2, 1, 1), (4, 4, 2), (4, 4, 4), (8, 2, 2), (64, 8, 8)]
)
def test_gpu_tokens_stay_on_their_gpu_and_no_two_tokens_share_a_set(
    gpus: int, experts_per_gpu: int, top_k: int
) -> None:
    vocabulary = lay_out(gpus, experts_per_gpu, top_k)

    assert vocabulary.gpu_tokens == tuple(range(2, 2 + gpus))
    for rank, experts in enumerate(vocabulary.gpu_sets):
        assert len(set(experts)) == top_k
        assert {expert // experts_per_gpu for expert in experts} == {rank}
    own = vocabulary.experts_by_token()
    assert len(set(own.values())) == len(own)
    assert max(own) < vocabulary.size
    assert vocabulary.size % 64 == 0


def test_pattern_tokens_are_all_subsets_and_reuse_the_gpu_tokens() -> None:
    vocabulary = lay_out(4, 2, 2)

    assert list(vocabulary.pattern_tokens) == list(combinations(range(8), 2))
    assert sorted(vocabulary.pattern_tokens.values()) == list(range(2, 2 + 28))
    assert [vocabulary.pattern_tokens[experts] for experts in vocabulary.gpu_sets] == [2, 3, 4, 5]


def test_too_many_subsets_give_no_pattern_tokens() -> None:
    assert len(lay_out(5, 4, 4).pattern_tokens) == 4845
    vocabulary = lay_out(6, 4, 4)
    assert vocabulary.pattern_tokens == {}
    assert vocabulary.separation == 4


def test_special_and_padding_rows_route_like_gpu_0() -> None:
    vocabulary = lay_out(4, 2, 2)
    rows = list(vocabulary.rows())

    assert len(rows) == vocabulary.size == 64
    assert rows[0] == rows[1] == rows[2] == rows[63] == (0, 1)
    assert rows[3] == (2, 3)


@pytest.mark.parametrize(("gpus", "experts_per_gpu", "top_k"), [(4, 4, 2), (4, 3, 2), (3, 5, 3), (2, 4, 4)])
def test_checked_tokens_reach_every_expert(gpus: int, experts_per_gpu: int, top_k: int) -> None:
    vocabulary = lay_out(gpus, experts_per_gpu, top_k)
    checked = vocabulary.checked_tokens()

    assert {expert for experts in checked.values() for expert in experts} == set(range(gpus * experts_per_gpu))
    own = vocabulary.experts_by_token()
    assert all(own[token] == experts for token, experts in checked.items())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [((1, 2, 2), "gpus"), ((1025, 2, 2), "gpus"), ((4, 0, 1), "experts_per_gpu"), ((4, 257, 1), "experts_per_gpu"),
     ((4, 4, 0), "top_k"), ((4, 65, 65), "top_k"), ((4, 2, 3), "experts_per_gpu")],
)  # fmt: skip
def test_a_value_out_of_range_is_named(arguments: tuple[int, int, int], field: str) -> None:
    with pytest.raises(ProbeModelError) as caught:
        lay_out(*arguments)
    assert caught.value.field == field
