"""What a probe costs a healthy replica, and how much longer a fault makes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from app.localization.errors import SettingsError

Transport = Literal["serial", "shared", "undiluted"]

# One-sided 99 % quantile of the normal distribution: false alarms and misses alike stay below 1 % a reading.
Z_99 = 2.3263


@dataclass(frozen=True, slots=True)
class Costs:
    """T = fixed + compute x received + path x max(sent, received), per lock-step step.

    Parameters
    ----------
    fixed_ms : float
        t0: part of every step, ms; above zero.
    compute_ms : float
        a: per token that a GPU receives, ms.
    path_ms : float
        b: per token over a path, dispatch and combine together, ms.
    sigma : float
        Noise of one reading: standard deviation of its logarithm.

    Raises
    ------
    SettingsError
        A value out of range.
    """

    fixed_ms: float = 20.0
    compute_ms: float = 5 / 512
    path_ms: float = 5 / 448
    sigma: float = 0.05

    def __post_init__(self) -> None:
        for name, lowest in (("fixed_ms", 1e-6), ("compute_ms", 0.0), ("path_ms", 0.0), ("sigma", 0.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and lowest <= value < 1e6):
                raise SettingsError(name, f"must be {lowest:g} to 1000000, got {value}")

    @property
    def balanced_tokens(self) -> float:
        """Tokens whose work, computed and sent, takes as long as the fixed part of a step: a rank's best load.

        DESIGN section 5, detectability. 1 where tokens cost nothing.
        """
        per_token = self.compute_ms + self.path_ms
        return self.fixed_ms / per_token if per_token else 1.0

    def healthy_ms(self, tokens: float, *, over_paths: bool) -> float:
        """A step in which every rank computes for ``tokens``, and sends as many over paths or none."""
        return self.fixed_ms + tokens * (self.compute_ms + self.path_ms * over_paths)

    def path_effect(self, slowdown: float, tokens: float, r: int, transport: Transport) -> float:
        """Rise of log T by one slow path in a probe in which every rank sends ``tokens / r`` to each of r others.

        Under ``serial`` transport a rank's sends take turns and a path slower by s adds (s - 1)/r of them; under
        ``shared`` they flow side by side, and it adds (s - r)/r once s is above r. ``undiluted`` is the paper's
        binary model: whatever contains a fault shows it whole.
        """
        if transport == "undiluted":
            return math.log(slowdown)
        excess = (slowdown - 1) / r if transport == "serial" else max(0.0, slowdown - r) / r
        return math.log1p(excess * tokens * self.path_ms / self.healthy_ms(tokens, over_paths=True))

    def gpu_effect(
        self, slowdown: float, tokens: float, transport: Transport = "serial", *, over_paths: bool = False
    ) -> float:
        """Rise of log T by one slow GPU in a probe of self-loops with ``tokens`` each, or of sends over paths."""
        if transport == "undiluted":
            return math.log(slowdown)
        whole = self.healthy_ms(tokens, over_paths=over_paths)
        return math.log1p((slowdown - 1) * tokens * self.compute_ms / whole)

    def delay_effect(self, delay_ms: float, tokens: float) -> float:
        """Rise of log T by a delay added to the messages of one path."""
        return math.log1p(delay_ms / self.healthy_ms(tokens, over_paths=True))

    def smallest_path(self, effect: float, tokens: float, r: int, transport: Transport) -> float:
        """The path slowdown whose `path_effect` is ``effect``; infinite where paths cost nothing."""
        if transport == "undiluted":
            return math.exp(effect)
        whole = tokens * self.path_ms
        if whole == 0:
            return math.inf
        excess = math.expm1(effect) * self.healthy_ms(tokens, over_paths=True) / whole
        return 1 + r * excess if transport == "serial" else r + r * excess

    def smallest_gpu(
        self, effect: float, tokens: float, transport: Transport = "serial", *, over_paths: bool = False
    ) -> float:
        """The GPU slowdown whose `gpu_effect` is ``effect``; infinite where computing costs nothing."""
        if transport == "undiluted":
            return math.exp(effect)
        whole = tokens * self.compute_ms
        if whole == 0:
            return math.inf
        return 1 + math.expm1(effect) * self.healthy_ms(tokens, over_paths=over_paths) / whole

    def smallest_delay_ms(self, effect: float, tokens: float) -> float:
        """The added delay whose `delay_effect` is ``effect``."""
        return math.expm1(effect) * self.healthy_ms(tokens, over_paths=True)


def certified_effect(sigma: float, repeats: int) -> float:
    """Rise of log T that ``repeats`` readings tell from noise, with 1 % false alarms and 1 % misses.

    With the false alarms alone a fault at the limit would be missed half of the time.
    """
    return 2 * Z_99 * sigma / math.sqrt(repeats)
