"""The emulated replica in the foreground."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from app.cli.output import Refused, put_json, validation_message


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("emulate")(emulate)


def emulate(
    gpus: Annotated[int, typer.Option(help="Ranks.")] = 64,
    hosts: Annotated[int, typer.Option(help="Hosts they sit on.")] = 8,
    fault: Annotated[
        list[str] | None, typer.Option(help="Such as gpu:5*2.0 or path:3-17+20ms; repeatable.")
    ] = None,
    rank_choice: Annotated[str, typer.Option(help="header (one port) or url (one port a rank).")] = "header",
    all2all: Annotated[str, typer.Option(help="sparse or allgather.")] = "sparse",
    transport: Annotated[str, typer.Option(help="serial or shared.")] = "serial",
    noise: Annotated[float, typer.Option(help="Sigma of lognormal noise.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="First port; 0 takes free ones.")] = 8100,
) -> None:
    """Emulate a replica on loopback until Ctrl-C; prints the document to register it with."""
    from pydantic import ValidationError

    from app.emulator.config import EmulatorConfig
    from app.emulator.runner import run_emulator
    from app.probe_model.synthetic import synthetic_manifest

    try:
        config = EmulatorConfig(
            gpus=gpus,
            hosts=hosts,
            faults=tuple(fault or ()),
            rank_choice=rank_choice,
            mode=all2all,
            transport=transport,
            noise_sigma=noise,
            seed=seed,
        )
    except ValidationError as error:
        raise Refused(validation_message(error)) from None
    manifest = synthetic_manifest(gpus)

    def announce(_: str, endpoints: list[dict[str, str]]) -> None:
        put_json(
            {
                "name": "emulated",
                "gpus": gpus,
                "probe_endpoints": endpoints,
                "manifest": manifest.model_dump(mode="json"),
                "layout": {"all2all": all2all},
                "limits": {"probes_per_second": 200},
            }
        )

    try:
        _check_free(port, gpus + 1 if rank_choice == "url" else 1)
        run_emulator(config, port=port, manifest=manifest, on_ready=announce)
    except (OSError, OverflowError) as error:
        raise Refused(f"ports from {port} on cannot be bound: {error}") from None


def _check_free(port: int, count: int) -> None:
    """Raise OSError for a port in use: the emulator's own sockets would share it, and mix two replicas."""
    for taken in range(port, port + count) if port else ():
        socket.create_server(("127.0.0.1", taken)).close()
