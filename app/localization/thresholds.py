"""From the values of a sweep to the healthy reference, and from repeats to one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from app.localization.settings import Aggregate, BaselineMethod


@dataclass(frozen=True, slots=True, order=True)
class Reading:
    """One measured latency in milliseconds; ``censored`` when the probe was cut off: at least this slow."""

    value_ms: float
    censored: bool = False


def combine(readings: Sequence[Reading], aggregate: Aggregate) -> Reading:
    """One value from the repeats of a probe.

    The median of an even number is the mean of the middle two. A result that rests on a censored
    reading is censored itself.
    """
    ordered = sorted(readings)
    if aggregate == "min":
        return ordered[0]
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    return Reading(fmean(r.value_ms for r in middle), any(r.censored for r in middle))


def baseline_ms(values: Sequence[float], method: BaselineMethod, alpha: float) -> float:
    """The healthy reference of one hop class.

    Parameters
    ----------
    values : sequence of float
        One aggregated latency a probe, in milliseconds; at least one.
    method : {"median", "low_decile"}
        ``median`` is the paper's. ``low_decile``, the mean of the lowest tenth and of at least two, holds
        where slow GPUs could sit in more than about 0.4 of the probes (DESIGN section 5). When even the second
        lowest is suspicious against the lowest, the lowest alone is the reference: in a small replica two slow
        GPUs can leave just one probe fast.
    alpha : float
        The threshold's factor.
    """
    if method == "median":
        return median(values)
    lowest = sorted(values)[: max(2, len(values) // 10)]
    return lowest[0] if lowest[1:] and lowest[1] > alpha * lowest[0] else fmean(lowest)
