"""Pictures of the localization benchmark, from its JSON: the same bytes for the same JSON, readable in grey."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import Result

Rows = Sequence[Result]
# Told apart by brightness, marker and line, not by colour alone.
STYLES: dict[str, dict[str, Any]] = {
    "pairwise": {"color": "0.55", "marker": "x", "linestyle": ":"},
    "faultsense-4": {"color": "#d98e04", "marker": "s", "linestyle": "--", "markerfacecolor": "white"},
    "faultsense-8": {"color": "#9c4a00", "marker": "s", "linestyle": "-."},
    "adaptive": {"color": "#0b2f6b", "marker": "o", "linestyle": "-"},
}
OTHER_STYLE: dict[str, Any] = {"color": "black", "marker": "D", "linestyle": "-"}
KINDS = {"gpu": "slow GPUs", "path": "slow paths", "mixed": "GPUs and paths"}
SETTINGS = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "svg.hashsalt": "faultsense",
    "svg.fonttype": "none",
}


def draw(results: Result, folder: Path) -> list[Path]:
    """Write a PNG and an SVG of every picture.

    Parameters
    ----------
    results : dict
        What `scripts.benchmarks.localize.localize` gives.
    folder : Path
        Where the files go; it exists.

    Returns
    -------
    list of Path
        The files written.
    """
    names = {row["id"]: row["label"] for row in results["strategies"]}
    pictures: dict[str, Callable[[], Any]] = {"localize-probes": lambda: _probes(results["figure3"], names)}
    for n in sorted({row["n"] for row in results["figure4"]["rows"]}):
        rows = [row for row in results["figure4"]["rows"] if row["n"] == n]
        pictures[f"localize-faults-{n}"] = lambda rows=rows: _by_faults(rows, names)
    pictures["localize-noise"] = lambda: _noise(results["noise"]["rows"], names)
    pictures["localize-costs"] = lambda: _costs(results["costs"]["rows"], names)
    written: list[Path] = []
    with _settings():
        for name, picture in pictures.items():
            written += _save(picture(), folder / name)
    return written


@contextmanager
def _settings() -> Iterator[None]:
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()  # not what the user's own file says
        mpl.rcParams.update(SETTINGS)
        yield


def _save(figure: Any, path: Path) -> list[Path]:
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    figure.savefig(png, dpi=150, metadata={"Software": None})
    figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


def _figure(width: float, height: float, rows: int, columns: int, **more: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def _style(strategy: str) -> dict[str, Any]:
    return STYLES.get(strategy, OTHER_STYLE)


def _of(rows: Rows, **wanted: object) -> Rows:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _strategies(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["strategy"] for row in rows))


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def _probes(figure3: Result, names: dict[str, str]) -> Any:
    """Figure 3: (a) the sweep that certifies a healthy replica; (b, c) both phases with faults."""
    figure, axes = _figure(12, 4.2, 1, 3, width_ratios=[1.25, 1, 1])
    _sweeps(axes[0, 0], figure3, names)
    for place, k in zip(axes[0, 1:], (4, 8), strict=True):
        _stacks(place, figure3, k, names)
    return figure


def _sweeps(axes: Any, figure3: Result, names: dict[str, str]) -> None:
    ends: list[tuple[float, str]] = []
    for strategy in _strategies(figure3["rows"]):
        rows = _of(figure3["rows"], strategy=strategy)
        axes.plot([r["n"] for r in rows], [r["phase1"] for r in rows], **_style(strategy))
        ends.append((rows[-1]["phase1"], names[strategy]))
    for k in (4, 8):
        rows = _of(figure3["minimum"], k=k)
        axes.plot([r["n"] for r in rows], [r["probes"] for r in rows], color="black", linewidth=0.8)
        ends.append((rows[-1]["probes"], f"minimum, k = {k}"))
    _plain_log(axes)
    largest = max(row["n"] for row in figure3["rows"])
    axes.set_xlim(0, 1.55 * largest)
    for height, text in _spread(ends, 1.45):
        axes.annotate(text, (1.03 * largest, height), va="center", fontsize=8)
    axes.set(xlabel="n, GPUs", ylabel="probes, Phase 1", title="(a) to certify every GPU and path")
    axes.set_xticks(range(0, largest + 1, 100 if largest > 200 else 25))


def _spread(ends: list[tuple[float, str]], ratio: float) -> Iterator[tuple[float, str]]:
    """Heights of labels, pushed up where one would cover another."""
    lowest = 0.0
    for height, text in sorted(ends):
        lowest = max(height, lowest * ratio)
        yield lowest, text


def _stacks(axes: Any, figure3: Result, k: int, names: dict[str, str]) -> None:
    rows, others = figure3["rows"], _of(figure3["rows"], strategy="adaptive")
    sizes = sorted({row["n"] for row in rows})
    step = min((b - a for a, b in pairwise(sizes)), default=25)
    bars = [(f"faultsense-{k}", -0.2 if others else 0.0)] + [("adaptive", 0.2)] * bool(others)
    for strategy, shift in bars:
        found = _of(rows, strategy=strategy)
        at, width = [r["n"] + shift * step for r in found], (0.38 if others else 0.7) * step
        first, second = [r["phase1"] for r in found], [r["phase2"] for r in found]
        color = _style(strategy)["color"]
        axes.bar(at, first, width, color=color, label=f"{names[strategy]}: Phase 1")
        axes.bar(
            at, second, width, bottom=first, facecolor="white", edgecolor=color, hatch="////", label="Phase 2"
        )
    last = _of(rows, strategy=f"faultsense-{k}")[-1]
    axes.set_ylim(0, 1.35 * (last["phase1"] + last["phase2"]))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper left", fontsize=8)
    text = f"({'b' if k == 4 else 'c'}) k = {k}, {figure3['faults']} fault of either kind"
    axes.set(xlabel="n, GPUs", ylabel="probes, mean", title=text)


def _by_faults(rows: Rows, names: dict[str, str]) -> Any:
    """Figure 4: probes and accuracy against the number of faults, by kind."""
    kinds = [kind for kind in KINDS if _of(rows, kind=kind)]
    figure, axes = _figure(3.6 * len(kinds), 5.4, 2, len(kinds), sharex=True, sharey="row")
    counts = sorted({row["faults"] for row in rows})
    for column, kind in enumerate(kinds):
        upper, lower = axes[0, column], axes[1, column]
        for strategy in _strategies(rows):
            found = _of(rows, kind=kind, strategy=strategy)
            at = [counts.index(row["faults"]) for row in found]
            shifted = [x + 0.08 * (_strategies(rows).index(strategy) - 1.5) for x in at]
            costs = [_interval(row["probes"], "mean") for row in found]
            _errors(upper, at, costs, label=names[strategy], **_style(strategy))
            _errors(lower, shifted, [_interval(row["exact"]) for row in found], **_style(strategy))
        upper.set_title(KINDS[kind])
        _plain_log(upper)
        lower.set(xlabel="d, faults at once", ylim=(-0.03, 1.05))
        lower.set_xticks(range(len(counts)), map(str, counts))
    axes[0, 0].set_ylabel(f"probes, mean (n = {rows[0]['n']})")
    axes[1, 0].set_ylabel("share of trials named exactly")
    _legend(figure, axes[0, 0])
    return figure


def _interval(value: Result, name: str = "rate") -> tuple[float, float, float]:
    """A value with both ends of its interval; of a single trial, itself."""
    low, high = value["interval"] or (value[name], value[name])
    return value[name], low, high


def _errors(axes: Any, at: Sequence[float], values: Sequence[tuple[float, float, float]], **style: Any) -> None:
    """Points with 95 % intervals, joined."""
    middle = [value for value, _, _ in values]
    below, above = [v - low for v, low, _ in values], [high - v for v, _, high in values]
    axes.errorbar(at, middle, [below, above], capsize=2, linewidth=1.2, elinewidth=0.8, **style)


def _noise(rows: Rows, names: dict[str, str]) -> Any:
    """Accuracy and false accusations against sigma; a column a transport and family of noise."""
    cases = list(dict.fromkeys((row["transport"], row["family"]) for row in rows))
    targets = list(dict.fromkeys((row["path_slowdown"], row["gpu_slowdown"]) for row in rows))
    panels = [(target, faults) for faults in (1, 0) for target in targets]
    figure, axes = _figure(
        3.6 * len(cases), 2.3 * len(panels) + 0.6, len(panels), len(cases), sharex=True, sharey=True
    )
    for line, ((path, gpu), faults) in enumerate(panels):
        for column, (transport, family) in enumerate(cases):
            found = _of(rows, path_slowdown=path, transport=transport, family=family, faults=faults)
            _against_sigma(axes[line, column], found, "exact" if faults else "false_accusation", names)
        slow = f"path {path:g}x or GPU {gpu:g}x"
        text = (
            f"{slow}:\nshare named exactly"
            if faults
            else f"healthy, looking for\n{slow}:\nshare with an accusation"
        )
        axes[line, 0].set_ylabel(text, fontsize=8)
    for column, (transport, family) in enumerate(cases):
        axes[0, column].set_title(f"{transport} transport, {family} noise")
        axes[-1, column].set_xlabel("sigma, standard deviation of log T")
    _legend(figure, axes[0, 0])
    return figure


def _against_sigma(axes: Any, rows: Rows, rate: str, names: dict[str, str]) -> None:
    for place, strategy in enumerate(_strategies(rows)):
        found = _of(rows, strategy=strategy)
        aside = 1.04 ** (place - 1.5)  # intervals beside each other
        sigmas = [row["sigma"] * aside for row in found]
        _errors(axes, sigmas, [_interval(r[rate]) for r in found], label=names[strategy], **_style(strategy))
    axes.set(xscale="log", ylim=(-0.05, 1.05))
    ticks = sorted({row["sigma"] for row in rows})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _costs(rows: Rows, names: dict[str, str]) -> Any:
    """Measurements, path-units and seconds at equal sensitivity; a row a target; filled: serial, open: shared."""
    titles = {
        "measurements": "measurements",
        "path_units": "path-units, millions of tokens x paths",
        "seconds": "modelled time, s",
    }
    targets = list(dict.fromkeys((row["path_slowdown"], row["gpu_slowdown"]) for row in rows))
    figure, axes = _figure(11, 3.2 * len(targets) + 0.6, len(targets), len(titles), sharex=True)
    groups = sorted({(row["n"], row["faults"]) for row in rows})
    for line, (path, gpu) in enumerate(targets):
        found = [row for row in _of(rows, path_slowdown=path) if row["reachable"]]
        for place, field in zip(axes[line], titles, strict=True):
            _cost_points(place, found, field, groups, names)
        axes[line, 0].set_ylabel(f"path {path:g}x, GPU {gpu:g}x: mean a job")
    for place, title in zip(axes[0], titles.values(), strict=True):
        place.set_title(title)
    # Every strategy reaches the largest target.
    handles, labels = axes[-1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _cost_points(axes: Any, rows: Rows, field: str, groups: list[tuple[int, int]], names: dict[str, str]) -> None:
    strategies = list(names)
    for strategy in strategies:
        for transport, filled in (("serial", True), ("shared", False)):
            found = _of(rows, strategy=strategy, transport=transport)
            aside = 0.18 * (strategies.index(strategy) - (len(strategies) - 1) / 2) + (-0.03 if filled else 0.05)
            at = [groups.index((row["n"], row["faults"])) + aside for row in found]
            style = _style(strategy) | {"linestyle": "none"}
            style["markerfacecolor"] = style["color"] if filled else "white"
            if style["marker"] == "x":
                style["marker"] = "x" if filled else "+"
            values = [row[field]["mean"] / (1e6 if field == "path_units" else 1) for row in found]
            axes.plot(at, values, label=f"{names[strategy]}, {transport}", **style)
    _plain_log(axes)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xticks(range(len(groups)), [f"n = {n}\n{_count(d)}" for n, d in groups], fontsize=8)
    axes.grid(axis="x", visible=False)
    for edge in range(1, len(groups)):
        axes.axvline(edge - 0.5, color="0.9", linewidth=0.8)


def _count(faults: int) -> str:
    return "healthy" if not faults else f"{faults} fault" + "s" * (faults > 1)


def _plain_log(axes: Any) -> None:
    """A logarithmic axis with plain numbers: 20,000, not 2 x 10^4."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 300 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
