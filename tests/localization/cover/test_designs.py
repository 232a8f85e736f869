"""Fields, transversal designs and spaces are what their names say."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from app.localization.cover.designs import (
    affine_lines,
    most_groups,
    parallel_classes,
    projective_lines,
    punctured_plane,
    transversal_design,
)
from app.localization.cover.fields import field, is_prime_power


def pair_counts(n: int, blocks: list[list[int]]) -> set[int]:
    times = np.zeros((n, n), dtype=int)
    for block in blocks:
        times[np.ix_(block, block)] += 1
    return set(times[np.triu_indices(n, 1)].tolist())


@pytest.mark.parametrize("order", [2, 3, 4, 5, 8, 9, 16, 25, 27, 49])
def test_a_field_is_one(order: int) -> None:
    numbers, every = field(order), np.arange(order)
    sums, products = numbers.add(every[:, None], every), numbers.multiply(every[:, None], every)
    for table in (sums, products[1:, 1:]):
        assert (table == table.T).all()
        assert all(len(set(row)) == len(row) for row in table.tolist())
    a, b, c = (x.ravel() for x in np.meshgrid(every, every, every))
    left, right = (
        numbers.multiply(a, numbers.add(b, c)),
        numbers.add(numbers.multiply(a, b), numbers.multiply(a, c)),
    )
    assert (left == right).all()
    assert (numbers.multiply(a, numbers.multiply(b, c)) == numbers.multiply(numbers.multiply(a, b), c)).all()


def test_a_subfield_is_closed() -> None:
    for order, part in ((64, 8), (64, 4), (81, 9), (16, 2), (343, 7)):
        elements = set(field(order).subfield(part).tolist())
        assert len(elements) == part
        assert {int(field(order).add(a, b)) for a in elements for b in elements} == elements


@pytest.mark.parametrize("size", [2, 3, 4, 7, 9, 12, 15, 16, 35, 36])
def test_two_columns_show_every_pair_of_symbols_once(size: int) -> None:
    groups = most_groups(size)
    rows = transversal_design(groups, size)
    assert rows.shape == (size**2, groups)
    for one, other in combinations(range(groups), 2):
        assert len(set(zip(rows[:, one].tolist(), rows[:, other].tolist(), strict=True))) == size**2


@pytest.mark.parametrize(("groups", "size"), [(4, 4), (8, 9), (3, 12), (8, 37), (4, 20)])
def test_parallel_classes_touch_each_symbol_once(groups: int, size: int) -> None:
    rows = parallel_classes(groups, size).reshape(size, size, groups)
    assert (np.sort(rows, axis=1) == np.arange(size)[None, :, None]).all()


@pytest.mark.parametrize(("dimension", "order"), [(2, 2), (2, 8), (3, 4), (2, 9), (4, 3)])
def test_two_points_of_an_affine_space_are_on_one_line(dimension: int, order: int) -> None:
    lines = affine_lines(dimension, order)
    n = order**dimension
    assert {len(line) for line in lines} == {order}
    assert pair_counts(n, lines) == {1}
    assert sorted(point for line in lines[: n // order] for point in line) == list(range(n))


@pytest.mark.parametrize(("dimension", "order"), [(2, 2), (2, 7), (3, 3), (4, 3), (3, 7), (2, 13), (5, 2)])
def test_two_points_of_a_projective_space_are_on_one_line(dimension: int, order: int) -> None:
    lines = projective_lines(dimension, order)
    n = (order ** (dimension + 1) - 1) // (order - 1)
    assert {len(line) for line in lines} == {order + 1}
    assert pair_counts(n, lines) == {1}
    if dimension != 4:  # a spread, or the lines through one point of a plane
        assert {point for line in lines[: -(-n // (order + 1))] for point in line} == set(range(n))


def test_a_punctured_plane_joins_points_of_different_groups_once() -> None:
    blocks = punctured_plane(4)
    number = {place: i for i, place in enumerate((group, place) for group in range(5) for place in range(3))}
    times = np.zeros((15, 15), dtype=int)
    for block in blocks:
        points = [number[place] for place in block]
        times[np.ix_(points, points)] += 1
    assert (
        times + np.kron(np.eye(5, dtype=int), np.ones((3, 3), dtype=int)) - 4 * np.eye(15, dtype=int) == 1
    ).all()


def test_prime_powers() -> None:
    assert [q for q in range(1, 30) if is_prime_power(q)] == [
        2,
        3,
        4,
        5,
        7,
        8,
        9,
        11,
        13,
        16,
        17,
        19,
        23,
        25,
        27,
        29,
    ]
