"""From token times to TBT and TTFT, over the window in which all senders decode together.

Requests to many ranks do not arrive at one instant, so only the common window compares (DESIGN section 4).
Single gaps mean nothing under CPU contention, where chunks come in bursts: the mean over many tokens does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MIN_SHARE = 0.8
# No engine decodes faster: a stream that came in one burst, held up somewhere on its way, tells nothing.
MIN_TBT_MS = 0.05
# Tokens that follow each other within this share of the mean time between tokens were held up and came together.
BURST_SHARE = 0.125


@dataclass(frozen=True, slots=True)
class Window:
    """Latencies of one probe.

    Parameters
    ----------
    tbt_ms : float or None
        Mean time between tokens in the common window; None when a sequence has less than two tokens in it, or
        most of them in one burst.
    ttft_ms : float
        From sending to the last sequence's first token.
    skew_ms : float
        Between the first and the last sequence's first token.
    share : float
        Length of the common window over that of the shortest sequence, 0..1.
    """

    tbt_ms: float | None
    ttft_ms: float
    skew_ms: float
    share: float

    @property
    def usable(self) -> bool:
        """Whether enough of the probe was common to all senders, and did not come in one burst."""
        return self.tbt_ms is not None and self.tbt_ms >= MIN_TBT_MS and self.share >= MIN_SHARE


def common_window(sequences: Sequence[Sequence[float]], sent_at: float) -> Window:
    """Latencies over the window in which all sequences decode.

    Parameters
    ----------
    sequences : sequence of sequence of float
        Token arrival times in seconds, one ascending list a sequence, none empty.
    sent_at : float
        When the first request was written, same clock.
    """
    firsts = [times[0] for times in sequences]
    start, end = max(firsts), min(times[-1] for times in sequences)
    shortest = min(times[-1] - times[0] for times in sequences)
    gaps = [_mean_gap(times, start, end) for times in sequences]
    known = [gap for gap in gaps if gap is not None]
    share = max(0.0, (end - start) / shortest) if shortest > 0 else 0.0
    return Window(
        tbt_ms=1000 * sum(known) / len(known) if len(known) == len(gaps) else None,
        ttft_ms=1000 * (start - sent_at),
        skew_ms=1000 * (start - min(firsts)),
        share=min(1.0, share),
    )


def _mean_gap(times: Sequence[float], start: float, end: float) -> float | None:
    """Mean time between the tokens of the window, from the last of a burst that it begins with.

    Of tokens that were held up on their way and came together only the last can have come when it was made;
    counted from the first, the stream would look faster than any step. None where a burst leaves too little.
    """
    inside = [t for t in times if start <= t <= end]
    if len(inside) < 2:
        return None
    gaps, burst = len(inside) - 1, BURST_SHARE * (inside[-1] - inside[0])
    held_up = next((i for i, (a, b) in enumerate(pairwise(inside)) if gaps * (b - a) >= burst), gaps)
    return (inside[-1] - inside[held_up]) / (gaps - held_up) if held_up <= gaps / 2 else None


def flatten(requests: Iterable[Mapping[int, Sequence[float]]]) -> list[Sequence[float]]:
    """All sequences of all requests."""
    return [times for sequences in requests for times in sequences.values()]
