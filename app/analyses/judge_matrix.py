"""Judge a matrix of paths: which GPU, path or group is slow, once what is normal has been taken out.

In log space a healthy cell is the level of its hop class, plus an effect of its row, plus one of its column, plus
noise. A slow GPU is an outlying effect, a slow path an outlying residual, a slow shared part a block of either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from app.analyses.fit import Fit, fit_effects, width
from app.analyses.hop_classes import HopClasses, classes_of, find_classes
from app.analyses.judging import LEAST, inconclusive
from app.analyses.matrix_parts import find_parts
from app.analyses.matrix_suspects import Findings, find_gpus, find_paths
from app.analyses.records import Judgement, Matrix, PathMatrix, Reason
from app.analyses.topology import Ints, seats

#: Slower across than inside by more than this within one host is no socket penalty any more.
SOCKET_PENALTY = float(np.log(4.0))
#: GB/s, both ways: no PCIe link carries more, so what does is another fabric, and a step down from it is normal.
_PCIE = 130.0
#: Two levels that far apart need an explanation.
_UNEVEN = float(np.log(1.5))


def judge_matrix(matrix: PathMatrix) -> Judgement:
    """Judge one matrix.

    Parameters
    ----------
    matrix : PathMatrix
        Values positive or NaN.

    Notes
    -----
    Only ratios count: scaling all values changes nothing, and renumbering the ranks renumbers the answer.
    """
    badness = _badness(matrix.values, matrix.bad)
    n = len(badness)
    shift = 0.0
    if matrix.baseline is not None:
        badness = badness - _badness(matrix.baseline, matrix.bad)
        shift = float(np.nanmedian(badness))
    if n < 4:
        return _few(badness, matrix.title)
    known = np.isfinite(badness) | np.isfinite(badness.T)
    if np.count_nonzero(known) < n * (n - 1) / 2 or (known.sum(axis=1) < 3).any():
        text = f"{matrix.title}: too many cells are missing to compare every rank with the others"
        return inconclusive("cells_missing", text)
    distances = _distances(matrix)
    apart = None if distances is None else classes_of(badness, distances)
    search = _search(matrix, badness, apart)
    if search.found.suspects and apart is not None and distances is not None and (apart != distances).any():
        _confirm(matrix, search.found, _search(matrix, badness, distances).found)
    return _conclude(matrix, search.classes, search.fit, search.found, shift)


def _distances(matrix: PathMatrix) -> Ints | None:
    """How far apart the ranks are, where a topology of several hosts tells it."""
    if matrix.topology is None or len(set(matrix.placement or ())) < 2:
        return None
    return seats(matrix.topology, matrix.labels).distances()


@dataclass(frozen=True, slots=True)
class _Search:
    found: Findings
    classes: HopClasses
    fit: Fit


def _search(matrix: PathMatrix, badness: Matrix, apart: Ints | None) -> _Search:
    """Whoever is slow, once the levels of the classes (those of the topology, if any) are taken out."""
    found = Findings()
    if matrix.topology is not None and apart is not None:
        badness = find_parts(matrix, badness, apart, seats(matrix.topology, matrix.labels), found)
    classes = find_classes(badness, matrix.placement, apart)
    fit = fit_effects(badness, classes)
    slow = find_gpus(matrix, badness, classes, fit, found)
    if slow:
        _find_paths_of_the_rest(matrix, badness, sorted(set(range(len(badness))) - slow), found)
    else:
        find_paths(matrix, classes, fit, found)
    _between_blocks(matrix, badness, classes, found)
    return _Search(found, classes, fit)


def _confirm(matrix: PathMatrix, found: Findings, finer: Findings) -> None:
    """Leave out who is not slow among the few paths that are as far: they were compared with nearer ones, too."""
    confirmed = {suspect.name for suspect in finer.suspects}
    left = [suspect.name for suspect in found.suspects if suspect.name not in confirmed]
    found.suspects = [suspect for suspect in found.suspects if suspect.name in confirmed]
    if left:
        text = f"{', '.join(left)} may only be farther away: too few paths are as far by the topology"
        found.doubt("class_too_small", f"{matrix.title}: {text}")


def _find_paths_of_the_rest(matrix: PathMatrix, badness: Matrix, rest: list[int], found: Findings) -> None:
    """Paths between the ranks that are not slow themselves: a slow rank blurs the classes of all."""
    if len(rest) < 4:
        return
    part = replace(
        matrix,
        labels=[matrix.labels[i] for i in rest],
        placement=[matrix.placement[i] for i in rest] if matrix.placement else None,
    )
    inner = badness[np.ix_(rest, rest)]
    distances = _distances(part)
    classes = find_classes(inner, part.placement, None if distances is None else classes_of(inner, distances))
    find_paths(part, classes, fit_effects(inner, classes), found)


def _badness(values: Matrix, bad: str) -> Matrix:
    """Logarithm, higher is worse; own memory (the diagonal) is no path."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values.astype(np.float64))
    logs[~np.isfinite(logs)] = np.nan
    np.fill_diagonal(logs, np.nan)
    return logs if bad == "high" else -logs


def _few(badness: Matrix, title: str) -> Judgement:
    """Two or three ranks: no majority says who is slow."""
    cells = badness[np.isfinite(badness)]
    if len(cells) < len(badness) * (len(badness) - 1) / 2 or len(badness) < 2:
        return inconclusive("too_few", f"{title}: too few paths to compare")
    if float(np.ptp(cells)) >= LEAST:
        text = f"{title}: {len(badness)} ranks differ, and no majority or reference says which of them is slow"
        return inconclusive("no_reference", text)
    if len(badness) == 2:
        text = f"{title}: both directions are alike; whether both are slow needs a reference"
        return inconclusive("no_reference", text)
    return Judgement("healthy", reasons=[Reason("all_alike", f"{title}: all paths are alike")])


def _between_blocks(matrix: PathMatrix, badness: Matrix, classes: HopClasses, found: Findings) -> None:
    """The level between two halves of one host, against what sockets explain (or against the baseline)."""
    relative = matrix.baseline is not None
    blocks = _two_of_the_topology(matrix) if classes.given and relative else classes.blocks
    if len(blocks) != 2 or (classes.given and not relative):
        return
    one, two = blocks
    if min(len(one), len(two)) < (2 if relative else 3):
        return
    cross = np.concatenate([badness[np.ix_(one, two)].ravel(), badness[np.ix_(two, one)].ravel()])
    inner = [float(np.nanmedian(badness[np.ix_(block, block)])) for block in (one, two)]
    excess = float(np.nanmedian(cross)) - max(inner)
    if excess < (LEAST if relative else SOCKET_PENALTY):
        return
    if matrix.in_gb and not relative and np.exp(-max(inner)) > _PCIE:
        return
    if not (matrix.one_host or relative):
        text = f"{np.exp(excess):.1f}x slower between two halves than inside: normal for hosts, not inside one"
        found.doubt("block_step", f"{matrix.title}: {text}; a topology would tell")
    else:
        found.add_between(matrix.labels, one, two, excess)
        bound = "the baseline has no such step" if relative else "no usual socket penalty is above 4x"
        found.note(
            "block_step", f"{matrix.title}: {np.exp(excess):.1f}x slower between two halves than inside; {bound}"
        )


def _two_of_the_topology(matrix: PathMatrix) -> list[Ints]:
    """The two hosts, leaves or what is above them, where there are just two: nothing else tells their step."""
    if matrix.topology is None:
        return []
    where = seats(matrix.topology, matrix.labels)
    levels = [level for level in (where.host, *where.tiers) if len(level.names) == 2]
    return [np.flatnonzero(level.at == number) for level in levels[:1] for number in (0, 1)]


def _conclude(matrix: PathMatrix, classes: HopClasses, fit: Fit, found: Findings, shift: float) -> Judgement:
    reasons = [*found.reasons]
    if len(np.unique(classes.of[classes.of >= 0])) > 1:
        origin = "the placement" if classes.given else "the values"
        reasons.append(
            Reason("hop_classes", f"{matrix.title}: paths compared within hop classes told by {origin}")
        )
    if found.suspects:
        return Judgement("localized", found.suspects, reasons)
    if found.open:
        return Judgement("inconclusive", reasons=reasons)
    if shift >= LEAST:
        text = f"{matrix.title}: everything is {np.exp(shift):.1f}x slower than the baseline, nobody stands out"
        return Judgement("uniform_slowdown", reasons=[*reasons, Reason("uniform_slowdown", text)])
    if max(width(fit.rows), width(fit.columns)) >= _UNEVEN or fit.sigma >= _UNEVEN:
        text = f"{matrix.title}: ranks differ too much among themselves to call one of them slow, or all healthy"
        return inconclusive("uneven", text, *reasons)
    text = f"{matrix.title}: no rank and no path is clearly slower than its like (noise {100 * fit.sigma:.0f} %)"
    return Judgement("healthy", reasons=[*reasons, Reason("all_alike", text)])
