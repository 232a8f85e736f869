"""Plans without probing: ``faultsense plan cover`` and ``faultsense plan localize``."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from app.cli.output import AsJson, Refused, put_json, refusing, say

plan = typer.Typer(help="Plan without probing.", no_args_is_help=True)

_TRANSPORTS = {"serial": "serial", "shared": "shared", "unknown": None}


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(plan, name="plan")


@plan.command("cover")
def cover(
    n: Annotated[int, typer.Option(help="GPUs.")],
    k: Annotated[int, typer.Option(help="GPUs a probe.")] = 8,
    as_json: AsJson = False,
) -> None:
    """How many probes cover all GPUs and paths, how many Algorithm 1 takes, and the lower bound."""
    from app.localization.cover import best_cover
    from app.localization.errors import SettingsError

    with refusing(SettingsError):
        started = time.perf_counter()
        best = best_cover(n, k)
        seconds = round(time.perf_counter() - started, 4)
    probes, bound = len(best.probes), best.lower_bound
    result = {
        "n": n,
        "k": k,
        "probes": probes,
        "lower_bound": bound,
        "ratio": round(probes / bound, 4),
        "method": best.method,
        "greedy_probes": best.greedy_probes,
        "pairwise": n * (n - 1) // 2,
        "seconds": seconds,
    }
    if as_json:
        put_json(result)
        return
    say(f"{probes} probes of {k} cover {n} GPUs and {result['pairwise']} paths ({best.method}, {seconds} s)")
    say(
        f"Algorithm 1 takes {result['greedy_probes']}; lower bound (Schonheim) {bound}, ratio {result['ratio']};"
        f" one probe a pair would be {result['pairwise']}"
    )
    say(f"the first {best.first_class} probes touch every GPU")


@plan.command("localize")
def localize(
    n: Annotated[int, typer.Option(help="GPUs.")],
    hosts: Annotated[int, typer.Option(help="Hosts that they sit in.")] = 1,
    target_path: Annotated[float, typer.Option(help="Slowdown of a path that must be found.")] = 3.0,
    target_gpu: Annotated[float, typer.Option(help="Slowdown of a GPU that must be found.")] = 1.5,
    target_delay: Annotated[
        float | None, typer.Option(help="Milliseconds added on a path that must be found; default: no wish.")
    ] = None,
    sigma: Annotated[float, typer.Option(help="Noise: standard deviation of a reading's logarithm.")] = 0.05,
    transport: Annotated[
        str, typer.Option(help="serial or shared; unknown: the plan holds for both, by the worse of them.")
    ] = "unknown",
    fixed_ms: Annotated[float, typer.Option(help="Fixed part of a step, ms.")] = 20.0,
    compute_ms: Annotated[float, typer.Option(help="A GPU's time for one token, ms.")] = 5 / 512,
    path_ms: Annotated[float, typer.Option(help="A path's time for one token, both ways, ms.")] = 5 / 448,
    max_tokens: Annotated[
        int | None, typer.Option(help="The most that the server takes a rank and step; default: no limit.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a sweep with r-regular probes costs on a healthy replica, and the smallest faults that it certifies."""
    from app.localization.adaptive.costs import Costs
    from app.localization.adaptive.planner import Targets, plan_localize
    from app.localization.errors import SettingsError

    if transport not in _TRANSPORTS:
        raise Refused(f"--transport must be serial, shared or unknown, not {transport!r}")
    with refusing(SettingsError):
        planned = plan_localize(
            n,
            Costs(fixed_ms=fixed_ms, compute_ms=compute_ms, path_ms=path_ms, sigma=sigma),
            Targets(gpu=target_gpu, path=target_path, delay_ms=target_delay),
            _TRANSPORTS[transport],  # type: ignore[arg-type]
            hosts=hosts,
            max_tokens=max_tokens,
        )
    result = planned.to_dict()
    if as_json:
        put_json(result)
        return
    _say_planned(result, n)


def _say_planned(result: dict[str, Any], n: int) -> None:
    smallest = result["detectable"]
    say(
        f"{result['probes_healthy']} probes certify {n} GPUs and {n * (n - 1) // 2} paths: every rank sends"
        f" {result['tokens']} tokens a step to {result['r']} other(s); {result['repeats']} reading(s) a probe,"
        f" {result['seconds_healthy']} s for one step each"
    )
    gpu, path = (f"{smallest[kind]}x" if smallest[kind] else "none" for kind in ("gpu", "path"))
    say(f"told from noise: GPUs from {gpu}, paths from {path}, added delays from {smallest['delay_ms']} ms")
    if len(result["by_transport"]) > 1:
        each = (f"{some['path'] or 'none'}x if {name}" for name, some in result["by_transport"].items())
        say(f"paths by how sends share a link: {', '.join(each)}; the worse is what a verdict certifies")
    if not result["reachable"]:
        say("the targets are out of reach at this noise: the figures above are what can be found in their place")
