"""``faultsense demo``: the whole service on this machine against an emulated replica with injected faults."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Annotated, Any

import typer

from app.cli.client import call, describe, watch_job
from app.cli.emulate import make_config, production_settings
from app.cli.layout import FAULT_HELP, GpusPerHost, Hosts, Leaves, NicsPerHost, TopologyFile, read_placement
from app.cli.output import AsJson, put_json, refusing, say

DEFAULT_FAULTS = ("gpu:5*2.0", "path:3-17+20ms")
# A quarter of the emulator's default times: a job of hundreds of probes then fits into a short demo.
LATENCY: dict[str, Any] = {
    "fixed_ms": 0.75,
    "compute_ms": 0.3125,
    "path_ms": {"same_host": 0.125, "cross_host": 0.25},
}
MAX_SHOWN = 4
# Eleven tokens keep a usable common window when a sender is two steps late, as happens on a busy machine.
REQUEST = {"prompt_tokens": 1, "decode_tokens": 11}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("demo")(demo)


def demo(
    gpus: Annotated[int, typer.Option(help="Emulated GPUs, 4 to 512.")] = 64,
    hosts: Hosts = None,
    gpus_per_host: GpusPerHost = None,
    nics_per_host: NicsPerHost = None,
    leaves: Leaves = None,
    topology: TopologyFile = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help=f"{FAULT_HELP} `none` injects nothing. Default gpu:5*2.0 and path:3-17+20ms."),
    ] = None,
    all2all: Annotated[str, typer.Option(help="sparse or allgather.")] = "sparse",
    transport: Annotated[str, typer.Option(help="serial or shared.")] = "serial",
    production_load: Annotated[
        float | None,
        typer.Option(help="Adds a production server on the same GPUs, and traffic of this share of its capacity."),
    ] = None,
    strategy: Annotated[str, typer.Option(help="auto, adaptive, faultsense or pairwise.")] = "auto",
    k: Annotated[int | None, typer.Option(help="GPUs a probe.")] = None,
    noise: Annotated[float, typer.Option(help="Sigma of lognormal noise.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Of noise, flapping and traffic.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave it up afterwards, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Inject faults into an emulated replica and let the service find them. Exit status 1 when it does not."""
    from app.cli.stack import Stack, StackError
    from app.embedded import EmbeddedServiceError
    from app.emulator.replica import EmulatedReplica

    placement = read_placement(
        gpus,
        hosts=hosts,
        gpus_per_host=gpus_per_host,
        nics_per_host=nics_per_host,
        leaves=leaves,
        topology=topology,
    )
    faults = _faults(fault, gpus, placement)
    config = {
        "gpus": gpus,
        "places": placement.places,
        "faults": tuple(map(str, faults)),
        "mode": all2all,
        "transport": transport,
        "noise_sigma": noise,
        "seed": seed,
        **LATENCY,
        **production_settings(production_load),
    }
    make_config(**config)
    emulated = EmulatedReplica(**config)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    on = f"{gpus} emulated GPUs on {len(placement.names('host'))} hosts"
    say(f"starting the service and {on}, with {_list(faults) or 'no fault'} ...")
    settings = {"probe_timeout_s": "5"}
    with refusing(EmbeddedServiceError, StackError), emulated as replica, Stack(settings=settings) as stack:
        with stack.client() as client:
            request = {**REQUEST, "strategy": strategy, **({} if k is None else {"k": k})}
            job = _run(client, replica, request)
            result, comparison = _result(job, faults, placement, selectable=all2all == "sparse")
        for line in describe(job):
            say(line)
        if not result["match"]:
            say(_mismatch(result, comparison))
        if keep:
            say(f"Swagger UI {stack.url}/docs   API key {stack.api_key}   (Ctrl-C stops everything)")
            _wait(stack)
    put_json(result) if as_json else say("found what was injected" if result["match"] else "not what was injected")
    raise typer.Exit(0 if result["match"] else 1)


def _faults(texts: list[str] | None, gpus: int, placement: Any) -> list[Any]:
    from app.localization.faults import FaultError, parse_faults

    if texts == ["none"]:
        return []
    if texts is None and gpus < 18:
        texts = ["gpu:1*2.0"]
    with refusing(FaultError):
        return list(parse_faults(texts or DEFAULT_FAULTS, gpus, placement))


def _run(client: Any, replica: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Register the replica as a user would, start a job, and watch it."""
    links = register(client, replica, "demo")
    started = time.monotonic()
    job = watch_job(client, call(client, "POST", links["localize"], request)["id"])
    return job | {"seconds": round(time.monotonic() - started, 2)}


def register(client: Any, replica: Any, name: str) -> dict[str, str]:
    """Register an emulated replica with its topology; its links."""
    document = {
        "name": name,
        "gpus": replica.config.gpus,
        "probe_endpoints": replica.endpoints,
        "production_endpoints": replica.production_endpoints,
        "manifest": replica.manifest,
        "layout": {"all2all": replica.config.mode},
        "limits": {"probes_per_second": 200},
    }
    links: dict[str, str] = call(client, "POST", "/replicas", document)["links"]
    call(client, "PUT", links["topology"], replica.topology)
    return links


def _result(
    job: dict[str, Any], faults: list[Any], placement: Any, *, selectable: bool
) -> tuple[dict[str, Any], Any]:
    """The document of ``--json``, and the comparison it rests on; None without a verdict."""
    from app.localization.expectation import compare_document, expected_names

    verdict = job["verdict"]
    comparison = None
    if verdict:
        comparison = compare_document(faults, verdict, selectable=selectable, placement=placement)
    return {
        "job": job["id"],
        "verdict": verdict,
        "expected": expected_names(faults, selectable=selectable, placement=placement),
        "match": comparison is not None and comparison.exact,
        "probes": verdict["cost"]["probes"] if verdict else 0,
        "seconds": job["seconds"],
    }, comparison


def _mismatch(result: dict[str, Any], comparison: Any) -> str:
    if comparison is None:
        return "the job gave no verdict"
    text = f"expected {', '.join(result['expected']) or 'no suspect'}"
    if comparison.wrong:
        more = " ..." if len(comparison.wrong) > MAX_SHOWN else ""
        return f"{text}; not at fault, yet named: {', '.join(comparison.wrong[:MAX_SHOWN])}{more}"
    if comparison.symptoms:
        return f"{text}; {len(comparison.symptoms)} of the named paths are slow because of it, not its cause"
    return (
        f"{text}; a fault below what the job could see ({json.dumps(result['verdict']['detectable'])}, at best)"
        " needs a smaller k, or a larger fault"
    )


def _list(faults: list[Any]) -> str:
    return " and ".join(map(str, faults))


def _wait(stack: Any) -> None:
    try:
        stack.wait()
    except KeyboardInterrupt:
        say("stopping ...")
