"""Rules of replicas."""

from __future__ import annotations

import datetime as dt
import json
import logging
import uuid
from typing import Any

from pydantic import ValidationError
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.kit import secrets
from app.kit.problems import Problem, invalid, invalid_model, not_found
from app.localization.capabilities import Capabilities
from app.outbound import Guard, GuardError, parse_url
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.replicas import repository
from app.replicas.models import Replica
from app.replicas.ranks import parse_ranks
from app.replicas.schemas import ROUTED, Auth, ReplicaIn, ReplicaPatch
from app.settings import get_settings

logger = logging.getLogger(__name__)


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
        name=wanted.name, gpus=wanted.gpus, document=document, bearer=_encrypt(wanted.auth), deleted_at=None
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


# What a running job does not look at again, or only at the start of its next slice.
_ALWAYS_CHANGEABLE = {"name", "limits", "targets", "production_endpoints"}


def concerns_probes(wanted: ReplicaPatch) -> bool:
    """Whether a running job would go on with another replica than it began with."""
    return bool(wanted.model_fields_set - _ALWAYS_CHANGEABLE)


def update(db: Session, replica: Replica, wanted: ReplicaPatch) -> None:
    """Apply a merge patch; the caller holds the replica's row lock.

    Raises
    ------
    Problem
        422 naming the field when the result is no consistent replica, 409 for a name in use.
    """
    changes = wanted.model_dump(mode="json", exclude_unset=True, exclude={"auth"})
    merged = _merge({"name": replica.name, "gpus": replica.gpus, **replica.document}, changes)
    try:
        whole = ReplicaIn.model_validate_json(json.dumps(merged))
    except ValidationError as error:
        raise invalid_model(error) from None
    _check_urls(whole)
    _keep_token_at_home(replica, whole, wanted)
    replica.document = whole.model_dump(mode="json", exclude={"name", "gpus", "auth"})
    if _sets_token(wanted):
        replica.bearer = None if wanted.auth is None else _encrypt(wanted.auth)
    old_name, replica.name = replica.name, whole.name
    try:
        db.flush()
    except IntegrityError:
        db.rollback()
        raise _name_taken(db, whole.name) from None
    logger.info("replica %s (%s) changed: %s", replica.id, old_name, ", ".join(sorted(wanted.model_fields_set)))


def _sets_token(wanted: ReplicaPatch) -> bool:
    """Whether a patch says what becomes of the token: `{"auth": {}}` does not."""
    return "auth" in wanted.model_fields_set and (wanted.auth is None or "bearer" in wanted.auth.model_fields_set)


def _keep_token_at_home(replica: Replica, whole: ReplicaIn, wanted: ReplicaPatch) -> None:
    """A stored token goes nowhere that whoever stored it did not name."""
    if replica.bearer is None or _sets_token(wanted):
        return
    before = {_origin(e["url"]) for e in replica.document["probe_endpoints"]}
    new = sorted({_origin(e.url) for e in whole.probe_endpoints} - before)
    if new:
        raise invalid(
            "body.auth",
            f"a bearer token is stored, and {new[0]} is a new address: send the token with this change, or"
            ' {"bearer": null} to forget it',
        )


def _origin(url: str) -> str:
    target = parse_url(url)
    return f"{target.scheme}://{target.host}:{target.port}"


def _merge(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """RFC 7396 for objects of objects: null removes, objects merge, everything else replaces."""
    merged = dict(old)
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and name != "manifest":  # a manifest is one thing: never half of another
            merged[name] = _merge(old.get(name) or {}, value)
        else:
            merged[name] = value
    return merged


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
            ProbeEndpoint(parse_url(e["url"]), parse_ranks(e["ranks"]), e["rank_choice"], e.get("rail") or "")
            for e in document["probe_endpoints"]
        ],
        guard=guard(),
        logprobs=_echo_logprobs(manifest),
        bearer=None if replica.bearer is None else secrets.decrypt(replica.bearer),
        ca_pem=document["ca_pem"],
        probe_timeout_s=get_settings().probe_timeout_s,
        max_num_seqs=manifest["max_num_seqs"],
        max_num_batched_tokens=manifest["max_num_batched_tokens"],
        token_bytes=manifest["hidden_size"] * (4 if manifest["dtype"] == "float32" else 2),
    )


def capabilities(replica: Replica) -> Capabilities:
    """What its declared layout and manifest let a probe do."""
    manifest, endpoints = replica.document["manifest"], replica.document["probe_endpoints"]
    return Capabilities(
        paths=paths_selectable(replica),
        rank_choice=all(endpoint["rank_choice"] != "none" for endpoint in endpoints),
        max_num_seqs=manifest["max_num_seqs"],
        max_num_batched_tokens=manifest["max_num_batched_tokens"],
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


def _encrypt(auth: Auth) -> bytes | None:
    return (
        None if auth.bearer is None else secrets.encrypt_field("body.auth.bearer", auth.bearer.get_secret_value())
    )


def _name_taken(db: Session, name: str) -> Problem:
    other = repository.by_name(db, name)
    headers = {"Location": f"/replicas/{other.id}"} if other else {}
    return Problem(409, "name_taken", f"another replica is called {name!r}", headers=headers)
