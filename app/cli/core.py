"""Commands on the pure core: simulate, replay; and the exported API document."""

from __future__ import annotations

import json
from pathlib import Path
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
from app.cli.output import AsJson, Refused, put_json, read_settings, refusing, say, write_or_compare


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("simulate")(simulate)
    app.command("replay")(replay)
    app.command("openapi")(openapi)


def simulate(
    n: Annotated[int, typer.Option(help="GPUs.")] = 64,
    k: Annotated[int | None, typer.Option(help="GPUs a probe; default min(8, n/2).")] = None,
    strategy: Annotated[str, typer.Option(help="faultsense or pairwise.")] = "faultsense",
    faults: Annotated[int | None, typer.Option(help="Random faults a trial; default 1.")] = None,
    kind: Annotated[str | None, typer.Option(help="Of random faults: gpu, path or mixed (the default).")] = None,
    fault: Annotated[list[str] | None, typer.Option(help=f"Given faults instead. {FAULT_HELP}")] = None,
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
    slowdown: Annotated[
        float | None, typer.Option(help="Of a probe that contains a random fault; default 2.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random comes from it.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Accuracy and cost of a strategy over random or given faults, in the binary model.

    There a probe that contains a fault shows it whole: its factor is not diluted by the rest of the probe.
    """
    from app.localization.settings import default_probe_size

    if seed < 0:
        raise Refused("--seed must be zero or above")
    common: dict[str, Any] = {
        "n": n,
        "k": default_probe_size(n) if k is None else k,
        "strategy": strategy,
        "trials": trials,
        "noise": noise,
        "seed": seed,
    }
    if fault is None:
        given = {"hosts": hosts, "gpus-per-host": gpus_per_host, "nics-per-host": nics_per_host, "leaves": leaves}
        _only_with("--fault", {**given, "topology": topology, "hide-topology": hide_topology, "history": history})
        result = _simulate_random(common, 1 if faults is None else faults, kind or "mixed", slowdown)
        what = f"{1 if faults is None else faults} {kind or 'mixed'} fault(s)"
    else:
        _only_with("random faults, not with --fault", {"faults": faults, "kind": kind, "slowdown": slowdown})
        options = {
            "hosts": hosts,
            "gpus_per_host": gpus_per_host,
            "nics_per_host": nics_per_host,
            "leaves": leaves,
            "topology": topology,
        }
        result = _simulate_given(common, fault, options, topology_known=not hide_topology, history=history)
        what = " and ".join(result["faults"])
    if as_json:
        put_json(result)
        return
    _say_simulated(result, f"{trials} trials ({what}, seed {seed})")


def _only_with(words: str, options: dict[str, object]) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise Refused(f"--{name} is only for {words}")


def _simulate_random(common: dict[str, Any], faults: int, kind: str, slowdown: float | None) -> dict[str, Any]:
    from app.localization.errors import SettingsError
    from app.localization.simulation import simulate as run

    with refusing(SettingsError):
        return run(
            **common,
            faults=faults,
            kind=kind,  # type: ignore[arg-type]
            slowdown=2.0 if slowdown is None else slowdown,
        )


def _simulate_given(
    common: dict[str, Any], texts: list[str], options: dict[str, Any], *, topology_known: bool, history: bool
) -> dict[str, Any]:
    from app.localization.errors import SettingsError
    from app.localization.faults import FaultError, parse_faults
    from app.localization.simulation import simulate_given

    n = common["n"]
    placement = read_placement(n, **options, default_hosts=max(1, min(DEFAULT_HOSTS, n // 2)))
    with refusing(SettingsError, FaultError):
        return simulate_given(
            parse_faults(texts, n, placement),
            **common,
            placement=placement,
            topology_known=topology_known,
            history=history,
        )


def _say_simulated(result: dict[str, Any], what: str) -> None:
    probes = result["probes"]
    say(f"exact in {100 * result['exact_rate']:.1f} % of {what}")
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


def replay(
    log: Annotated[Path, typer.Argument(help="A job's log, as GET /jobs/{id}/log gives it.")],
    as_json: AsJson = False,
) -> None:
    """Replay a job: check every probe it chose and reproduce the verdict. Exit status 1 when it diverges."""
    from app.localization.errors import LocalizationError
    from app.localization.replay import replay_lines

    with refusing(LocalizationError, OSError, UnicodeDecodeError, RecursionError):
        result = replay_lines(log.read_text(encoding="utf-8").splitlines())
    if as_json:
        put_json(result.to_dict())
    elif result.divergence is None and result.verdict is not None:
        say(f"identical: {result.verdict['summary']}")
    else:
        say(f"diverges: {json.dumps(result.divergence)}")
    raise typer.Exit(0 if result.identical else 1)


def openapi(
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare with --out; exit status 1 on a difference.")
    ] = False,
) -> None:
    """Export the API document."""
    from app.main import create_app

    read_settings()
    text = json.dumps(create_app().openapi(), indent=1, sort_keys=True) + "\n"
    write_or_compare(text, out, check=check, source="the app exports")
