"""Algorithm 2: isolate every component of the suspicious probes, padded with what is known healthy.

Differs from the paper where it was measured to name innocents (DESIGN section 5): *every other path* of a
padded probe must be known healthy, not only its GPUs; GPUs come before paths, since the paths of a slow GPU are
masked; an accusation needs a second slow probe with other padding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.localization.components import Component, gpu, path
from app.localization.evidence import Evidence, Finding
from app.localization.ledger import Ledger
from app.localization.probes import Probe
from app.localization.record import Steps
from app.localization.settings import Settings
from app.localization.strategies.base import Note

# Slow isolating probes an accusation needs.
ACCUSE_AFTER = 2
# Slow paths found at one GPU that make us test the GPU once more before going on: a slow GPU that a lucky
# probe cleared looks like a star of slow paths.
STAR = 2
REFERENCES = 3
REFERENCE_DRAWS = 64


class Drilldown:
    """Phase 2 on the suspicious probes of a sweep.

    Parameters
    ----------
    settings, ledger, evidence
        The session's.
    notes : list of Note
        Where findings that concern the verdict are added.
    """

    def __init__(self, settings: Settings, ledger: Ledger, evidence: Evidence, notes: list[Note]) -> None:
        self.settings = settings
        self.ledger = ledger
        self.evidence = evidence
        self.notes = notes
        self.unresolved: dict[Component, str] = {}
        self._suspicious: list[Probe] = []

    def run(self, suspicious: list[Probe]) -> Steps[None]:
        """Test what the suspicious probes leave open; GPUs first."""
        self._suspicious = suspicious
        yield from self._resolve("gpu")
        yield from self._resolve("path")
        yield from self._account_for(suspicious)

    def planned(self) -> int:
        """Measurements taken, and at least one decided probe for each component still open."""
        taken = sum(len(self.ledger.readings[p.number]) for p in self.ledger.probes.values() if p.phase == 2)
        decided_after = self.settings.repeats // 2 + 1
        return taken + decided_after * len(self._open("gpu") + self._open("path"))

    def _open(self, kind: str) -> list[Component]:
        """Candidates of one kind, de-duplicated across the suspicious probes, in order of rank."""
        found = {c for p in self._suspicious for c in self.evidence.open_in(p.members) if c.kind == kind}
        return sorted(found)

    def _resolve(self, kind: str) -> Steps[None]:
        """Test all candidates of one kind; what lacked padding is tried again once more is known."""
        stuck: list[Component] | None = None
        while (candidates := self._open(kind)) and candidates != stuck:
            stuck = candidates
            for component in candidates:
                if component in self.evidence.open_in(component.members):
                    yield from self._test(component)

    def _test(self, component: Component) -> Steps[None]:
        self.unresolved.pop(component, None)
        if component.kind == "gpu":
            yield from self._test_gpu(component.members[0])
        else:
            yield from self._test_path(*component.members)

    def _test_gpu(self, rank: int) -> Steps[None]:
        """Padded probes of one GPU, each with padding that the explanations by its paths do not contain.

        A GPU's own paths are never known healthy while it is suspected. So one slow probe says "the GPU or one
        of these paths"; the GPU is named when no two slow paths would explain all its slow probes as well.
        """
        component = gpu(rank)
        tests: list[int] = []
        while (star := self.evidence.small_star(rank)) is not None or len(tests) < ACCUSE_AFTER:
            used = {m for number in tests for m in self.evidence.slow_probes[number]} - {rank}
            pads = self._pads((rank,), avoid_first=used, avoid_always=star or ())
            if pads is None:
                yield from self._test_gpu_alone(rank, tests, star)
                return
            slow = yield from self._probe((rank, *pads), component, tests)
            if slow is None or not slow:
                return
        self.evidence.accuse(Finding(component, tests))

    def _test_gpu_alone(self, rank: int, tests: list[int], star: tuple[int, ...] | None) -> Steps[None]:
        """No padding is left: a self-loop crosses no path; without it, name the class of equals."""
        component = gpu(rank)
        if self.settings.any_size:
            slow = True
            for _ in range(ACCUSE_AFTER):
                outcome = yield from self._probe((rank,), component, tests)
                slow = bool(outcome)
                if not slow:
                    return
            self.evidence.accuse(Finding(component, tests))
        elif len(tests) >= ACCUSE_AFTER:
            equals = tuple(path(rank, other) for other in star or ())
            self.evidence.accuse(Finding(component, tests, alternatives=equals))
        else:
            self.unresolved[component] = "no GPU known healthy is left to pad a probe with"

    def _test_path(self, u: int, v: int) -> Steps[None]:
        """Padded probes of one path: two slow ones accuse it, a fast one clears it unless it stands 2 to 1."""
        component = path(u, v)
        if not (self.evidence.healthy_gpus[u] and self.evidence.healthy_gpus[v]):
            self.unresolved[component] = "an end of it could not be cleared"
            return
        tests: list[int] = []
        used: set[int] = set()
        fast = 0
        while len(tests) < ACCUSE_AFTER:
            pads = self._pads((u, v), avoid_first=used)
            if pads is None:
                if not self.settings.any_size:
                    self.unresolved[component] = "no padding is left whose every path is known healthy"
                    return
                pads = self.evidence.pads((u, v), self.settings.k - 2)
            used |= set(pads)
            slow = yield from self._probe((u, v, *pads), component, tests)
            if slow is None:
                return
            fast += not slow
            if not slow and (not tests or fast == ACCUSE_AFTER):
                self._acquit((u, v, *pads), tests)
                return
        self.evidence.accuse(Finding(component, tests))
        yield from self._doubt_gpus(u, v)

    def _acquit(self, members: tuple[int, ...], contradicted: list[int]) -> None:
        """A fast isolating probe; slow ones of the same component were bursts."""
        for number in contradicted:
            del self.evidence.slow_probes[number]
        self.evidence.clear(members)

    def _doubt_gpus(self, *ranks: int) -> Steps[None]:
        """Several slow paths at one GPU: it may be the GPU, cleared by one lucky probe. Test it again."""
        for rank in ranks:
            if len(self.evidence.slow_paths_at(rank)) < STAR:
                continue
            known = self.evidence.healthy_paths[rank].copy()
            self.evidence.reopen(rank)
            yield from self._test_gpu(rank)
            if self.evidence.healthy_gpus[rank]:
                self.evidence.healthy_paths[rank] |= known
                self.evidence.healthy_paths[:, rank] |= known

    def _pads(
        self, target: tuple[int, ...], *, avoid_first: set[int], avoid_always: tuple[int, ...] = ()
    ) -> tuple[int, ...] | None:
        """Padding up to k, other than used before if there is some; None when a full probe cannot be formed."""
        wanted = self.settings.k - len(target)
        for avoid in ({*avoid_first, *avoid_always}, set(avoid_always)):
            pads = self.evidence.pads(target, wanted, avoid)
            if len(pads) == wanted:
                return pads
        return None

    def _probe(self, members: tuple[int, ...], under_test: Component, tests: list[int]) -> Steps[bool | None]:
        """Measure one isolating probe: True when slow (and noted in ``tests``), None when nothing compares."""
        ranks = tuple(sorted(members))
        if not (yield from self._has_baseline(ranks)):
            self.unresolved[under_test] = f"no healthy probe of {len(ranks)} GPUs to compare with"
            return None
        probe = self.ledger.open(ranks, 2, str(under_test))
        slow = yield from self.ledger.judge(probe)
        if slow:
            tests.append(probe.number)
            self.evidence.slow_probes[probe.number] = ranks
        elif under_test.kind == "gpu":
            self.evidence.clear(ranks)
        return slow

    def _has_baseline(self, ranks: tuple[int, ...]) -> Steps[bool]:
        """Make sure that a probe's hop class has a baseline, measuring healthy probes of that class if not."""
        wanted = self.ledger.class_of(ranks)
        if wanted in self.ledger.baselines:
            return True
        references = [self.ledger.open(members, 2, "reference") for members in self._healthy_sets(ranks, wanted)]
        if not references:
            return False
        yield from self.ledger.sweep(references)
        values = [self.ledger.value(p.number).value_ms for p in references]
        self.ledger.baselines[wanted] = sorted(values)[len(values) // 2]
        return True

    def _healthy_sets(self, ranks: tuple[int, ...], wanted: str) -> list[tuple[int, ...]]:
        """Up to three sets of known healthy GPUs and paths in the hop class that is wanted.

        Drawn at random, from (seed, probe number): the lowest ranks would all sit in one host, which without a
        topology would make them a reference for nothing but themselves.
        """
        rng = np.random.default_rng((self.settings.seed, len(self.ledger.probes)))
        found: list[tuple[int, ...]] = []
        for _ in range(REFERENCE_DRAWS):
            members = self._healthy_clique(rng.permutation(self.settings.gpus), ranks, wanted)
            if len(members) == len(ranks) and self.ledger.class_of(members) == wanted and members not in found:
                found.append(members)
            if len(found) == REFERENCES:
                break
        return found

    def _healthy_clique(self, order: NDArray[np.intp], ranks: tuple[int, ...], wanted: str) -> tuple[int, ...]:
        """Healthy GPUs in a given order, each with a healthy path to all before it; of one host if so wanted."""
        hosts = self.settings.hosts
        chosen: list[int] = []
        for rank in map(int, order):
            if len(chosen) == len(ranks):
                break
            elsewhere = hosts is not None and chosen and hosts[rank] != hosts[chosen[0]]
            if elsewhere and wanted.endswith("same_host"):
                continue
            if self.evidence.healthy_gpus[rank] and self.evidence.healthy_paths[rank, chosen].all():
                chosen.append(rank)
        return tuple(sorted(chosen))

    def _account_for(self, suspicious: list[Probe]) -> Steps[None]:
        """Every suspicious probe must be explained by a finding; what is not is measured once more."""
        for probe in suspicious:
            if self.evidence.explains(probe.members) or any(
                c in self.unresolved for c in self.evidence.open_in(probe.members)
            ):
                continue
            again = self.ledger.open(probe.members, 2, "recheck")
            if (yield from self.ledger.judge(again)):
                self.notes.append(Note("slow_but_unexplained", _unexplained(probe)))
            else:
                del self.evidence.slow_probes[probe.number]
                self.notes.append(Note("not_reproduced", _not_reproduced(probe), open=False))
        self._tell_unresolved()

    def _tell_unresolved(self) -> None:
        still_open = {c: why for c, why in self.unresolved.items() if c in self.evidence.open_in(c.members)}
        if still_open:
            names = ", ".join(str(c) for c in sorted(still_open)[:20])
            more = f" and {len(still_open) - 20} more" if len(still_open) > 20 else ""
            why = "; ".join(sorted(set(still_open.values())))
            self.notes.append(Note("cannot_be_separated", f"one of these may be slow: {names}{more} ({why})"))


def _ranks(probe: Probe) -> str:
    return ", ".join(map(str, probe.members))


def _unexplained(probe: Probe) -> str:
    return (
        f"probe {probe.number} of GPUs {_ranks(probe)} is slow again when repeated, but no single GPU or path"
        " in it is slow on its own"
    )


def _not_reproduced(probe: Probe) -> str:
    return f"probe {probe.number} of GPUs {_ranks(probe)} was slow once and fast when repeated"
