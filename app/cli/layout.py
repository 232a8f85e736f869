"""Options that say where emulated GPUs sit, and what is at fault: the same for emulate, demo and simulate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.output import Refused, refusing, validation_message

if TYPE_CHECKING:
    from app.localization.placement import Placement

MAX_TOPOLOGY_BYTES = 2**20
DEFAULT_HOSTS = 8
FAULT_HELP = (
    "Repeatable: gpu:5*2.0, path:3-17*4, path:3-17+20ms, path:3>17+20ms (one way), gpu:7!hang, gpu:7!error,"
    " nic:host-a/0*3, host:host-b*2 (uplink), fabric:host-a*2, leaf:1*2, switch:spine-1*2, rail:0*2,"
    " all*1.3; /60s after a slowdown: grows over a minute, @0.3: strikes 30 % of the time."
)

Hosts = Annotated[int | None, typer.Option(help="Hosts the GPUs sit on, host-a, host-b, ...; default up to 8.")]
GpusPerHost = Annotated[int | None, typer.Option(help="Instead of --hosts.")]
NicsPerHost = Annotated[int | None, typer.Option(help="NICs 0, 1, ... of a host; default one a GPU.")]
Leaves = Annotated[int | None, typer.Option(help="Leaf switches 0, 1, ...; default 2, or 1 for a single host.")]
TopologyFile = Annotated[
    Path | None,
    typer.Option(
        "--topology", help="Topology file instead of the layout options: what PUT /replicas/{id}/topology takes."
    ),
]


def read_placement(
    gpus: int,
    *,
    hosts: int | None,
    gpus_per_host: int | None,
    nics_per_host: int | None,
    leaves: int | None,
    topology: Path | None,
    default_hosts: int | None = None,
) -> Placement:
    """Where the ranks sit, by the options.

    Raises
    ------
    Refused
        Options that contradict each other or are out of range, or a file that is no topology of so many GPUs.
    """
    from app.localization.errors import SettingsError
    from app.localization.placement import layout

    if topology is not None:
        if any(option is not None for option in (hosts, gpus_per_host, nics_per_host, leaves)):
            raise Refused("--topology says where the GPUs sit: leave --hosts and the other layout options out")
        return _from_file(topology, gpus)
    if gpus_per_host is not None:
        if hosts is not None:
            raise Refused("give --hosts or --gpus-per-host, not both")
        if gpus_per_host < 1 or gpus % gpus_per_host:
            raise Refused(f"--gpus-per-host must divide the {gpus} GPUs, got {gpus_per_host}")
        hosts = gpus // gpus_per_host
    if hosts is None:
        hosts = min(DEFAULT_HOSTS, gpus) if default_hosts is None else default_hosts
    with refusing(SettingsError):
        return layout(gpus, hosts, nics_per_host=nics_per_host, leaves=leaves)


def read_topology_file(path: Path) -> bytes:
    """Content of a file.

    Raises
    ------
    Refused
        When it cannot be read, or is larger than any topology.
    """
    with refusing(OSError), path.open("rb") as file:
        content = file.read(MAX_TOPOLOGY_BYTES + 1)
    if len(content) > MAX_TOPOLOGY_BYTES:
        raise Refused(f"{path}: larger than {MAX_TOPOLOGY_BYTES} bytes")
    return content


def _from_file(path: Path, gpus: int) -> Placement:
    from pydantic import ValidationError

    from app.topology import documents
    from app.topology.schemas import TopologyIn

    try:
        document = TopologyIn.model_validate_json(read_topology_file(path))
    except ValidationError as error:
        raise Refused(f"{path}: {validation_message(error)}") from None
    if len(document.gpus) != gpus:
        raise Refused(f"{path}: has {len(document.gpus)} GPUs, not {gpus}")
    return documents.placement(document.model_dump())
