"""How much longer a probe takes by every size of fault that is considered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from app.localization.adaptive.costs import Costs, Transport
from app.localization.adaptive.noise import Floats
from app.localization.adaptive.planner import Targets

FACTORS = 20
LARGEST_FACTOR = 20.0
# Delays added to the messages of a path, in healthy steps.
DELAYS = (0.3, 0.6, 1.2, 2.5)
# No fault is looked for that is larger than that.
LARGEST = 1000.0
# A fault at the target is still found when its cost is known to a quarter only.
MARGIN = 0.75


class Hypotheses:
    """Sizes of faults and their effects: rise of the logarithm of a step.

    Parameters
    ----------
    costs : Costs
        What a step costs.
    transport : {"serial", "shared", "undiluted"}
        See `Costs.path_effect`.
    path, gpu : float
        Smallest slowdown that is looked for.
    """

    def __init__(self, costs: Costs, transport: Transport, *, path: float, gpu: float) -> None:
        self._costs, self._transport = costs, transport
        self._paths, self._gpus = _factors(path), _factors(gpu)

    @classmethod
    def beyond(
        cls, costs: Costs, transports: Sequence[Transport], targets: Targets | None, smallest: Mapping[str, float]
    ) -> Hypotheses:
        """Sizes from the targets on, or from the smallest faults that are told from noise where these are larger.

        Shared transport shows less of a slow path than serial, and comes last: where it is not known, expect less.
        """
        path, gpu = (1.0, 1.0) if targets is None else (targets.path, targets.gpu)
        return cls(
            costs,
            transports[-1],
            path=max(path, min(smallest["path"], LARGEST)),
            gpu=max(gpu, min(smallest["gpu"], LARGEST)),
        )

    @property
    def severities(self) -> int:
        """How many sizes of one component's fault."""
        return FACTORS + len(DELAYS)

    def of_path(self, tokens: int, dilution: int, least: float) -> Floats:
        """Effects of a slow path in a probe in which a rank sends ``tokens`` over so many, shape (severities,).

        What would show less than ``least``, the smallest effect that is told from noise, is not looked for: no
        probe would ever clear anything.
        """
        effects = [self._costs.path_effect(s, tokens, dilution, self._transport) for s in self._paths]
        return _seen(effects, least)

    def of_gpu(self, tokens: int, least: float, *, over_paths: bool = False) -> Floats:
        """Effects of a slow GPU in a probe of self-loops, or of sends, shape (severities,); see `of_path`."""
        effects = [self._costs.gpu_effect(s, tokens, self._transport, over_paths=over_paths) for s in self._gpus]
        return _seen(effects, least)


def _seen(effects: list[float], least: float) -> Floats:
    least *= MARGIN
    return np.array([max(least, effect) for effect in effects + [math.log1p(share) for share in DELAYS]])


def _factors(smallest: float) -> list[float]:
    low = 1 + MARGIN * (smallest - 1)
    return list(np.exp(np.linspace(math.log(low), math.log(max(LARGEST_FACTOR, 4 * low)), FACTORS)))
