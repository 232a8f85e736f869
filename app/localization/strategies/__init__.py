"""Strategies by name. A strategy decides which probe comes next; it never measures and never judges a job."""

from app.localization.errors import SettingsError
from app.localization.settings import Settings
from app.localization.strategies.adaptive import Adaptive
from app.localization.strategies.base import Note, Strategy, SweepPlan
from app.localization.strategies.faultsense import FaultSense, Pairwise
from app.localization.strategies.fixed_size import FixedSize

STRATEGIES: dict[str, type[Strategy]] = {"adaptive": Adaptive, "faultsense": FaultSense, "pairwise": Pairwise}

__all__ = ["STRATEGIES", "Note", "Strategy", "SweepPlan", "make_strategy"]


def make_strategy(settings: Settings) -> Strategy:
    """The strategy a session runs; ``adaptive`` with probes of k GPUs where the engine forms no others.

    Raises
    ------
    SettingsError
        When ``settings.strategy`` is not known.
    """
    told = settings.adaptive
    if settings.strategy == "adaptive" and (not settings.any_size or (told is not None and told.fixed_size)):
        return FixedSize(settings)
    try:
        return STRATEGIES[settings.strategy](settings)
    except KeyError:
        known = ", ".join(sorted(STRATEGIES))
        raise SettingsError("strategy", f"{settings.strategy!r} is not one of {known}") from None
