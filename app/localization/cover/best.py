"""The smallest cover known here: the portfolio's recipe, polished, against the greedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

from app.localization.cover.bounds import Cover, check_size, schonheim_bound, verify_cover
from app.localization.cover.classes import class_first, in_classes, padded, touching
from app.localization.cover.designs import Blocks
from app.localization.cover.greedy import greedy_cover, smaller_greedy_cover
from app.localization.cover.hosts import aligned
from app.localization.cover.polish import polished
from app.localization.cover.portfolio import portfolio

Hosts = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class BestCover:
    """A verified cover and where it comes from.

    Attributes
    ----------
    n, k : int
        GPUs, and GPUs a probe.
    probes : tuple of tuple of int
        Ascending ranks, ``min(n, k)`` in each probe, in parallel classes as far as there are any.
    method : str
        The recipe: ``seed``, ``transversal``, ``wilson``, ``affine``, ``projective``, ``blow-up``, ``deletion``,
        ``pairs``, ``single`` or ``greedy``.
    lower_bound : int
        Schonheim's.
    first_class : int
        The first so many probes touch every GPU: ``ceil(n / k)`` where the cover has such a class and it was
        found, a few more otherwise.
    """

    n: int
    k: int
    probes: Cover
    method: str
    lower_bound: int
    first_class: int

    @property
    def greedy_probes(self) -> int:
        """What Algorithm 1 takes without hosts; computed (and cached) when asked for."""
        return len(greedy_cover(self.n, self.k))


def best_cover(n: int, k: int, hosts: Sequence[int] | None = None) -> BestCover:
    """Cover every GPU and path by as few probes of ``k`` GPUs as is known here, never more than the greedy takes.

    Parameters
    ----------
    n : int
        Number of GPUs, 2..1024.
    k : int
        Probe size, 2..16. Seeds and recipes of full quality exist for 4 and 8. With ``n <= k`` the cover is one
        probe of all GPUs.
    hosts : sequence of int, shape (n,), optional
        Host index of each rank. When given, the first class of probes is laid on the hosts (``aligned``): with
        hosts of k GPUs its probes *are* the hosts. Unlike the greedy's, such probes stay inside one host.

    Returns
    -------
    BestCover
        The same one for the same arguments; verified.

    Raises
    ------
    SettingsError
        When ``n``, ``k`` or the length of ``hosts`` is out of range.
    CoverError
        When the cover does not hold what it promises: a defect.
    """
    check_size(n, k, hosts)
    with _SLOTS:
        slot = _slot(n, k, None if hosts is None else tuple(hosts))
    return slot.get()


class _Slot:
    """A cover that is computed once; who asks for it meanwhile waits, who asks for another does not."""

    def __init__(self, n: int, k: int, hosts: Hosts) -> None:
        self._wanted = (n, k, hosts)
        self._lock = Lock()
        self._cover: BestCover | None = None

    def get(self) -> BestCover:
        with self._lock:
            if self._cover is None:
                self._cover = _compute(*self._wanted)
            return self._cover


_SLOTS = Lock()


@lru_cache(maxsize=64)
def _slot(n: int, k: int, hosts: Hosts) -> _Slot:
    return _Slot(n, k, hosts)


def _compute(n: int, k: int, hosts: Hosts) -> BestCover:
    bound = schonheim_bound(n, k)
    blocks, method = _smallest(n, k, hosts, bound)
    first = touching(n, k, blocks)
    blocks = padded(n, min(n, k), blocks)
    if k > 2:  # pairs come in classes already
        blocks = in_classes(blocks, first, n)
    if hosts is not None:
        blocks = aligned(blocks, first, hosts)
    verify_cover(blocks, n, k)
    return BestCover(n, k, tuple(map(tuple, blocks)), method, bound, first)


def _smallest(n: int, k: int, hosts: Hosts, bound: int) -> tuple[Blocks, str]:
    """Blocks of at most k, the first of them touching all points; and the method."""
    blocks, method = portfolio(k).build(n)
    if len(blocks) > bound:
        blocks = class_first(n, k, polished(n, k, blocks))
    for given in {None, hosts}:
        if len(blocks) > bound:
            found = smaller_greedy_cover(n, k, given, fewer_than=len(blocks))
            if found is not None:
                blocks, method = class_first(n, k, [list(block) for block in found]), "greedy"
    return blocks, method
