"""How often an address may fail: counted in this process, forgotten after a minute."""

from __future__ import annotations

from functools import lru_cache

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter


@lru_cache(maxsize=1)
def _limiter() -> FixedWindowRateLimiter:
    return FixedWindowRateLimiter(MemoryStorage())


def hit(per_minute: int, address: str) -> bool:
    """Count a failure; False when the address has had its share of this minute."""
    return _limiter().hit(RateLimitItemPerMinute(per_minute), "api key", address)


def forget() -> None:
    """Forget all counts."""
    _limiter().storage.reset()
