"""What probes cost as far as it is known now, the sweep that follows from it, and what faults would add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.calibration import LOAD
from app.localization.adaptive.costs import Costs, Transport, certified_effect
from app.localization.adaptive.hypotheses import Hypotheses
from app.localization.adaptive.noise import Floats
from app.localization.adaptive.planner import (
    REPEATS_OUT_OF_REACH,
    LocalizePlan,
    Targets,
    plan_localize,
    possible,
    smallest_faults,
)


class CostModel:
    """Costs, and what is derived from them.

    Parameters
    ----------
    gpus, hosts : int
        How many.
    told : Assumptions
        Targets, and what is known beforehand.
    """

    def __init__(self, gpus: int, hosts: int, told: Assumptions) -> None:
        self._gpus, self._hosts, self._told = gpus, hosts, told
        self.most = told.max_tokens or (LOAD if told.costs is None else None)
        """Sequences that a rank is given at most; None: no limit."""
        self.assume(told.costs or Costs())

    def assume(self, costs: Costs) -> None:
        """Take in what a step costs, and plan the sweep by it."""
        told = self._told
        plan = plan_localize(
            self._gpus, costs, told.targets, told.transport, hosts=self._hosts, max_tokens=self.most
        )
        self._set(costs, plan, possible(told.transport), told.targets)

    def assume_unsplit(self, step_ms: float, load: int, sigma: float) -> None:
        """Take in what a step of a certain load takes, not what of it is fixed, computed and sent.

        Where there are so few GPUs that one shift a probe is right anyway, it is not worth probes of its own to
        split it up. What is said of slowdowns then is of whole steps, as if nothing diluted them.
        """
        costs = Costs(fixed_ms=step_ms, compute_ms=0.0, path_ms=0.0, sigma=sigma)
        groups = self._gpus // 2
        plan = LocalizePlan(
            r=1,
            tokens=load,
            loop_tokens=load,
            repeats=REPEATS_OUT_OF_REACH,
            loop_repeats=REPEATS_OUT_OF_REACH,
            probes_healthy=2 * groups + 1,
            path_units=groups * REPEATS_OUT_OF_REACH * self._gpus * load,
            seconds_healthy=(2 * groups + 1) * REPEATS_OUT_OF_REACH * step_ms / 1000,
            detectable={},
            reachable=True,
        )
        self._set(costs, plan, ("undiluted",), None)

    def _set(
        self, costs: Costs, plan: LocalizePlan, transports: Sequence[Transport], targets: Targets | None
    ) -> None:
        self.costs, self.plan, self._transports = costs, plan, transports
        self.hypotheses = Hypotheses.beyond(costs, transports, targets, self.smallest(costs.sigma))

    def smallest(self, sigma: float) -> dict[str, float]:
        """Smallest faults that are told from noise of that sigma with the planned repeats."""
        plan = self.plan
        return smallest_faults(
            replace(self.costs, sigma=sigma),
            self._transports,
            load=(plan.tokens, plan.loop_tokens),
            r=plan.r,
            repeats=(plan.repeats, plan.loop_repeats),
        )

    def path_effects(self, load: int, dilution: int, sigma: float) -> Floats:
        """See `Hypotheses.of_path`."""
        return self.hypotheses.of_path(load, dilution, certified_effect(sigma, self.plan.repeats))

    def gpu_effects(self, load: int, sigma: float) -> Floats:
        """See `Hypotheses.of_gpu`."""
        return self.hypotheses.of_gpu(load, certified_effect(sigma, self.plan.loop_repeats))

    def log_ms(self, *, over_paths: bool) -> float:
        """What a healthy probe of the sweep takes, log ms: over paths, or of self-loops."""
        load = self.plan.tokens if over_paths else self.plan.loop_tokens
        return math.log(self.costs.healthy_ms(load, over_paths=over_paths))
