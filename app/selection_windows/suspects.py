"""Rails that failed and what the last job accuses, where both are at the same NICs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.jobs import repository as jobs
from app.localization.placement import Placement
from app.selection_windows.models import SelectionWindow
from app.selection_windows.schemas import RailSuspectOut
from app.topology import service as topologies


@dataclass(frozen=True)
class LastVerdict:
    """What the last job of a replica accuses, and where its GPUs sit."""

    job_id: uuid.UUID
    topology_version: int
    placement: Placement
    suspects: list[dict[str, Any]]


def last_verdict(db: Session, replica_id: uuid.UUID) -> LastVerdict | None:
    """The last verdict of a replica that names GPUs, and was made under a topology."""
    found = jobs.last_verdict(db, replica_id)
    if found is None:
        return None
    job, verdict = found
    if job.topology_version is None or not verdict["suspects"]:
        return None
    placement = topologies.placement(topologies.find(db, replica_id, version=job.topology_version))
    return LastVerdict(job.id, job.topology_version, placement, verdict["suspects"])


def beside(window: SelectionWindow, verdict: LastVerdict | None) -> list[RailSuspectOut]:
    """Suspects whose GPUs all sit at NICs with the name of a rail that failed, under the same topology.

    Records name devices and no hosts, so a rail stands for the NICs of that name on every host.
    """
    if verdict is None or window.topology_version != verdict.topology_version:
        return []
    failed = _failed(window.judgement)
    found = []
    for suspect in verdict.suspects:
        places = [verdict.placement.places[rank] for rank in suspect["members"]]
        rails = sorted({place.nic for place in places if place.nic is not None})
        if suspect["kind"] != "path" and None not in {place.nic for place in places} and set(rails) <= failed:
            found.append(
                RailSuspectOut(
                    job_id=verdict.job_id,
                    kind=suspect["kind"],
                    members=suspect["members"],
                    rails=rails,
                    nics=sorted({f"{place.host}/{place.nic}" for place in places}),
                )
            )
    return found


def _failed(judgement: Mapping[str, Any]) -> set[str]:
    """Names of the devices of rails that failed, on either side."""
    rails = [rail for rail in judgement["rails"] if rail["result"] == "fail"]
    return {name for rail in rails for name in (rail["local"], *_remotes(rail))}


def _remotes(rail: Mapping[str, Any]) -> list[str]:
    # Windows that were stored before rails had their remotes apart have them joined.
    remotes: list[str] = rail.get("remotes") or (rail["remote"] or "").split("+")
    return [name for name in remotes if name]
