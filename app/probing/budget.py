"""How fast a replica may be probed: a token bucket in probes per second and one in tokens per second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bucket:
    """A token bucket that holds one second's worth at most and may be overdrawn by a single large probe.

    Parameters
    ----------
    rate : float
        Refill a second.
    now : callable
        Clock in seconds.
    """

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        self._rate = rate
        self._now = now
        # A new slice of a job must not get a second's worth for free.
        self._level = min(1.0, rate)
        self._at = now()

    def take(self, amount: float) -> float:
        """Take ``amount``; the seconds to wait before it may be used."""
        now = self._now()
        self._level = min(max(self._rate, 1.0), self._level + (now - self._at) * self._rate)
        self._at = now
        wait = max(0.0, (min(amount, max(self._rate, 1.0)) - self._level) / self._rate)
        self._level -= amount
        return wait


class Budget:
    """Limits of one replica.

    Parameters
    ----------
    probes_per_second, tokens_per_second : float or None
        None: no limit. A probe counts once however many requests it takes; parking counts in tokens.
    """

    def __init__(
        self,
        probes_per_second: float | None,
        tokens_per_second: float | None,
        *,
        now: Callable[[], float] | None = None,
    ) -> None:
        clock = now or asyncio.get_running_loop().time
        self._probes = Bucket(probes_per_second, clock) if probes_per_second else None
        self._tokens = Bucket(tokens_per_second, clock) if tokens_per_second else None

    def reserve(self, *, probes: int, tokens: int) -> float:
        """Take from both buckets; the seconds to wait."""
        waits = [0.0]
        if self._probes is not None and probes:
            waits.append(self._probes.take(probes))
        if self._tokens is not None and tokens:
            waits.append(self._tokens.take(tokens))
        return max(waits)
