"""Tests of a suspect that came out fast: a part is slow with all of its GPUs, or it is not the part."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.localization.adaptive.groups import Test

# What else a reading met may have made the reference slow, or one retest; not two in a row.
RETESTS = 2


@dataclass
class Doubts:
    """What has to be tested again before a part is accused."""

    _again: list[Test] = field(default_factory=list)
    _fast: list[Test] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether a test that came out fast has not come out slow as often as it takes."""
        return bool(self._again)

    def next(self) -> Test | None:
        """A test that is to be repeated, if there is one."""
        return self._again.pop() if self._again else None

    def before(self, test: Test) -> bool:
        """Take in that a test came out fast; whether it had done so before."""
        known = test in self._fast
        if not known:
            self._fast.append(test)
            self._again = [test] * RETESTS
        return known
