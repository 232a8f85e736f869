"""A probe: which GPUs send tokens to which, once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from app.localization.components import Component, gpu, path

Phase = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement to take: every member sends to every member (the paper's probe, A = B = S).

    Parameters
    ----------
    number : int
        Identifies the probe within its job, from 1; repeats of a probe share it.
    members : tuple of int
        Ascending ranks; one member means a self-loop.
    phase : {1, 2}
        1 covers, 2 drills down.
    purpose : str
        ``cover``, ``reference``, ``recheck`` or the component under test (``gpu:5``).
    repeat : int
        Which repeat of the probe this measurement is, from 0.
    sequences : int
        Sequences a sender sends to each receiver. One in a probe of k; a smaller probe sends more, so that every
        GPU still computes for about k sequences and a slow one stands out as much.
    """

    number: int
    members: tuple[int, ...]
    phase: Phase
    purpose: str
    repeat: int = 0
    sequences: int = 1

    def again(self, repeat: int) -> Probe:
        """The same probe, measured once more."""
        return replace(self, repeat=repeat)

    @property
    def sends(self) -> dict[int, tuple[int, ...]]:
        """Receivers of each sender, itself included: every GPU then computes for the same number of senders."""
        return dict.fromkeys(self.members, self.members)

    @property
    def path_units(self) -> int:
        """Directed paths times sequences on each: multiplied by the tokens a sequence, the communication cost."""
        return self.sequences * len(self.members) * (len(self.members) - 1)

    def components(self, *, paths: bool = True) -> list[Component]:
        """Every GPU, and (with ``paths``) every path, that the probe touches."""
        gpus = [gpu(rank) for rank in self.members]
        return gpus + [path(u, v) for u, v in combinations(self.members, 2)] if paths else gpus


def hop_class(members: tuple[int, ...], hosts: tuple[int, ...] | None) -> str:
    """Hop class of a probe: its size, and whether it leaves a host. Only probes of one class are compared."""
    if hosts is None:
        return f"{len(members)}"
    inside = len({hosts[rank] for rank in members}) == 1
    return f"{len(members)}/{'same_host' if inside else 'cross_host'}"
