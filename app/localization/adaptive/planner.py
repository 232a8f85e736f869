"""Chooses the shape of the sweep for what the operator wants to find, or says what can be found in its place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.localization.adaptive.costs import Costs, Transport, certified_effect
from app.localization.adaptive.designs import shift_groups
from app.localization.cover import check_gpus
from app.localization.errors import SettingsError

MAX_REPEATS = 15
# Where no number of repeats reaches the target: more of them would still see little, and take long.
REPEATS_OUT_OF_REACH = 3
# Disjoint random parts of the GPUs, compared with each other: more of them than faults, as a rule.
PARTS = 6


@dataclass(frozen=True, slots=True)
class Targets:
    """What the operator wants to find: slowdowns, and a delay added to the messages of a path.

    Parameters
    ----------
    gpu, path : float
        Slowdown factors, above 1.
    delay_ms : float or None
        Above 0; None: no wish.

    Raises
    ------
    SettingsError
        A target out of range.
    """

    gpu: float = 1.5
    path: float = 3.0
    delay_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("target_gpu", self.gpu), ("target_path", self.path)):
            if not (math.isfinite(value) and 1 < value <= 1000):
                raise SettingsError(name, f"must be above 1 and at most 1000, got {value}")
        if self.delay_ms is not None and not (math.isfinite(self.delay_ms) and 0 < self.delay_ms <= 1e6):
            raise SettingsError("target_delay", f"must be above 0 and at most 1000000 ms, got {self.delay_ms}")


@dataclass(frozen=True, slots=True)
class LocalizePlan:
    """A sweep that certifies a healthy replica.

    Parameters
    ----------
    r : int
        Receivers of every rank in a probe of the sweep.
    tokens : int
        Tokens that every rank sends a step, a multiple of ``r``.
    loop_tokens : int
        Tokens of a self-loop.
    repeats, loop_repeats : int
        Readings that decide about one probe of the sweep over the paths, and of the self-loops.
    probes_healthy : int
        Distinct probes on a healthy replica.
    path_units : int
        Tokens times directed paths, of all readings of a step.
    seconds_healthy : float
        Expected time of one step a reading; a reading of several steps takes as many times longer.
    detectable : dict
        Smallest ``path`` and ``gpu`` slowdown and ``delay_ms`` that are told from noise; infinite: none.
    reachable : bool
        Whether they reach the targets.
    by_transport : dict
        ``detectable`` for each transport that may hold; ``detectable`` itself is the worse.
    """

    r: int
    tokens: int
    loop_tokens: int
    repeats: int
    loop_repeats: int
    probes_healthy: int
    path_units: int
    seconds_healthy: float
    detectable: dict[str, float]
    reachable: bool
    by_transport: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def measurements(self) -> int:
        """Probes of a healthy replica, each with its repeats."""
        return self.probes_healthy * self.repeats

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, with the name of the strategy."""
        return {
            "strategy": "adaptive",
            "r": self.r,
            "tokens": self.tokens,
            "loop_tokens": self.loop_tokens,
            "repeats": self.repeats,
            "loop_repeats": self.loop_repeats,
            "probes_healthy": self.probes_healthy,
            "path_units": self.path_units,
            "seconds_healthy": round(self.seconds_healthy, 3),
            "detectable": rounded(self.detectable),
            "reachable": self.reachable,
            "by_transport": {transport: rounded(smallest) for transport, smallest in self.by_transport.items()},
        }


def rounded(smallest: Mapping[str, float]) -> dict[str, float | None]:
    """Smallest faults as they are shown; None for none of a kind."""
    return {name: round(value, 3) if math.isfinite(value) else None for name, value in smallest.items()}


@dataclass(frozen=True, slots=True)
class _Choice:
    """A candidate for the sweep over the paths."""

    r: int
    tokens: int
    repeats: int
    groups: int

    def measurements(self) -> int:
        return self.groups * self.repeats


def plan_localize(
    gpus: int,
    costs: Costs,
    targets: Targets,
    transport: Transport | None = None,
    *,
    hosts: int = 1,
    max_tokens: int | None = None,
) -> LocalizePlan:
    """Choose r, load and repeats: the sweep of the shortest expected time that reaches the targets.

    The best load makes the work as long as the fixed part of a step (DESIGN section 5, detectability).

    Parameters
    ----------
    gpus : int
        n, 2..1024.
    costs : Costs
        As calibrated, or assumed.
    targets : Targets
        What the operator wants to find.
    transport : {"serial", "shared", "undiluted"} or None
        None: not known, so what is certified holds for serial and shared alike.
    hosts : int
        How many the GPUs sit in.
    max_tokens : int, optional
        The most that the server takes a rank and step.

    Raises
    ------
    SettingsError
        A value out of range.
    """
    check_gpus(gpus)
    if not 1 <= hosts <= gpus:
        raise SettingsError("hosts", f"must be 1 to {gpus} (the number of GPUs), got {hosts}")
    if max_tokens is not None and max_tokens < 1:
        raise SettingsError("max_tokens", f"must be at least 1, got {max_tokens}")
    most = 10**9 if max_tokens is None else max_tokens
    transports = possible(transport)
    sweep = _sweep(costs, targets, transports, ring=(gpus, hosts), max_tokens=most)
    loop_tokens = max(1, min(most, round(costs.fixed_ms / costs.compute_ms) if costs.compute_ms else 1))
    loop_repeats = (
        _repeats(costs.gpu_effect(targets.gpu, loop_tokens, transports[0]), costs.sigma) or REPEATS_OUT_OF_REACH
    )

    def smallest(some: Sequence[Transport]) -> dict[str, float]:
        loads, repeats = (sweep.tokens, loop_tokens), (sweep.repeats, loop_repeats)
        return smallest_faults(costs, some, load=loads, r=sweep.r, repeats=repeats)

    detectable = smallest(transports)
    over_paths = costs.healthy_ms(sweep.tokens, over_paths=True)
    loops = costs.healthy_ms(loop_tokens, over_paths=False)
    return LocalizePlan(
        r=sweep.r,
        tokens=sweep.tokens,
        loop_tokens=loop_tokens,
        repeats=sweep.repeats,
        loop_repeats=loop_repeats,
        probes_healthy=sweep.groups + PARTS,
        path_units=sweep.measurements() * gpus * sweep.tokens,
        seconds_healthy=(sweep.measurements() * over_paths + PARTS * loop_repeats * loops) / 1000,
        detectable=detectable,
        reachable=_reached(detectable, targets),
        by_transport={one: smallest([one]) for one in transports},
    )


def possible(transport: Transport | None) -> tuple[Transport, ...]:
    """The transports that may hold: what is certified must hold for each."""
    return ("serial", "shared") if transport is None else (transport,)


def smallest_faults(
    costs: Costs,
    transports: Sequence[Transport],
    *,
    load: tuple[int, int],
    r: int,
    repeats: tuple[int, int],
    gpu_over_paths: bool = False,
) -> dict[str, float]:
    """Smallest ``path`` and ``gpu`` slowdown and ``delay_ms`` that are told from noise, by the worst transport.

    Parameters
    ----------
    load, repeats : tuple of (int, int)
        Of the sweep over the paths, and of the self-loops.
    r : int
        Receivers of every rank in the sweep.
    gpu_over_paths : bool
        Whether GPUs are tested by probes over paths, and not by self-loops.
    """
    effect, loop_effect = (certified_effect(costs.sigma, count) for count in repeats)
    return {
        "path": max(costs.smallest_path(effect, load[0], r, transport) for transport in transports),
        "gpu": costs.smallest_gpu(loop_effect, load[1], transports[0], over_paths=gpu_over_paths),
        "delay_ms": costs.smallest_delay_ms(effect, load[0]),
    }


def _sweep(
    costs: Costs, targets: Targets, transports: tuple[Transport, ...], *, ring: tuple[int, int], max_tokens: int
) -> _Choice:
    """The shortest sweep of a ring of (GPUs, hosts); where none reaches the targets, the most sensitive one."""
    gpus, hosts = ring
    most = max(1, min(max_tokens, round(costs.balanced_tokens)))
    choices = []
    for r in range(1, min(gpus // 2, most) + 1):
        tokens = most // r * r
        effects = [costs.path_effect(targets.path, tokens, r, transport) for transport in transports]
        if targets.delay_ms is not None:
            effects.append(costs.delay_effect(targets.delay_ms, tokens))
        repeats = _repeats(min(effects), costs.sigma)
        if repeats is not None:
            choices.append(_Choice(r, tokens, repeats, len(shift_groups(gpus, r, hosts))))
    most_sensitive = _Choice(1, most, REPEATS_OUT_OF_REACH, len(shift_groups(gpus, 1, hosts)))
    return min(choices, key=_Choice.measurements, default=most_sensitive)


def _repeats(effect: float, sigma: float) -> int | None:
    """Readings that tell an effect from noise; None when even the most do not."""
    if effect <= 0:
        return None
    needed = max(1, math.ceil((certified_effect(sigma, 1) / effect) ** 2 - 1e-9))
    return needed if needed <= MAX_REPEATS else None


def _reached(detectable: dict[str, float], targets: Targets) -> bool:
    wanted = {"path": targets.path, "gpu": targets.gpu}
    if targets.delay_ms is not None:
        wanted["delay_ms"] = targets.delay_ms
    return all(detectable[name] <= value * (1 + 1e-9) for name, value in wanted.items())
