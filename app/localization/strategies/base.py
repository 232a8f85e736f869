"""What every strategy offers to a session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from app.localization.evidence import Evidence
from app.localization.ledger import Ledger, Steps
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


class Strategy(ABC):
    """Decides the next probe from the readings so far.

    ``run`` is a generator that yields probes and is sent readings; it must depend on nothing else, so that a
    log replays to the same probes. ``evidence`` and ``ledger`` hold what is known at any moment: a session
    that is cut short makes its verdict from them.

    Parameters
    ----------
    settings : Settings
        The session's settings.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ledger = Ledger(settings)
        self.evidence = Evidence(settings)
        self.notes: list[Note] = []

    @abstractmethod
    def cover(self) -> tuple[tuple[int, ...], ...]:
        """The probes of Phase 1, known before anything is measured."""

    @abstractmethod
    def run(self) -> Steps[None]:
        """Yield one measurement at a time until nothing is left to decide."""

    @abstractmethod
    def planned(self) -> int:
        """Measurements expected in all, as far as it is known now."""
