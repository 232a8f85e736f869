"""What every strategy offers to a session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from app.localization.record import Record, Steps
from app.localization.settings import Settings


@dataclass(frozen=True, slots=True)
class Note:
    """Something the verdict must say.

    Parameters
    ----------
    code : str
        Stable, for programs.
    text : str
        For the person on call.
    open : bool
        Something stays undecided: without a suspect the verdict is then ``inconclusive``.
    """

    code: str
    text: str
    open: bool = True


@dataclass(frozen=True, slots=True)
class Suspect:
    """One accused component.

    Parameters
    ----------
    kind, members
        As in `Component`.
    slowdown : float or None
        Its isolating probes over the baseline (a whole probe, so diluted for a path); None for a hard failure.
    slowdown_is_lower_bound : bool
        The probes were cut off at their deadline.
    confidence : float
        Rule of succession over the measurements that isolated it, (slow + 1) / (all + 2).
    accusing, acquitting : list of int
        Slow and fast probes that contain it.
    alternatives : list of str
        Components that explain the same measurements equally well.
    """

    kind: str
    members: list[int]
    slowdown: float | None
    slowdown_is_lower_bound: bool
    confidence: float
    accusing: list[int]
    acquitting: list[int]
    alternatives: list[str]

    @property
    def name(self) -> str:
        """For example ``path:3-17``."""
        return f"{self.kind}:{'-'.join(map(str, self.members))}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a strategy knows when it ends, or is cut short; the verdict is made of it.

    Parameters
    ----------
    suspects : list of Suspect
        GPUs first.
    masked, untested : list of str
        See `app.localization.verdict.Verdict`.
    detectable : dict
        Smallest faults it could have seen.
    baseline_ms : float or None
        The healthy reference, in milliseconds.
    notes : list of Note
        What the verdict must say of it.
    uniform : bool
        Everything alike is slower than history says: an outcome of its own when nothing is accused.
    """

    suspects: list[Suspect]
    masked: list[str]
    untested: list[str]
    detectable: dict[str, float | None]
    baseline_ms: float | None
    notes: list[Note] = field(default_factory=list)
    uniform: bool = False


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a strategy will measure on a healthy replica.

    Parameters
    ----------
    probes, measurements : int
        Distinct ones, and every time one is taken.
    sequences, path_units : int
        Sequences of all measurements together, and how many of them cross a path.
    lower_bound : int
        No strategy with such probes needs fewer.
    detectable : dict
        Smallest faults it can see.
    by_transport : dict
        The same where it depends on the transport, for each that may hold; what is certified is the worse.
    """

    probes: int
    measurements: int
    sequences: int
    path_units: int
    lower_bound: int
    detectable: dict[str, float | None]
    by_transport: dict[str, dict[str, float | None]] = field(default_factory=dict)


class Strategy(ABC):
    """Decides the next probe from the readings so far.

    ``run`` is a generator that yields probes and is sent readings; it must depend on nothing else, so that a
    log replays to the same probes. ``report`` tells what is known at any moment: a session that is cut short
    makes its verdict from it.

    Parameters
    ----------
    settings : Settings
        The session's settings.
    """

    record: Record

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.notes: list[Note] = []

    @abstractmethod
    def plan(self) -> SweepPlan:
        """What it takes to certify a healthy replica, before anything is measured."""

    @abstractmethod
    def run(self) -> Steps[None]:
        """Yield one measurement at a time until nothing is left to decide."""

    @abstractmethod
    def planned(self) -> int:
        """Measurements expected in all, as far as it is known now."""

    @abstractmethod
    def refused(self, rank: int) -> None:
        """Take in that a rank refuses connections on its own URL, while others answer."""

    @abstractmethod
    def report(self, *, complete: bool) -> Report:
        """What is known now; ``complete`` when `run` came to its end."""
