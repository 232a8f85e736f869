"""Rules of replicas."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.kit import secrets
from app.kit.problems import Problem, invalid, not_found
from app.outbound import Guard, GuardError, parse_url
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.replicas import repository
from app.replicas.models import Replica
from app.replicas.ranks import parse_ranks
from app.replicas.schemas import ROUTED, ReplicaIn
from app.settings import get_settings


def register(db: Session, wanted: ReplicaIn) -> Replica:
    """Store a replica.

    Raises
    ------
    Problem
        422 for a URL that the guard refuses or a token that cannot be encrypted, 409 for a name in use.
    """
    _check_urls(wanted)
    document = wanted.model_dump(mode="json", exclude={"name", "gpus", "auth"})
    replica = Replica(
        name=wanted.name, gpus=wanted.gpus, document=document, bearer=_encrypt(wanted), deleted_at=None
    )
    db.add(replica)
    try:
        db.flush()
    except IntegrityError:
        db.rollback()
        raise _name_taken(db, wanted.name) from None
    return replica


def get(db: Session, replica_id: uuid.UUID, *, lock: bool = False) -> Replica:
    """A replica.

    Raises
    ------
    Problem
        404.
    """
    replica = repository.get(db, replica_id, lock=lock)
    if replica is None:
        raise not_found("replica", replica_id)
    return replica


def delete(db: Session, replica: Replica) -> None:
    """Take a replica out of use; its jobs stay readable."""
    replica.deleted_at = dt.datetime.now(dt.UTC)
    replica.bearer = None
    db.flush()


def guard() -> Guard:
    """The guard of replicas' addresses."""
    return Guard(get_settings().replica_networks)


def access(replica: Replica) -> ReplicaAccess:
    """A replica as the prober needs it.

    Raises
    ------
    SecretsError
        When its token cannot be decrypted.
    """
    document: dict[str, Any] = replica.document
    manifest = document["manifest"]
    return ReplicaAccess(
        model=manifest["model"],
        gpu_tokens=manifest["gpu_tokens"],
        endpoints=[
            ProbeEndpoint(parse_url(e["url"]), parse_ranks(e["ranks"]), e["rank_choice"])
            for e in document["probe_endpoints"]
        ],
        guard=guard(),
        logprobs=_echo_logprobs(manifest),
        bearer=None if replica.bearer is None else secrets.decrypt(replica.bearer),
        ca_pem=document["ca_pem"],
        probe_timeout_s=get_settings().probe_timeout_s,
    )


def paths_selectable(replica: Replica) -> bool:
    """Whether the backend sends tokens only where their experts are, so that paths can be told apart."""
    return replica.document["layout"]["all2all"] in ROUTED


def _echo_logprobs(manifest: dict[str, Any]) -> dict[int, float]:
    return {
        int(token): entry["logprob"]
        for token, entries in manifest["logprobs"].items()
        for entry in entries
        if entry["token"] == int(token)
    }


def _check_urls(wanted: ReplicaIn) -> None:
    """Refuse forbidden literal addresses now; names are checked when they are connected to."""
    checked = guard()
    urls = [(f"body.probe_endpoints.{i}.url", e.url) for i, e in enumerate(wanted.probe_endpoints)]
    urls += [(f"body.production_endpoints.{i}.url", e.url) for i, e in enumerate(wanted.production_endpoints)]
    for field, url in urls:
        try:
            checked.check_literal(parse_url(url))
        except GuardError as error:
            raise invalid(field, str(error)) from None


def _encrypt(wanted: ReplicaIn) -> bytes | None:
    if wanted.auth.bearer is None:
        return None
    try:
        return secrets.encrypt(wanted.auth.bearer.get_secret_value())
    except secrets.SecretsError as error:
        raise invalid("body.auth.bearer", f"cannot be stored: {error}") from None


def _name_taken(db: Session, name: str) -> Problem:
    other = repository.by_name(db, name)
    headers = {"Location": f"/replicas/{other.id}"} if other else {}
    return Problem(409, "name_taken", f"another replica is called {name!r}", headers=headers)
