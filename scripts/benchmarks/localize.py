"""Localization: probes, accuracy under noise, and costs at equal sensitivity, of every strategy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from scripts.benchmarks.common import Result
from scripts.benchmarks.localize_cells import Cell, Plan, available, cells, clique_ms, clique_tokens


def localize(plan: Plan | None = None, processes: int | None = None) -> Result:
    """Measure everything that a plan names; `scripts.benchmarks.localize_report` makes tables and pictures of it.

    Parameters
    ----------
    plan : Plan, optional
        By default every strategy that exists.
    processes : int, optional
        By default one a core. What is measured is the same.
    """
    from app.localization.pool import cores

    started = time.perf_counter()
    plan = plan or Plan(available())
    planned = cells(plan)
    rows = _rows(planned, processes or cores())
    sections = {
        name: [row for cell, row in rows if cell.section == name] for name in ("figure4", "noise", "costs")
    }
    return {
        "strategies": [
            {"id": each.id, "label": each.label, "strategy": each.strategy, "k": each.k}
            for each in plan.contenders
        ],
        "figure3": {
            "faults": 1,
            "kind": "mixed",
            "rows": [row for cell, row in rows if cell.section == "figure3"],
            "minimum": _sweeps(plan.sizes),
        },
        **{name: {"rows": found} for name, found in sections.items()},
        "trials": sum(cell.trials for cell in planned),
        "elapsed_s": round(time.perf_counter() - started, 1),
    }


def _sweeps(sizes: Sequence[int]) -> list[Result]:
    """Lower bound and best known cover."""
    from app.localization.cover import best_cover, schonheim_bound

    return [
        {"n": n, "k": k, "probes": schonheim_bound(n, k), "best_known": len(best_cover(n, k).probes)}
        for k in (4, 8)
        for n in sizes
    ]


def _rows(planned: Sequence[Cell], processes: int) -> list[tuple[Cell, Result]]:
    from app.localization.pool import run_trials

    trials = [(place, number) for place, cell in enumerate(planned) for number in range(cell.trials)]
    # The longest first, so that no core waits for the other at the end.
    order = tuple(sorted(trials, key=lambda trial: -_length(planned[trial[0]])))
    work = _Work(tuple(experiment(cell) for cell in planned), order)
    processes = max(1, min(processes, len(trials)))
    done = run_trials(work, len(order), processes=processes, done=_progress(len(order)))
    found = dict(zip(order, done, strict=True))
    return [
        (cell, _row(cell, [found[place, number] for number in range(cell.trials)]))
        for place, cell in enumerate(planned)
    ]


def _length(cell: Cell) -> float:
    """Roughly how long a trial takes: its measurements, up to a factor."""
    repeats = cell.design.repeats if cell.design else (3 if cell.sigma else 1)
    return repeats * (cell.n / cell.contender.k) ** 2 * (1 + cell.faults)


def _progress(count: int) -> Callable[[int], None]:
    tenth = max(1, count // 10)

    def told(done: int) -> None:
        if done % tenth == 0:
            print(f"{done} of {count} trials", file=sys.stderr, flush=True)

    return told


@dataclass(frozen=True)
class _Work:
    """All trials, as (place of the experiment, number of the trial), for processes that share nothing."""

    experiments: tuple[Any, ...]
    order: tuple[tuple[int, int], ...]

    def __call__(self, place: int) -> Any:
        cell, number = self.order[place]
        return self.experiments[cell].trial(number)


def experiment(cell: Cell) -> Any:
    """What the trials of a cell do: `app.localization.simulation` at its defaults, but for a cell's own design.

    Returns
    -------
    app.localization.trials.Experiment
        See there.
    """
    from app.localization.simulation import SLOWDOWNS, Setup
    from app.localization.trials import Experiment, RandomFaults

    contender, target, more = cell.contender, cell.target, {}
    if target is not None:
        more = {"model": "physics", "transport": cell.transport, "noise_family": cell.family, "noise": cell.sigma}
    k = contender.k if contender.strategy == "faultsense" else None
    setup = Setup(n=cell.n, strategy=contender.strategy, k=k, seed=cell.seed, **more)
    gpu, path = SLOWDOWNS["binary"] if target is None else (target.gpu, target.path)
    settings = setup.settings(gpu_slowdown=gpu, path_slowdown=path)
    if cell.design is not None:
        settings = replace(settings, repeats=cell.design.repeats, alpha=cell.design.alpha)
    faults = RandomFaults(cell.faults, cell.kind, gpu_slowdown=gpu, path_slowdown=path)  # type: ignore[arg-type]
    return Experiment(settings, setup.world(), faults, cell.seed)


def _row(cell: Cell, trials: Sequence[Any]) -> Result:
    row = {**cell.facts(), "reachable": bool(trials) or cell.design is not None}
    if not trials:
        return row | (_computed(cell) if cell.design is not None else {})
    compared = [trial.comparison for trial in trials]
    return {
        **row,
        "phase1": fmean(trial.phase1 for trial in trials),
        "phase2": fmean(trial.phase2 for trial in trials),
        "probes": _mean([trial.phase1 + trial.phase2 for trial in trials]),
        "measurements": _mean([trial.measurements for trial in trials]),
        "path_units": _mean([trial.path_units for trial in trials]),
        "seconds": _mean([trial.seconds for trial in trials]),
        "exact": _rate([each.exact for each in compared]),
        "false_accusation": _rate([bool(each.wrong) for each in compared]),
        "miss": _rate([bool(each.missed) for each in compared]),
    }


def _computed(cell: Cell) -> Result:
    """A healthy sweep over all pairs: every probe alike."""
    assert cell.design is not None
    k = cell.contender.k
    probes = cell.n * (cell.n - 1) // 2
    measurements = probes * cell.design.repeats
    values = {
        "probes": probes,
        "measurements": measurements,
        "path_units": measurements * k * (k - 1) * clique_tokens(k),
        "seconds": measurements * clique_ms(k, str(cell.transport)) / 1000,
    }
    return {name: {"mean": value, "interval": None, "p95": value} for name, value in values.items()}


def _mean(values: Sequence[float]) -> Result:
    import numpy as np

    from app.localization.intervals import mean_interval

    interval = mean_interval(values)
    if interval is not None:
        interval = [max(0.0, interval[0]), interval[1]]  # nothing here is below zero
    return {"mean": fmean(values), "interval": interval, "p95": float(np.percentile(values, 95))}


def _rate(hits: Sequence[bool]) -> Result:
    from app.localization.intervals import rate_interval

    return {
        "count": sum(hits),
        "of": len(hits),
        "rate": sum(hits) / len(hits),
        "interval": rate_interval(sum(hits), len(hits)),
    }
