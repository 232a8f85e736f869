"""A probe: what is sent where, once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from app.localization.components import Component
from app.localization.shapes import Ranks, Sends, Shape

Phase = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement to take.

    Parameters
    ----------
    number : int
        Identifies the probe within its job, from 1; repeats of a probe share it.
    shape : Shape
        Who sends how much to whom.
    phase : {1, 2}
        1 covers, 2 drills down.
    purpose : str
        ``cover``, ``reference``, ``recheck`` or the component under test (``gpu:5``).
    repeat : int
        Which repeat of the probe this measurement is, from 0.
    """

    number: int
    shape: Shape
    phase: Phase
    purpose: str
    repeat: int = 0

    def again(self, repeat: int) -> Probe:
        """The same probe, measured once more."""
        return replace(self, repeat=repeat)

    @property
    def members(self) -> Ranks:
        """Ranks that send or receive, ascending."""
        return self.shape.members

    @property
    def sends(self) -> Sends:
        """Receivers and sequences of every sender."""
        return self.shape.sends

    @property
    def path_units(self) -> int:
        """See `Shape.path_units`."""
        return self.shape.path_units

    def components(self, *, paths: bool = True) -> list[Component]:
        """See `Shape.components`."""
        return self.shape.components(paths=paths)


def hop_class(members: tuple[int, ...], hosts: tuple[int, ...] | None) -> str:
    """Hop class of a probe: its size, and whether it leaves a host. Only probes of one class are compared."""
    if hosts is None:
        return f"{len(members)}"
    inside = len({hosts[rank] for rank in members}) == 1
    return f"{len(members)}/{'same_host' if inside else 'cross_host'}"
