"""Tables and pictures of the localization benchmark, from its JSON; nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import Result
from scripts.benchmarks.localize_plots import KINDS, draw

Rows = Sequence[Result]
HEAD = """# Localization: probes, accuracy and cost

Made by `python scripts/bench.py localize` ({trials} simulated jobs, {minutes:.0f} minutes there); `--from
bench/localize.json` makes tables and pictures again. Nothing here was measured on GPUs: replicas are simulated,
in the *binary* model (a probe that contains a slow component takes twice as long, whatever its size) or in the
*physics* model (`T = t0 + max compute + max dispatch + max combine`, so a slow path is diluted by the others; t0
= 20 ms, at the best load). Square brackets hold 95 % intervals: Clopper-Pearson of a rate, Student's of a mean.
Every row is reproduced by its seed: trial i depends on (seed, i) and on nothing else. *Probes* are distinct ones;
a *measurement* is one probe, once.
"""
FIGURE3 = """
## Probes against the number of GPUs

![Probes against the number of GPUs](localize-probes.svg)

Binary model, without noise; {faults} {kind}. Phase 1 certifies a healthy replica, Phase 2 is what the fault adds.
The *minimum* is the Schonheim bound of probes of exactly k GPUs; *best known* is the smallest cover in
`app/localization/cover`. Pairwise tests n(n-1)/2 pairs.
"""
FIGURE4 = """
## Several faults at once
{pictures}
Binary model, without noise. *Exact*: every identifiable fault named, and nothing else (a path at a slow GPU
cannot be seen). In the pictures bars are 95 % intervals; the 95th percentile is over the trials.
"""
NOISE = """
## Accuracy under noise

![Accuracy under noise](localize-noise.svg)

Physics model, n = {n}; healthy, or with one fault: a coin's toss decides between a GPU and a path, slower by the
*target*. Pairwise and the paper's probes take the median of 3, as a job does by default, and the threshold alpha
in the middle between healthy and the target (1.3, the default, where the target does not show); `adaptive` plans
for the target. *Own* noise is what `adaptive` assumes: lognormal with sigma, 5 % of the readings doubled, a drift
of 0.5 % a measurement. *Unknown* is not: bursts of random size, rate and length, autocorrelated readings, and
costs a and b that are up to 30 % off. The drift is why long jobs suffer: they hold a whole sweep against one
baseline. *Accused wrongly*: jobs that named anything that was not at fault.
"""
COSTS = """
## Costs at equal sensitivity

![Costs at equal sensitivity](localize-costs.svg)

Physics model, own noise of sigma {sigma:g}. Pairwise and the paper's probes take the median of as many readings,
and the threshold alpha in the middle, with which one probe tells the target from noise with 1 % false alarms and
1 % misses; `adaptive` plans for the target itself. *Out of reach*: not with 15 readings a probe. *Computed*: a
healthy sweep of all pairs, not simulated and without drift. Path-units are tokens times directed paths and
seconds are modelled ones, both of one step a measurement. Equal sensitivity of a probe is not equal accuracy of a
job: *exact* says what came of it, after drift and after many probes that may each be wrong.
"""


def report(results: Result, folder: Path) -> list[Path]:
    """Write ``localize.md`` and its pictures.

    Parameters
    ----------
    results : dict
        What `scripts.benchmarks.localize.localize` gives.
    folder : Path
        Made if it is missing.

    Returns
    -------
    list of Path
        The files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {row["id"]: row["label"] for row in results["strategies"]}
    parts = [
        HEAD.format(trials=results["trials"], minutes=results["elapsed_s"] / 60),
        *_figure3(results["figure3"], names),
        *_figure4(results["figure4"]["rows"], names),
        *_noise(results["noise"]["rows"], names),
        *_costs(results["costs"]["rows"], names),
    ]
    page = folder / "localize.md"
    page.write_text("".join(parts), encoding="utf-8")
    return [page, *draw(results, folder)]


Column = tuple[str, Callable[[Result], str]]


def _table(rows: Iterable[Result], columns: Sequence[Column]) -> str:
    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    lines += [[cell(row) for _, cell in columns] for row in rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _figure3(figure3: Result, names: dict[str, str]) -> list[str]:
    faults = f"{figure3['faults']} fault" + "s" * (figure3["faults"] > 1)
    kind = {"gpu": "(a GPU)", "path": "(a path)", "mixed": "(a GPU or a path)"}[figure3["kind"]]
    rows = figure3["rows"]
    columns: list[Column] = [
        ("n", lambda row: str(row["n"])),
        ("strategy", lambda row: names[row["strategy"]]),
        ("Phase 1", lambda row: _number(row["phase1"])),
        ("Phase 2", lambda row: _number(row["phase2"])),
        ("both", lambda row: _mean(row["probes"])),
        ("exact", lambda row: _rate(row["exact"])),
        ("trials, seed", _origin),
    ]
    bounds: list[Column] = [
        ("n", lambda row: str(row["n"])),
        ("pairs", lambda row: _number(row["n"] * (row["n"] - 1) // 2)),
        *(
            (f"{title}, k = {k}", lambda row, k=k, field=field: _number(row[k][field]))
            for k in (4, 8)
            for title, field in (("minimum", "probes"), ("best known", "best_known"))
        ),
    ]
    sizes = sorted({row["n"] for row in figure3["minimum"]})
    by_size = [{"n": n} | {row["k"]: row for row in figure3["minimum"] if row["n"] == n} for n in sizes]
    return [
        FIGURE3.format(faults=faults, kind=kind),
        _table(sorted(rows, key=lambda row: row["n"]), columns),
        _table(by_size, bounds),
    ]


def _figure4(rows: Rows, names: dict[str, str]) -> list[str]:
    sizes = sorted({row["n"] for row in rows})
    pictures = "".join(f"\n![Faults at once, n = {n}](localize-faults-{n}.svg)\n" for n in sizes)
    columns: list[Column] = [
        ("n", lambda row: str(row["n"])),
        ("slow", _slow),
        ("strategy", lambda row: names[row["strategy"]]),
        ("Phase 1", lambda row: _number(row["phase1"])),
        ("Phase 2", lambda row: _number(row["phase2"])),
        ("both", lambda row: _mean(row["probes"])),
        ("95th percentile", lambda row: _number(row["probes"]["p95"])),
        ("exact", lambda row: _rate(row["exact"])),
        ("accused wrongly", lambda row: _rate(row["false_accusation"])),
        ("trials, seed", _origin),
    ]
    kinds = list(KINDS)
    ordered = sorted(rows, key=lambda row: (row["n"], kinds.index(row["kind"]), row["faults"]))
    return [FIGURE4.format(pictures=pictures), _table(ordered, columns)]


def _noise(rows: Rows, names: dict[str, str]) -> list[str]:
    columns: list[Column] = [
        ("target", _target),
        ("transport", lambda row: row["transport"]),
        ("noise", lambda row: row["family"]),
        ("sigma", lambda row: f"{row['sigma']:g}"),
        ("faults", lambda row: str(row["faults"])),
        ("strategy", lambda row: names[row["strategy"]]),
        ("exact", lambda row: _rate(row["exact"])),
        ("accused wrongly", lambda row: _rate(row["false_accusation"])),
        ("missed", lambda row: _rate(row["miss"]) if row["faults"] else ""),
        ("measurements", lambda row: _mean(row["measurements"])),
        ("trials, seed", _origin),
    ]
    order = ("path_slowdown", "transport", "family", "sigma", "faults")
    ordered = sorted(rows, key=lambda row: tuple(row[name] for name in order))
    return [NOISE.format(n=rows[0]["n"]), _table(ordered, columns)]


def _costs(rows: Rows, names: dict[str, str]) -> list[str]:
    columns: list[Column] = [
        ("target", _target),
        ("n", lambda row: str(row["n"])),
        ("transport", lambda row: row["transport"]),
        ("faults", lambda row: str(row["faults"]) if row["reachable"] else "any"),
        ("strategy", lambda row: names[row["strategy"]]),
        ("repeats, alpha", lambda row: f"{row['repeats']}, {row['alpha']:.3f}" if "repeats" in row else ""),
        ("probes", _of("probes")),
        ("measurements", _of("measurements")),
        ("path-units", _of("path_units")),
        ("seconds", _of("seconds")),
        ("exact", lambda row: _rate(row["exact"]) if "exact" in row else ""),
        ("accused wrongly", lambda row: _rate(row["false_accusation"]) if "exact" in row else ""),
        ("trials, seed", _origin),
    ]
    return [COSTS.format(sigma=rows[0]["sigma"]), _table(rows, columns)]


def _target(row: Result) -> str:
    return f"path {row['path_slowdown']:g}x, GPU {row['gpu_slowdown']:g}x"


def _slow(row: Result) -> str:
    one = {"gpu": "GPU", "path": "path", "mixed": "GPU or path"}[row["kind"]]
    return f"1 {one}" if row["faults"] == 1 else f"{row['faults']} {KINDS[row['kind']].removeprefix('slow ')}"


def _of(field: str) -> Callable[[Result], str]:
    return lambda row: _mean(row[field]) if row["reachable"] else "out of reach"


def _origin(row: Result) -> str:
    if row["trials"]:
        return f"{row['trials']}, {row['seed']}"
    return "computed" if row["reachable"] else ""


def _number(value: Any) -> str:
    """Three significant digits below 1000; whole and with separators above."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _mean(value: Result) -> str:
    return _number(value["mean"]) + _ends(value["interval"], _number)


def _rate(value: Result) -> str:
    return f"{value['count']}/{value['of']}" + _ends(value["interval"], lambda end: f"{end:.3f}")


def _ends(interval: Sequence[float] | None, form: Callable[[float], str]) -> str:
    return "" if interval is None else f" [{form(interval[0])}, {form(interval[1])}]"
