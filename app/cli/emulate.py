"""The emulated replica in the foreground."""

from __future__ import annotations

import socket
from typing import Annotated, Any

import typer

from app.cli.layout import FAULT_HELP, GpusPerHost, Hosts, Leaves, NicsPerHost, TopologyFile, read_placement
from app.cli.output import Refused, put_json, validation_message


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("emulate")(emulate)


def emulate(
    gpus: Annotated[int, typer.Option(help="Ranks, 2 to 512.")] = 64,
    hosts: Hosts = None,
    gpus_per_host: GpusPerHost = None,
    nics_per_host: NicsPerHost = None,
    leaves: Leaves = None,
    topology: TopologyFile = None,
    fault: Annotated[list[str] | None, typer.Option(help=FAULT_HELP)] = None,
    rank_choice: Annotated[str, typer.Option(help="header (one port) or url (one port a rank).")] = "header",
    all2all: Annotated[str, typer.Option(help="sparse or allgather.")] = "sparse",
    transport: Annotated[str, typer.Option(help="serial or shared.")] = "serial",
    path_ms: Annotated[
        list[str] | None,
        typer.Option(help="Time per token, such as same_host=0.5, cross_host=1, cross_rail=1.2, cross_leaf=1.5."),
    ] = None,
    production_load: Annotated[
        float | None,
        typer.Option(help="Adds a production server on the same GPUs, and traffic of this share of its capacity."),
    ] = None,
    noise: Annotated[float, typer.Option(help="Sigma of lognormal noise.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Of noise, flapping and traffic.")] = 0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="First port; 0 takes free ones.")] = 8100,
) -> None:
    """Emulate a replica on loopback until Ctrl-C; prints the document to register it with.

    While it runs, PUT /emulator/faults replaces the faults, and GET /emulator/topology gives the topology.
    """
    from app.emulator.runner import run_emulator
    from app.probe_model.synthetic import synthetic_manifest

    placement = read_placement(
        gpus,
        hosts=hosts,
        gpus_per_host=gpus_per_host,
        nics_per_host=nics_per_host,
        leaves=leaves,
        topology=topology,
    )
    config = make_config(
        gpus=gpus,
        places=placement.places,
        faults=tuple(fault or ()),
        rank_choice=rank_choice,
        mode=all2all,
        transport=transport,
        noise_sigma=noise,
        seed=seed,
        **({"path_ms": _path_ms(path_ms)} if path_ms else {}),
        **production_settings(production_load),
    )
    manifest = synthetic_manifest(gpus)

    def announce(_: str, endpoints: list[dict[str, str]], production: list[dict[str, str]]) -> None:
        put_json(
            {
                "name": "emulated",
                "gpus": gpus,
                "probe_endpoints": endpoints,
                **({"production_endpoints": production} if production else {}),
                "manifest": manifest.model_dump(mode="json"),
                "layout": {"all2all": all2all},
                "limits": {"probes_per_second": 200},
            }
        )

    try:
        _check_free(port, (gpus + 1 if rank_choice == "url" else 1) + (production_load is not None))
        run_emulator(config, port=port, manifest=manifest, on_ready=announce)
    except (OSError, OverflowError) as error:
        raise Refused(f"ports from {port} on cannot be bound: {error}") from None


def make_config(**settings: Any) -> Any:
    """A checked `EmulatorConfig`.

    Raises
    ------
    Refused
        Naming the setting at fault.
    """
    from pydantic import ValidationError

    from app.emulator.config import EmulatorConfig

    try:
        return EmulatorConfig(**settings)
    except ValidationError as error:
        raise Refused(validation_message(error)) from None


def production_settings(load: float | None) -> dict[str, Any]:
    """The emulator's setting for a production server; none without a load."""
    return {} if load is None else {"production": {"load": load}}


def _path_ms(texts: list[str]) -> dict[str, float]:
    """Times by hop class, over the defaults."""
    from app.emulator.latency import DEFAULT_PATH_MS

    times: dict[str, float] = {str(hop): ms for hop, ms in DEFAULT_PATH_MS.items()}
    for text in texts:
        hop, _, ms = text.partition("=")
        try:
            times[hop] = float(ms)
        except ValueError:
            raise Refused(f"--path-ms {text}: write a hop class and its time, such as cross_leaf=1.5") from None
    return times


def _check_free(port: int, count: int) -> None:
    """Raise OSError for a port in use: the emulator's own sockets would share it, and mix two replicas."""
    for taken in range(port, port + count) if port else ():
        socket.create_server(("127.0.0.1", taken)).close()
