"""``faultsense demo``: the whole service on this machine against an emulated replica with injected faults."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Annotated, Any

import typer

from app.cli.client import call, describe, watch_job
from app.cli.output import AsJson, Refused, put_json, refusing, say, validation_message

DEFAULT_FAULTS = ("gpu:5*2.0", "path:3-17+20ms")
# A quarter of the emulator's default times: a job of hundreds of probes then fits into a short demo.
LATENCY: dict[str, Any] = {
    "fixed_ms": 0.75,
    "compute_ms": 0.3125,
    "path_ms": {"same_host": 0.125, "cross_host": 0.25},
}
# Eleven tokens keep a usable common window when a sender is two steps late, as happens on a busy machine.
REQUEST = {"prompt_tokens": 1, "decode_tokens": 11}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("demo")(demo)


def demo(
    gpus: Annotated[int, typer.Option(help="Emulated GPUs, 4 to 128.")] = 64,
    hosts: Annotated[int, typer.Option(help="Hosts they sit on.")] = 8,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; `none` injects nothing. Default gpu:5*2.0 and path:3-17+20ms."),
    ] = None,
    all2all: Annotated[str, typer.Option(help="sparse or allgather.")] = "sparse",
    transport: Annotated[str, typer.Option(help="serial or shared.")] = "serial",
    strategy: Annotated[str, typer.Option(help="auto, faultsense or pairwise.")] = "auto",
    k: Annotated[int | None, typer.Option(help="GPUs a probe.")] = None,
    noise: Annotated[float, typer.Option(help="Sigma of lognormal noise.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave it up afterwards, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Inject faults into an emulated replica and let the service find them. Exit status 1 when it does not."""
    from app.cli.stack import Stack, StackError
    from app.embedded import EmbeddedServiceError

    faults = _faults(fault, gpus, hosts)
    emulated = _emulator(
        gpus=gpus,
        hosts=hosts,
        faults=tuple(map(str, faults)),
        mode=all2all,
        transport=transport,
        noise_sigma=noise,
        seed=seed,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(f"starting the service and {gpus} emulated GPUs on {hosts} hosts, with {_list(faults) or 'no fault'} ...")
    settings = {"probe_timeout_s": "5"}
    with refusing(EmbeddedServiceError, StackError), emulated as replica, Stack(settings=settings) as stack:
        with stack.client() as client:
            request = {**REQUEST, "strategy": strategy, **({} if k is None else {"k": k})}
            job = _run(client, replica, request)
            result = _result(job, faults, selectable=all2all == "sparse")
        for line in describe(job):
            say(line)
        if not result["match"]:
            say(_mismatch(result))
        if keep:
            say(f"Swagger UI {stack.url}/docs   API key {stack.api_key}   (Ctrl-C stops everything)")
            _wait(stack)
    put_json(result) if as_json else say("found what was injected" if result["match"] else "not what was injected")
    raise typer.Exit(0 if result["match"] else 1)


def _faults(texts: list[str] | None, gpus: int, hosts: int) -> list[Any]:
    from app.localization.faults import FaultSyntaxError, parse_faults

    if texts == ["none"]:
        return []
    if texts is None and (gpus < 18 or hosts < 1):
        texts = ["gpu:1*2.0"]
    with refusing(FaultSyntaxError):
        return list(parse_faults(texts or DEFAULT_FAULTS, gpus))


def _emulator(**config: Any) -> Any:
    from pydantic import ValidationError

    from app.emulator.config import EmulatorConfig
    from app.emulator.replica import EmulatedReplica

    try:
        EmulatorConfig(**config)
    except ValidationError as error:
        raise Refused(validation_message(error)) from None
    return EmulatedReplica(**config, **LATENCY)


def _run(client: Any, replica: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Register the replica as a user would, start a job, and watch it."""
    document = {
        "name": "demo",
        "gpus": replica.config.gpus,
        "probe_endpoints": replica.endpoints,
        "manifest": replica.manifest,
        "layout": {"all2all": replica.config.mode},
        "limits": {"probes_per_second": 200},
    }
    registered = call(client, "POST", "/replicas", document)
    call(client, "PUT", registered["links"]["topology"], replica.topology)
    started = time.monotonic()
    job = watch_job(client, call(client, "POST", registered["links"]["localize"], request)["id"])
    return job | {"seconds": round(time.monotonic() - started, 2)}


def _result(job: dict[str, Any], faults: list[Any], *, selectable: bool) -> dict[str, Any]:
    verdict = job["verdict"]
    expected = expected_names(faults, selectable=selectable)
    named = [f"{s['kind']}:{'-'.join(map(str, s['members']))}" for s in verdict["suspects"]] if verdict else []
    return {
        "job": job["id"],
        "verdict": verdict,
        "expected": expected,
        "match": verdict is not None and sorted(named) == sorted(expected) and _right_kind(verdict, faults),
        "probes": verdict["cost"]["probes"] if verdict else 0,
        "seconds": job["seconds"],
    }


def expected_names(faults: list[Any], *, selectable: bool) -> list[str]:
    """What a right verdict names: what is identifiable of the injected faults.

    A path at a slow GPU is masked; without selectable paths none can be named; a GPU that hangs or fails freezes
    or ends the engine, and the verdict is then ``inconclusive`` with the set under test.
    """
    if any(f.hard for f in faults):
        return []
    slow = {f.component.members[0] for f in faults if f.component.kind == "gpu"}
    names = {
        str(f.component)
        for f in faults
        if f.component.kind == "gpu" or (selectable and slow.isdisjoint(f.component.members))
    }
    return sorted(names)


def _right_kind(verdict: dict[str, Any], faults: list[Any]) -> bool:
    """A hang must be reported as one, not merely as nothing found."""
    codes = {reason["code"] for reason in verdict["reasons"]}
    hard = {f.hard for f in faults if f.hard}
    if "hang" in hard:
        return "engine_hung" in codes
    return "engine_failed" in codes if hard else True


def _mismatch(result: dict[str, Any]) -> str:
    seen = result["verdict"]["detectable"] if result["verdict"] else None
    if seen is None:
        return "the job gave no verdict"
    return (
        f"expected {', '.join(result['expected']) or 'no suspect'}; a fault below what the job could see"
        f" ({json.dumps(seen)}, at best) needs a smaller k, or a larger fault"
    )


def _list(faults: list[Any]) -> str:
    return " and ".join(map(str, faults))


def _wait(stack: Any) -> None:
    try:
        stack.wait()
    except KeyboardInterrupt:
        say("stopping ...")
