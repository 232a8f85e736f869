"""The shipped seeds, and the program that searches such: only covers count."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from app.localization.cover import CoverError, schonheim_bound
from app.localization.cover.anneal import keep, main, search
from app.localization.cover.seeds import SEEDED, hole_blocks, hole_sizes, seeds
from app.localization.cover.symmetry import Rotation
from app.localization.errors import SettingsError


def open_pairs(n: int, blocks: list[list[int]] | tuple[tuple[int, ...], ...]) -> set[tuple[int, int]]:
    pairs = {(a, b) for block in blocks for a in block for b in block if a < b}
    return {(a, b) for a in range(n) for b in range(a + 1, n)} - pairs


@pytest.mark.parametrize("k", SEEDED)
def test_every_shipped_seed_is_a_cover(k: int) -> None:
    for n, blocks in seeds(k).items():
        assert all(len(set(block)) == len(block) <= k and set(block) <= set(range(n)) for block in blocks)
        assert not open_pairs(n, blocks), n
        assert len(blocks) >= schonheim_bound(n, k)


def test_every_shipped_seed_with_a_hole_covers_the_rest() -> None:
    assert hole_sizes(8)
    for (n, hole), size in hole_sizes(8).items():
        blocks = hole_blocks(8, n, hole)
        assert len(blocks) == size
        assert all(len(set(block)) == len(block) <= 8 and set(block) <= set(range(n)) for block in blocks)
        assert all(a >= n - hole for a, _ in open_pairs(n, blocks)), (n, hole)


@pytest.mark.parametrize(
    ("n", "k", "rotation", "blocks", "first"),
    [
        (13, 4, 13, 13, False),
        (16, 4, 5, 20, False),
        (10, 4, 1, 9, False),
        (16, 8, 1, 6, False),
        (29, 4, 1, 73, True),
    ],
)
def test_annealing_finds_small_seeds(n: int, k: int, rotation: int, blocks: int, first: bool) -> None:
    found = next(
        cover
        for seed in range(1, 9)
        if (cover := search(Rotation(n, rotation), k, blocks, class_first=first, steps=600_000, seed=seed))
    )
    assert len(found) <= blocks
    assert not open_pairs(n, found)
    if first:
        assert len({point for block in found[: n // k] for point in block}) == n - n % k


def test_annealing_with_a_hole_leaves_only_the_hole_open() -> None:
    found = search(Rotation(13, 1), 8, 4, hole=4, steps=200_000, seed=1)
    assert found is not None
    assert all(a >= 9 for a, _ in open_pairs(13, found))


def test_annealing_finds_nothing_below_the_bound() -> None:
    assert search(Rotation(13, 1), 4, 12, steps=50_000, seed=1) is None
    with pytest.raises(SettingsError, match="blocks"):
        search(Rotation(13, 13), 4, 12, steps=1, seed=1)
    with pytest.raises(SettingsError, match="rotation"):
        Rotation(13, 14)


def test_a_file_of_seeds_only_takes_better_covers(tmp_path: Path) -> None:
    path = tmp_path / "seeds.json.xz"
    worse = [[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5], [0, 1, 2, 3]]
    assert keep(path, 6, 4, worse, 0)
    assert keep(path, 6, 4, worse[:3], 0)
    assert not keep(path, 6, 4, worse, 0)
    before = path.read_bytes()
    for blocks in (worse[:2], [*worse[:2], [2, 3, 4, 4]], [[0, 1, 2, 3, 4, 5]]):
        with pytest.raises(CoverError):
            keep(path, 6, 4, blocks, 0)
    assert path.read_bytes() == before
    assert json.loads(lzma.decompress(before)) == {"covers": {"6": worse[:3]}, "holes": {}}


def test_the_program_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "seeds.json.xz"
    command = ["--n", "13", "--k", "4", "--rotation", "13", "--steps", "200000"]
    assert main(command) == 0
    assert not open_pairs(13, json.loads(capsys.readouterr().out))
    assert main([*command, "--out", str(path)]) == 0
    assert "13 blocks: kept" in capsys.readouterr().out
    assert main([*command, "--out", str(path)]) == 0
    assert "no better" in capsys.readouterr().out
    assert main(["--n", "13", "--k", "4", "--blocks", "12", "--steps", "1000", "--out", str(path)]) == 1
    assert "nothing found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("n", "length", "k"), [(13, 13, 4), (14, 4, 4), (60, 15, 4), (17, 8, 8), (23, 1, 4), (12, 5, 4)]
)
def test_a_rotation_maps_orbits_and_class_onto_themselves(n: int, length: int, k: int) -> None:
    rotation = Rotation(n, length)
    orbit_of, partners = rotation.pair_orbits()
    table = np.array(orbit_of)
    turned = [rotation.image(point, 1) for point in range(n)]
    assert (table[np.ix_(turned, turned)] == table).all()
    assert table[np.triu_indices(n, 1)].min() == 0
    assert table.max() == len(partners) - 1
    assert all(orbit_of[a][b] == orbit for orbit, ends in enumerate(partners) for a, b in ends.items())
    blocks = rotation.class_blocks(k)
    disjoint = [block for block in blocks if len(set(block)) == k][: (n - n % k) // k]
    assert len({point for block in disjoint for point in block}) == k * len(disjoint)
    if length > 1:
        assert rotation.images(blocks) == sorted(sorted(block) for block in blocks)
