"""GPUs that two engines share: how much a step of one is slowed by steps of the other."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SharedGpus:
    """Couples engines on the same GPUs.

    Every engine has its own queue and steps at its own pace. A step that begins while another engine is in a
    step takes ``1 + contention * occupancy`` times as long, where occupancy is the share of the other's step in
    which GPUs or network work for it: all but its fixed part. So a fault slows both engines by what it does to
    their own steps, and then each a little more by what it does to the other's. The factor holds for a whole
    step: when the other engine starts or stops in the middle, the next step is the first to show it.

    Parameters
    ----------
    contention : float
        0: engines do not feel each other; 1: as if they took turns.
    """

    contention: float = 0.0
    _occupancy: dict[int, float] = field(default_factory=dict)

    def enter(self, engine: int, occupancy: float) -> float:
        """Note that an engine begins a step of that occupancy (0 to 1); return the step's factor, at least 1."""
        self._occupancy[engine] = occupancy
        return 1 + self.contention * sum(value for key, value in self._occupancy.items() if key != engine)

    def leave(self, engine: int) -> None:
        """Note that an engine has nothing to do."""
        self._occupancy.pop(engine, None)
