"""Parts that GPUs share: how often a slow one is named, at random places of a known topology."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scripts.benchmarks.common import Result

KINDS = ("gpu", "nic", "host", "fabric", "leaf", "rail")
# Parts of single hosts, two of which concern different GPUs.
APART = ("gpu", "nic", "host", "fabric")
# Faults are so many times what is just told from noise.
ABOVE = 1.5
SIGMA = 0.05


@dataclass(frozen=True)
class Layout:
    """GPUs on hosts of equal size, a NIC and a rail a GPU of a host."""

    gpus: int
    hosts: int
    leaves: int


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Parameters
    ----------
    layouts : tuple of Layout
        The topologies; with two leaves no probe tells which is slow, with four one does.
    trials, healthy : int
        Jobs a row with faults, and without.
    seed : int
        Of the first row; each has another.
    """

    layouts: tuple[Layout, ...] = (Layout(64, 8, 2), Layout(64, 8, 4), Layout(128, 16, 2))
    trials: int = 300
    healthy: int = 500
    seed: int = 5200


def shared(plan: Plan | None = None, processes: int | None = None) -> Result:
    """One slow part of each kind, two at once, and none; costs are measured by the job, as over HTTP."""
    from app.localization.pool import cores

    plan, started = plan or Plan(), time.perf_counter()
    cells = [(layout, kinds, count) for layout in plan.layouts for kinds, count in _faults(layout)]
    rows = [
        _row(layout, kinds, count, plan, seed=plan.seed + i, processes=processes or cores())
        for i, (layout, kinds, count) in enumerate(cells)
    ]
    return {"sigma": SIGMA, "above": ABOVE, "rows": rows, "elapsed_s": round(time.perf_counter() - started, 1)}


def _faults(layout: Layout) -> list[tuple[tuple[str, ...], int]]:
    if layout.leaves > 2:
        return [(("leaf",), 1), (("host",), 1)]
    return [*(((kind,), 1) for kind in KINDS), (APART, 2), ((), 0)]


def _row(
    layout: Layout, kinds: Sequence[str], count: int, plan: Plan, *, seed: int, processes: int
) -> dict[str, Any]:
    from app.localization.adaptive.costs import Costs
    from app.localization.adaptive.planner import Targets, plan_localize
    from app.localization.placement import layout as place
    from app.localization.simulation import simulate_parts

    least = plan_localize(layout.gpus, Costs(sigma=SIGMA), Targets(), "serial", hosts=layout.hosts).detectable
    trials = plan.trials if count else plan.healthy
    found = simulate_parts(
        kinds,
        count=count,
        placement=place(layout.gpus, layout.hosts, leaves=layout.leaves),
        gpu_slowdown=ABOVE * least["gpu"],
        part_slowdown=ABOVE * least["path"],
        n=layout.gpus,
        strategy="adaptive",
        model="physics",
        noise=SIGMA,
        costs_given=False,
        trials=trials,
        seed=seed,
        processes=processes,
    )
    names = ("exact_rate", "false_accusation_rate", "miss_rate")
    row = {
        "gpus": layout.gpus,
        "hosts": layout.hosts,
        "leaves": layout.leaves,
        "kinds": list(kinds),
        "count": count,
        "gpu_slowdown": round(ABOVE * least["gpu"], 3),
        "part_slowdown": round(ABOVE * least["path"], 3),
        "trials": trials,
        "seed": seed,
        **{name: found[name] for name in names},
        **{f"{name}_interval": found[f"{name}_interval"] for name in names},
        "measurements": found["measurements_mean"],
        "outcomes": found["outcomes"],
        "reasons": found["reasons"],
    }
    print(row, flush=True)
    return row


HEAD = """# Parts that GPUs share

Made by `python scripts/bench.py shared` ({minutes:.0f} minutes there). Simulated: physics model, serial transport,
sigma {sigma:g}; strategy `adaptive` with the topology, costs measured by the job itself. Every trial has its part
at a random place; faults are {above:g}x what is just told from noise. *Right*: it is named, by members and kind,
and nothing else; with two leaves as one of two equals, since no probe tells which. Square brackets hold
Clopper-Pearson 95 % intervals.

| GPUs x hosts, leaves | fault | factor | trials, seed | right | accused wrongly | measurements |
|---|---|---|---|---|---|---|
"""


def page(result: Result) -> str:
    """The figures as Markdown."""
    head = HEAD.format(minutes=result["elapsed_s"] / 60, sigma=result["sigma"], above=result["above"])
    return head + "".join(f"{_line(row)}\n" for row in result["rows"])


def _line(row: dict[str, Any]) -> str:
    what, factor = " and ".join(row["kinds"]) or "none", row["part_slowdown"]
    if row["count"] > 1:
        what = f"two of {', '.join(row['kinds'])}"
    elif row["kinds"] == ["gpu"]:
        factor = row["gpu_slowdown"]
    cells = (
        f"{row['gpus']} x {row['hosts']}, {row['leaves']}",
        what,
        factor if row["count"] else "",
        f"{row['trials']}, {row['seed']}",
        _rate(row, "exact_rate"),
        _rate(row, "false_accusation_rate"),
        f"{row['measurements']:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _rate(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_interval"]
    return f"{row[name]:.3f} [{low:.3f}, {high:.3f}]"
