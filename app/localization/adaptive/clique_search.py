"""Which k GPUs to measure next: sets that split what is suspected, and sets with nothing suspicious in them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.localization.adaptive.clique_beliefs import CliqueBeliefs, Rows
from app.localization.adaptive.noise import Floats
from app.localization.shapes import Ranks

CANDIDATES = 96
# A healthy probe reads slow (a burst), a slow one fast.
FALSE_SLOW, FALSE_FAST = 0.05, 0.01
# Components that are this unlikely to be slow are all alike as padding.
ALIKE = 1e-3
# Risk that is taken to have another padding.
USED = 0.03
# What touching one more component is worth, as risk: 1 / this.
GAINS = 1e3
# Log odds below which a component is no rival.
NEGLIGIBLE = -20.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Components that explain the same slow readings, with their weights; the rest to 1 is "nothing is slow".

    Parameters
    ----------
    rows : ndarray of int
        Their rows, the likeliest first.
    weights : ndarray of float
        Posterior probability of each.
    nothing : float
        That of "nothing is slow".
    margin : float
        Log odds of the likeliest against all others, and against nothing.
    risk : ndarray of float
        Probability that a component slows a probe, if the likeliest one explains what it can: of all rows.
    """

    rows: Rows
    weights: Floats
    nothing: float
    margin: float
    risk: Floats

    @property
    def entropy(self) -> float:
        """What is not known of it, in nats."""
        weights = np.append(self.weights, self.nothing)
        weights = weights[weights > 0]
        return float(-(weights @ np.log(weights)))

    @property
    def best(self) -> int:
        """The likeliest."""
        return int(self.rows[0])


def clusters(beliefs: CliqueBeliefs, limit: int, least: float, sure: float) -> list[Cluster]:
    """The likeliest component with all that it would explain away, then the likeliest of the rest, and so on.

    Parameters
    ----------
    beliefs : CliqueBeliefs
        About all components.
    limit : int
        The most clusters.
    least : float
        Log odds below which a second cluster is not worth a thought.
    sure : float
        Margin from which on the likeliest counts as the explanation.
    """
    found: list[Cluster] = []
    odds = beliefs.odds.copy()
    gone: set[int] = set()
    while len(found) < limit:
        best = beliefs.leader(odds)
        gone |= {reading.at for reading in beliefs.holding(best)}
        touching = [reading for reading in beliefs.readings if reading.at in gone]
        if not touching or odds[best] == -np.inf:
            break
        rows, left = beliefs.without(touching)
        rivals = rows[(left < 0) & (odds[rows] > NEGLIGIBLE) & (rows != best)]
        ordered = np.concatenate([[best], rivals[np.argsort(-odds[rivals], kind="stable")]])
        weights, nothing, margin = _weighed(odds[ordered])
        if found and math.log1p(-min(nothing, 1 - 1e-16)) - math.log(max(nothing, 1e-300)) < least:
            break
        odds[rows] = np.minimum(odds[rows], left)
        risk = beliefs.risk(odds, [reading for reading in beliefs.readings if reading.at not in gone])
        for other in found:
            suspects = 1 if other.margin > sure else len(other.rows)
            risk[other.rows[:suspects]] = other.weights[:suspects]
        found.append(Cluster(ordered, weights, nothing, margin, risk))
        odds[ordered] = -np.inf
    return found


def _weighed(odds: Floats) -> tuple[Floats, float, float]:
    """Weights, the weight of nothing, and the margin of the first."""
    peak = max(0.0, float(odds.max()))
    weights, nothing = np.exp(odds - peak), math.exp(-peak)
    others = float(weights[1:].sum()) + nothing
    total = float(weights[0]) + others
    return weights / total, nothing / total, float(odds[0]) - peak - math.log(max(others, 1e-300))


def splitting(beliefs: CliqueBeliefs, cluster: Cluster, k: int, rng: np.random.Generator) -> tuple[Ranks, float]:
    """The set of k GPUs whose reading tells most about a cluster, and the expected information in nats."""
    weight = np.zeros(len(beliefs.odds))
    weight[cluster.rows] = cluster.weights
    risk = cluster.risk.copy()
    risk[cluster.rows] = 0.0
    barred = np.flatnonzero(beliefs.accused[: beliefs.gpus])
    drawn = _drawn(_involved(beliefs, cluster, 2 * k), barred, beliefs.gpus, k, rng)
    again = np.array([sorted(r.members) for r in beliefs.holding(cluster.best)], dtype=np.intp).reshape(-1, k)
    sets = np.concatenate([np.unique(again, axis=0), drawn])
    touched = _touched(beliefs, sets)
    gains = _information(weight[touched].sum(axis=1), np.prod(1 - risk[touched], axis=1))
    best = int(gains.argmax())
    return tuple(int(rank) for rank in sets[best]), float(gains[best])


def _involved(beliefs: CliqueBeliefs, cluster: Cluster, most: int) -> Rows:
    """GPUs in or at the ends of the likeliest components."""
    ranks: dict[int, None] = {}
    for row in cluster.rows:
        ranks.update(dict.fromkeys(beliefs.component(int(row)).members))
        if len(ranks) >= most:
            break
    return np.array(list(ranks), dtype=np.intp)


def _drawn(involved: Rows, barred: Rows, n: int, k: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Random sets of k: one of ``involved`` or more, and others."""
    keys = rng.random((CANDIDATES, n))
    among = np.argsort(np.argsort(keys[:, involved], axis=1), axis=1)
    taken = rng.integers(1, min(k, len(involved)) + 1, size=(CANDIDATES, 1))
    keys[:, involved] += np.where(among < taken, -2.0, 2.0)
    keys[:, barred] += 10.0
    return np.sort(np.argpartition(keys, k - 1, axis=1)[:, :k], axis=1)


def _touched(beliefs: CliqueBeliefs, sets: NDArray[np.intp]) -> NDArray[np.intp]:
    if not beliefs.paths:
        return sets
    first, second = np.triu_indices(sets.shape[1])
    rows: NDArray[np.intp] = beliefs.place[sets[:, first], sets[:, second]]
    return rows


def _information(hit: Floats, undisturbed: Floats) -> Floats:
    """Mutual information of "the fault is in the set" and "it reads slow", by what else may slow the set."""
    by_others = 1 - undisturbed * (1 - FALSE_SLOW)
    slow = hit * (1 - FALSE_FAST) + (1 - hit) * by_others
    gain: Floats = _entropy(slow) - hit * _entropy(np.full(1, FALSE_FAST)) - (1 - hit) * _entropy(by_others)
    return gain


def _entropy(p: Floats) -> Floats:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    entropy: Floats = -p * np.log(p) - (1 - p) * np.log(1 - p)
    return entropy


def filled(
    beliefs: CliqueBeliefs,
    risk: Floats,
    kept: Sequence[int],
    k: int,
    rng: np.random.Generator,
    *,
    avoid: Collection[int] = (),
    used: Collection[int] = (),
    wanted: NDArray[np.bool_] | None = None,
) -> tuple[Ranks, float] | None:
    """Some GPUs, and others up to k that bring in as little suspicion as can be.

    Parameters
    ----------
    beliefs : CliqueBeliefs
        About all components.
    risk : ndarray of float
        Probability that a component slows a probe, of all rows.
    kept : sequence of int
        GPUs that are in the set.
    k : int
        Size of the set.
    rng : numpy.random.Generator
        Chooses among equals.
    avoid : collection of int
        GPUs that must not be in it.
    used : collection of int
        GPUs that are rather not in it.
    wanted : ndarray of bool, optional
        Components of which it shall touch as many as possible.

    Returns
    -------
    (tuple of int, float) or None
        The set, ascending, and the risk that what was added slows it; None where there are too few GPUs.
    """
    own = np.arange(beliefs.gpus)
    extra = rng.random(beliefs.gpus) * ALIKE
    extra[list(used)] += USED
    if wanted is None:
        wanted = np.zeros(len(risk), dtype=bool)
    cost, gain = risk[own], wanted[own] / GAINS
    cost[[*avoid, *kept]] = np.inf
    chosen: list[int] = []
    added = 0.0
    for place in range(k):
        rank = kept[place] if place < len(kept) else int((cost + extra - gain).argmin())
        if place >= len(kept):
            added += float(cost[rank])
        if not math.isfinite(added):
            return None
        chosen.append(rank)
        cost[rank] = np.inf
        if beliefs.paths:
            cost += risk[beliefs.place[rank]]
            gain += wanted[beliefs.place[rank]] / GAINS
    return tuple(sorted(chosen)), added
