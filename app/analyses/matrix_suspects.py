"""From effects and residuals of a fitted matrix to the fewest components that explain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from app.analyses.fit import Fit, Vector
from app.analyses.hop_classes import HopClasses, spread, symmetric
from app.analyses.judging import LEAST, slow_path, suspect, times
from app.analyses.records import Label, Matrix, PathMatrix, Reason, Suspect
from app.analyses.topology import Ints

#: A path has to be slower than a GPU, of which there are many more readings.
_LEAST_PATH = float(np.log(1.5))
_LEAST_ONE_WAY = float(np.log(1.8))
#: Standard deviations: of an effect, of a path's mean over both directions, of one cell.
_GPU_SIGMAS, _PATH_SIGMAS, _CELL_SIGMAS = 5.0, 6.0, 6.5
#: A column that is the worst of nearly every row is evidence even where columns differ much.
_STANDS_OUT = 0.9
#: Directed paths of a class that it takes to call one of them slow.
_LEAST_CLASS = 12
_NEAR = "{}: {} are slow to all others but not to each other: a shared part or a hop class"
_DOUBTS = {
    "unexplained_pattern": "paths are slow in a pattern that no GPU, path or group explains",
    "class_too_small": "a path differs from the few that it can be compared with",
    "rank_or_path": "a path is slow whose end is slower to others, too, if less clearly",
}


@dataclass(slots=True)
class Findings:
    """What was found so far; ``open`` when something was seen that no component explains."""

    suspects: list[Suspect] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    open: bool = False

    def note(self, code: str, text: str) -> None:
        """Add a reason."""
        self.reasons.append(Reason(code, text))

    def doubt(self, code: str, text: str) -> None:
        """Add a reason why the answer stays open."""
        self.note(code, text)
        self.open = True

    def add_between(self, labels: Sequence[Label], one: Ints, two: Ints, excess: float) -> None:
        """A group of paths between two groups of ranks (or within one)."""
        sides = [[labels[i] for i in block] for block in (one, two)]
        first, second = (f"{{{','.join(map(str, side))}}}" for side in sides)
        same = sides[0] == sides[1]
        name = f"paths within {first}" if same else f"paths between {first} and {second}"
        members = [labels[i] for i in sorted({*map(int, one), *map(int, two)})]
        self.suspects.append(Suspect("group", members, times(excess), name))


def _slow_gpus(badness: Matrix, classes: HopClasses, fit: Fit) -> dict[int, float]:
    """Rank to effect, for ranks whose row or column is out of the ordinary."""
    slow: dict[int, float] = {}
    for effects, axis in ((fit.rows, 1), (fit.columns, 0)):
        scale = _scale(effects, fit, len(badness))
        excess = effects - np.median(effects)
        for i in np.flatnonzero(excess >= LEAST):
            clear = excess[i] >= _GPU_SIGMAS * scale
            rank = int(i)
            if not clear and excess[i] >= np.log(2) and excess[i] >= 3 * scale:
                clear = _worst_nearly_everywhere(badness, classes, rank, axis)
            if clear:
                slow[rank] = max(slow.get(rank, 0.0), float(excess[i]))
    return slow


def _scale(effects: Vector, fit: Fit, n: int) -> float:
    """Spread of the effects of ordinary ranks, not below what the noise of a median makes."""
    return max(spread(effects), float(1.2533 * fit.sigma / np.sqrt(n - 1)), 0.01)


def _worst_nearly_everywhere(badness: Matrix, classes: HopClasses, rank: int, axis: int) -> bool:
    """Whether nearly every peer finds this rank the worst of those that it has in the same class, by far."""
    values, of = (badness, classes.of) if axis == 0 else (badness.T, classes.of.T)
    wins = seen = 0
    for peer in range(len(values)):
        like = (of[peer] == of[peer, rank]) & np.isfinite(values[peer])
        if peer == rank or not like[rank] or np.count_nonzero(like) < 2:
            continue
        like[rank] = False
        seen += 1
        wins += bool(values[peer, rank] >= values[peer, like].max() + LEAST)
    return seen >= 4 and wins >= _STANDS_OUT * seen


def find_gpus(matrix: PathMatrix, badness: Matrix, classes: HopClasses, fit: Fit, found: Findings) -> set[int]:
    """Slow GPUs, folded into a group where they are all of one block; the ranks that stand out.

    Parameters
    ----------
    matrix : PathMatrix
        Names.
    badness : ndarray
        Logarithm, higher is worse.
    classes, fit : HopClasses, Fit
        Of ``badness``.
    found : Findings
        Takes the suspects and reasons.
    """
    slow = _slow_gpus(badness, classes, fit)
    left, groups = dict(slow), list[tuple[Ints, Suspect]]()
    for block in classes.blocks if _comparable_blocks(classes) else ():
        members = [int(i) for i in block if int(i) in left]
        if len(block) > 1 and len(members) >= 0.75 * len(block) and len(block) <= len(fit.rows) / 2:
            excess = float(np.median([left[i] for i in members]))
            groups.append((block, _group(matrix, block, excess)))
            for i in members:
                del left[i]
    if _near_each_other(fit, [block for block, _ in groups]):
        found.doubt("not_between_themselves", _NEAR.format(matrix.title, ", ".join(g.name for _, g in groups)))
    else:
        found.suspects += [group for _, group in groups]
    if left:
        _report_gpus(matrix, fit, left, found)
    return set(slow)


def _report_gpus(matrix: PathMatrix, fit: Fit, left: dict[int, float], found: Findings) -> None:
    ranks = sorted(left)
    if len(ranks) > max(1, len(fit.rows) // 4):
        found.doubt(
            "too_many_suspects", f"{matrix.title}: {len(ranks)} ranks stand out, too many for single faults"
        )
        return
    if _near_each_other(fit, [np.array([i]) for i in ranks]):
        names = ", ".join(str(matrix.labels[i]) for i in ranks)
        found.doubt("not_between_themselves", _NEAR.format(matrix.title, names))
        return
    for i in ranks:
        found.suspects.append(suspect(matrix.labels[i], left[i]))


def _near_each_other(fit: Fit, groups: Sequence[Ints]) -> bool:
    """Groups (of a rank or more) that are slow on their own account are slow to each other, too."""
    if len(groups) < 2:
        return False
    ranks = np.concatenate(groups)
    of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    between = fit.residual[np.ix_(ranks, ranks)] + fit.rows[ranks][:, None] + fit.columns[ranks][None, :]
    known = np.not_equal.outer(of, of) & np.isfinite(between)
    return bool(known.any() and np.median(between[known]) < LEAST / 2)


def find_paths(matrix: PathMatrix, classes: HopClasses, fit: Fit, found: Findings) -> None:
    """Slow paths between ranks that are not slow, folded into a group where they are all between two blocks."""
    excess, both = _path_excess(fit, one_way=not matrix.over_host)
    pairs = [(int(i), int(j)) for i, j in np.argwhere(np.triu(np.isfinite(excess), 1))]
    pairs = _fold_blocks(matrix, classes, fit, pairs, found)
    if not pairs:
        return
    doubt = _why_not(classes, fit, excess, pairs)
    if doubt:
        found.doubt(doubt, f"{matrix.title}: {_DOUBTS[doubt]} ({len(pairs)} of them)")
        return
    for i, j in pairs:
        if not both[i, j]:
            a, b = _direction(matrix, fit, i, j)
            found.note("one_direction", f"{matrix.title}: path {a}-{b} is slow only from row {a} to column {b}")
        found.suspects.append(slow_path(matrix.labels[i], matrix.labels[j], float(excess[i, j])))


def _why_not(classes: HopClasses, fit: Fit, excess: Matrix, pairs: list[tuple[int, int]]) -> str:
    """Code of what speaks against calling each of these paths a fault; empty if nothing does."""
    n, ends = len(fit.rows), {end for pair in pairs for end in pair}
    several = len(pairs) > max(2, n // 8) or len(ends) < 2 * len(pairs) or len(ends) >= 0.75 * n
    if several or not _isolated(fit, excess):
        return "unexplained_pattern"
    if min(np.count_nonzero(classes.of == classes.of[i, j]) for i, j in pairs) < _LEAST_CLASS:
        return "class_too_small"
    if max(np.maximum(fit.rows, fit.columns)[sorted(ends)]) >= LEAST:
        return "rank_or_path"
    return ""


def _path_excess(fit: Fit, *, one_way: bool) -> tuple[Matrix, Matrix]:
    """Excess of each slow path (NaN where it is not slow), and whether both directions show it.

    ``one_way``: whether one direction alone is enough.
    """
    residual = fit.residual
    other = residual.T
    mean, least = (residual + other) / 2, np.minimum(residual, other)
    most = np.fmax(residual, other)
    both = (mean >= max(_LEAST_PATH, _PATH_SIGMAS * fit.sigma / np.sqrt(2))) & (least >= mean / 2)
    one = ~both & one_way & (most >= max(_LEAST_ONE_WAY, _CELL_SIGMAS * fit.sigma))
    return np.where(both, mean, np.where(one, most, np.nan)), both


def _comparable_blocks(classes: HopClasses) -> bool:
    """Blocks told by the values alone can only be compared with each other when there are several."""
    return len(classes.blocks) >= (2 if classes.given else 4)


def _isolated(fit: Fit, excess: Matrix) -> bool:
    """Few other paths come near to those that are slow, none at their ends: else it is a level, not a fault."""
    mean = symmetric(fit.residual)
    slow = np.isfinite(excess)
    near = np.isfinite(mean) & ~slow & (mean >= float(np.nanmin(excess)) / 2)
    if near[slow.any(axis=0)].any():
        return False
    return bool(np.count_nonzero(near) <= 2 + 0.01 * mean.size)


def _fold_blocks(
    matrix: PathMatrix,
    classes: HopClasses,
    fit: Fit,
    pairs: list[tuple[int, int]],
    found: Findings,
) -> list[tuple[int, int]]:
    """Name all paths between two blocks (or within one) at once, where nearly all of them are slow."""
    if not _comparable_blocks(classes) or len(pairs) < 3:
        return pairs
    of = np.zeros(len(fit.rows), dtype=np.intp)
    for number, block in enumerate(classes.blocks):
        of[block] = number
    left, groups = list(pairs), []
    # Ranks that look fast elsewhere leave a residual among themselves that is no slowness.
    with_effects = fit.residual + fit.rows[:, None] + fit.columns[None, :]
    for a, b in sorted({(min(of[i], of[j]), max(of[i], of[j])) for i, j in pairs}):
        here = {(i, j) for i, j in left if {of[i], of[j]} == {a, b}}
        one, two = classes.blocks[a], classes.blocks[b]
        level = min(_level(fit.residual, one, two), _level(with_effects, one, two))
        possible = len(one) * (len(one) - 1) // 2 if a == b else len(one) * len(two)
        if len(here) >= 3 and len(here) >= 0.5 * possible and level >= LEAST:
            groups.append((one, two, level))
            left = [pair for pair in left if pair not in here]
    if len(groups) > max(2, len(classes.blocks) // 8):
        found.doubt(
            "unexplained_pattern", f"{matrix.title}: {_DOUBTS['unexplained_pattern']} ({len(groups)} groups)"
        )
        return left
    for one, two, level in groups:
        found.add_between(matrix.labels, one, two, level)
    return left


def _level(values: Matrix, one: Ints, two: Ints) -> float:
    cells = values[np.ix_(one, two)]
    return float(np.nanmedian(cells)) if np.isfinite(cells).any() else 0.0


def _direction(matrix: PathMatrix, fit: Fit, i: int, j: int) -> tuple[Label, Label]:
    forward = np.nan_to_num(fit.residual[i, j], nan=-np.inf)
    back = np.nan_to_num(fit.residual[j, i], nan=-np.inf)
    a, b = (i, j) if forward >= back else (j, i)
    return matrix.labels[a], matrix.labels[b]


def _group(matrix: PathMatrix, block: Ints, excess: float) -> Suspect:
    members = [matrix.labels[i] for i in block]
    host = matrix.placement[int(block[0])] if matrix.placement else None
    name = f"group {host}" if host else f"group {{{','.join(map(str, members))}}}"
    return Suspect("group", members, times(excess), name)
