"""Waiting for processes that go on by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SECONDS = 120.0


def until(what: Callable[[], Any]) -> Any:
    """Poll until something is true; the bound is generous, the machine is shared."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {SECONDS} s")
