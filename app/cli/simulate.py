"""The simulate command: accuracy and cost of a strategy, against a simulated replica."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from app.cli.layout import (
    DEFAULT_HOSTS,
    FAULT_HELP,
    GpusPerHost,
    Hosts,
    Leaves,
    NicsPerHost,
    TopologyFile,
    read_placement,
)
from app.cli.output import AsJson, Refused, put_json, refusing, say


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("simulate")(simulate)


def simulate(
    n: Annotated[int, typer.Option(help="GPUs.")] = 64,
    k: Annotated[
        int | None,
        typer.Option(
            help="GPUs a probe; default min(8, n/2). Strategy adaptive chooses its own probes, unless it is given."
        ),
    ] = None,
    strategy: Annotated[str, typer.Option(help="adaptive, faultsense or pairwise.")] = "faultsense",
    model: Annotated[
        str,
        typer.Option(
            help="binary: a probe that contains a fault shows it whole. physics: a step waits for the slowest GPU"
            " and links, and the rest of a probe dilutes a fault."
        ),
    ] = "binary",
    transport: Annotated[
        str, typer.Option(help="In physics: sends of a rank take turns (serial) or flow side by side (shared).")
    ] = "serial",
    faults: Annotated[int | None, typer.Option(help="Random faults a trial; default 1.")] = None,
    kind: Annotated[str | None, typer.Option(help="Of random faults: gpu, path or mixed (the default).")] = None,
    slowdown: Annotated[
        float | None, typer.Option(help="Of a probe that contains a random fault, in the binary model; default 2.")
    ] = None,
    gpu_slowdown: Annotated[
        float | None, typer.Option(help="Of random GPUs; default 1.5 in physics, else --slowdown.")
    ] = None,
    path_slowdown: Annotated[
        float | None, typer.Option(help="Of random paths; default 3 in physics, else --slowdown.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help=f"Given faults instead; in physics steady ones of GPUs, paths and all. {FAULT_HELP}"),
    ] = None,
    hosts: Hosts = None,
    gpus_per_host: GpusPerHost = None,
    nics_per_host: NicsPerHost = None,
    leaves: Leaves = None,
    topology: TopologyFile = None,
    hide_topology: Annotated[
        bool, typer.Option("--hide-topology", help="With --fault: the strategy is not told the hosts.")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="With --fault: an earlier healthy job gives the healthy latency.")
    ] = False,
    trials: Annotated[int, typer.Option(help="Simulated jobs.")] = 100,
    noise: Annotated[float, typer.Option(help="Sigma of lognormal noise; above 0 also 5 % bursts x2.")] = 0.0,
    noise_family: Annotated[
        str,
        typer.Option(help="In physics, unknown: of no family, and of no costs, that the strategy is told."),
    ] = "own",
    seed: Annotated[int, typer.Option(help="Everything random comes from it.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Accuracy and cost of a strategy over random or given faults, with 95 % intervals."""
    if seed < 0:
        raise Refused("--seed must be zero or above")
    setup = {
        "n": n,
        "k": k,
        "strategy": strategy,
        "model": model,
        "transport": transport,
        "trials": trials,
        "noise": noise,
        "noise_family": noise_family,
        "seed": seed,
    }
    layout = {
        "hosts": hosts,
        "gpus_per_host": gpus_per_host,
        "nics_per_host": nics_per_host,
        "leaves": leaves,
        "topology": topology,
    }
    slowdowns = {"slowdown": slowdown, "gpu_slowdown": gpu_slowdown, "path_slowdown": path_slowdown}
    if fault is None:
        _only_with("--fault", {**layout, "hide_topology": hide_topology, "history": history})
        if model == "physics":
            _only_with("the binary model: give --gpu-slowdown or --path-slowdown", {"slowdown": slowdown})
        count, of = 1 if faults is None else faults, kind or "mixed"
        result = _random(setup, {"faults": count, "kind": of, **slowdowns})
        what = f"{count} {of} fault(s)"
    else:
        _only_with("random faults, not with --fault", {"faults": faults, "kind": kind, **slowdowns})
        result = _given(setup, fault, layout, topology_known=not hide_topology, history=history)
        what = " and ".join(result["faults"])
    if as_json:
        put_json(result)
        return
    _say(result, f"{trials} trials ({what}, seed {seed})")


def _only_with(words: str, options: dict[str, object]) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise Refused(f"--{name.replace('_', '-')} is only for {words}")


def _random(setup: dict[str, Any], faults: dict[str, Any]) -> dict[str, Any]:
    from app.localization.errors import LocalizationError
    from app.localization.simulation import simulate as run

    with refusing(LocalizationError), _on_all_cores(setup) as how:
        return run(**setup, **faults, **how)


def _given(
    setup: dict[str, Any], texts: list[str], layout: dict[str, Any], *, topology_known: bool, history: bool
) -> dict[str, Any]:
    from app.localization.errors import LocalizationError
    from app.localization.faults import FaultError, parse_faults
    from app.localization.simulation import simulate_given

    n = setup["n"]
    placement = read_placement(n, **layout, default_hosts=max(1, min(DEFAULT_HOSTS, n // 2)))
    with refusing(LocalizationError, FaultError), _on_all_cores(setup) as how:
        return simulate_given(
            parse_faults(texts, n, placement),
            **setup,
            **how,
            placement=placement,
            topology_known=topology_known,
            history=history,
        )


@contextmanager
def _on_all_cores(setup: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """How many processes, and whom to tell of progress."""
    from app.localization.simulation import useful_processes

    with _progress(setup["trials"]) as done:
        yield {"processes": useful_processes(setup["n"], setup["trials"]), "done": done}


@contextmanager
def _progress(trials: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("trials", total=trials)
        yield lambda done: bar.update(task, completed=done)


def _say(result: dict[str, Any], what: str) -> None:
    probes = result["probes"]
    say(f"exact in {100 * result['exact_rate']:.1f} % of {what}; {_interval(result, 'exact_rate')}")
    for text, name in (("false accusations", "false_accusation_rate"), ("missed faults", "miss_rate")):
        say(f"{text} in {100 * result[name]:.1f} % of trials; {_interval(result, name)}")
    say(
        f"false suspects {result['false_suspects_per_trial']:.3f} and missed faults"
        f" {result['missed_per_trial']:.3f} a trial"
    )
    if result.get("symptoms_per_trial"):
        say(f"paths named in place of a shared part that slows them: {result['symptoms_per_trial']:.1f} a trial")
    if "outcomes" in result:
        counts = {**result["outcomes"], **result["reasons"]}
        say(f"outcomes and reasons: {', '.join(f'{name} {count}' for name, count in counts.items())}")
    say(
        f"probes: {probes['phase1']:.0f} to cover + {probes['phase2']:.1f} to drill down, mean total"
        f" {probes['total_mean']:.1f} (95 % below {probes['total_p95']:.0f}); pairwise {result['pairwise']}"
    )
    say(
        f"measurements: mean {result['measurements_mean']:.1f} (95 % below {result['measurements_p95']:.0f}),"
        f" {result['path_units_mean']:.0f} path-units and {result['seconds_mean']:.2f} s of steps a trial"
    )


def _interval(result: dict[str, Any], name: str) -> str:
    low, high = result[f"{name}_interval"]
    return f"95 % interval {100 * low:.1f} to {100 * high:.1f} %"
