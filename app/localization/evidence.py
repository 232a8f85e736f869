"""What is known healthy, what is found slow, and which GPUs may pad the next probe."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from app.localization.components import Component, gpu, path
from app.localization.settings import Settings


@dataclass(slots=True)
class Finding:
    """A component found slow.

    Parameters
    ----------
    component : Component
        What is slow.
    tests : list of int
        Numbers of the drill-down probes that isolated it.
    alternatives : tuple of Component
        Components that explain the same measurements equally well.
    hard : bool
        It does not answer at all.
    """

    component: Component
    tests: list[int] = field(default_factory=list)
    alternatives: tuple[Component, ...] = ()
    hard: bool = False


class Evidence:
    """The state of the drill-down.

    A GPU or path is *healthy* once it took part in a fast probe. Paths at a slow GPU are masked: they can be
    neither cleared nor accused, and are never called healthy.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.healthy_gpus: NDArray[np.bool_] = np.zeros(settings.gpus, dtype=bool)
        # Where paths cannot be selected no path hypothesis exists, so none may ever stand in the way.
        self.healthy_paths: NDArray[np.bool_] = np.full(
            (settings.gpus, settings.gpus), not settings.paths_selectable, dtype=bool
        )
        np.fill_diagonal(self.healthy_paths, True)
        self.findings: dict[Component, Finding] = {}
        self.slow_probes: dict[int, tuple[int, ...]] = {}

    def clear(self, members: tuple[int, ...]) -> None:
        """A fast probe: every GPU and path in it is healthy."""
        self.healthy_gpus[list(members)] = True
        self.healthy_paths[np.ix_(members, members)] = True

    def reopen(self, rank: int) -> None:
        """Forget that a GPU and its paths were called healthy; slow paths found at it stay."""
        self.healthy_gpus[rank] = False
        if self.settings.paths_selectable:
            self.healthy_paths[rank, :] = self.healthy_paths[:, rank] = False
            self.healthy_paths[rank, rank] = True

    def accuse(self, finding: Finding) -> None:
        """Record a slow component; a slow GPU withdraws what was said about its paths."""
        component = finding.component
        if component.kind == "gpu":
            (rank,) = component.members
            self.reopen(rank)
            for masked in [c for c in self.findings if c.kind == "path" and rank in c.members]:
                del self.findings[masked]
        else:
            u, v = component.members
            self.healthy_paths[u, v] = self.healthy_paths[v, u] = False
        self.findings[component] = finding

    @property
    def slow_gpus(self) -> set[int]:
        """Ranks of the GPUs found slow."""
        return {c.members[0] for c in self.findings if c.kind == "gpu"}

    def slow_paths_at(self, rank: int) -> list[int]:
        """The other ends of the slow paths found at a GPU."""
        return [
            next(m for m in c.members if m != rank)
            for c in self.findings
            if c.kind == "path" and rank in c.members
        ]

    def is_healthy(self, component: Component) -> bool:
        """Whether a component took part in a fast probe."""
        if component.kind == "gpu":
            return bool(self.healthy_gpus[component.members[0]])
        u, v = component.members
        return bool(self.healthy_paths[u, v])

    def is_masked(self, component: Component) -> bool:
        """Whether it is a path at a slow GPU."""
        return component.kind == "path" and not self.slow_gpus.isdisjoint(component.members)

    def open_in(self, members: tuple[int, ...]) -> list[Component]:
        """Components of a probe that are neither healthy, nor found slow, nor masked; GPUs first."""
        everything = [gpu(r) for r in members] + [path(u, v) for u, v in combinations(members, 2)]
        return [c for c in everything if not (self.is_healthy(c) or c in self.findings or self.is_masked(c))]

    def explains(self, members: tuple[int, ...]) -> list[Component]:
        """The slow components that a probe contains."""
        inside = set(members)
        return [c for c in self.findings if inside.issuperset(c.members)]

    def pads(self, target: tuple[int, ...], count: int, avoid: Collection[int] = ()) -> tuple[int, ...]:
        """Up to ``count`` GPUs to fill a probe of ``target`` with.

        All are known healthy, and so is every path of the probe other than those under test: both ends of a
        slow path are healthy GPUs, so padding by GPUs alone would bring the fault back in (DESIGN section 5).
        Greedy: the GPU that keeps most others possible, ties to the lowest rank.

        Parameters
        ----------
        target : tuple of int
            One rank (its own paths are under test with it) or the two ends of a path.
        count : int
            How many are wanted; fewer are returned when there are no more.
        avoid : collection of int
            Ranks that must not be used.
        """
        allowed = self.healthy_gpus.copy()
        allowed[[*target, *avoid]] = False
        if len(target) == 2:
            allowed &= self.healthy_paths[target[0]] & self.healthy_paths[target[1]]
        else:
            allowed[self.slow_paths_at(target[0])] = False
        chosen: list[int] = []
        while len(chosen) < count:
            pick = self._best_pad(allowed, (*target, *chosen), last=len(chosen) == count - 1)
            if pick is None:
                break
            chosen.append(pick)
            allowed &= self.healthy_paths[pick]
            allowed[pick] = False
        return tuple(chosen)

    def _best_pad(self, allowed: NDArray[np.bool_], so_far: tuple[int, ...], *, last: bool) -> int | None:
        candidates = np.flatnonzero(allowed)
        if last:
            candidates = self._leaving_the_host(candidates, so_far)
        if candidates.size == 0:
            return None
        links = self.healthy_paths[np.ix_(candidates, candidates)].sum(axis=1)
        return int(candidates[links.argmax()])

    def _leaving_the_host(self, candidates: NDArray[np.intp], so_far: tuple[int, ...]) -> NDArray[np.intp]:
        """Where the cover spans hosts, so must a padded probe: only then do they share a baseline."""
        hosts = self.settings.hosts
        if hosts is None or len({hosts[rank] for rank in so_far}) > 1:
            return candidates
        elsewhere = np.array([r for r in candidates if hosts[r] != hosts[so_far[0]]], dtype=np.intp)
        return elsewhere if elsewhere.size else candidates

    def small_star(self, rank: int, limit: int = 2) -> tuple[int, ...] | None:
        """The slow paths at a GPU that would explain its slow probes as well as the GPU itself does.

        Only probes count whose every other GPU and path is known healthy: each is slow because of the GPU or
        of one of its paths. A set of at most ``limit`` other ends that meets them all is an explanation to
        rule out (a hitting set); None when every explanation by paths needs more than ``limit`` faults.
        """
        if not self.settings.paths_selectable:
            return None
        others = [
            tuple(m for m in members if m != rank)
            for members in self.slow_probes.values()
            if rank in members and self._clean_but_for(rank, members)
        ]
        return hitting_set([o for o in others if o], limit)

    def _clean_but_for(self, rank: int, members: tuple[int, ...]) -> bool:
        rest = [m for m in members if m != rank]
        return bool(self.healthy_gpus[rest].all() and self.healthy_paths[np.ix_(rest, rest)].all())


def hitting_set(sets: list[tuple[int, ...]], limit: int) -> tuple[int, ...] | None:
    """A set of at most ``limit`` elements that meets every one of ``sets``; the lowest found first."""
    if not sets:
        return ()
    if limit == 0:
        return None
    for element in sets[0]:
        rest = hitting_set([s for s in sets if element not in s], limit - 1)
        if rest is not None:
            return (element, *rest)
    return None
