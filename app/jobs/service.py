"""Rules of jobs: what is accepted, what is planned, who may be cancelled."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from typing import Any

from sqlalchemy.orm import Session

from app.jobs import accounts, outcomes, repository
from app.jobs.models import Job
from app.jobs.schemas import Detectable, LocalizeRequest, PlanOut
from app.kit.problems import Problem, invalid, not_found
from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.planner import Targets
from app.localization.cover import schonheim_bound
from app.localization.errors import SettingsError
from app.localization.settings import Settings as SessionSettings
from app.localization.settings import default_baseline, default_probe_size
from app.localization.strategies import SweepPlan, make_strategy
from app.probing_stops import service as probing_stops
from app.replicas import service as replicas
from app.replicas.models import Replica
from app.settings import MAX_PACE_S
from app.topology import service as topologies
from app.webhooks import service as webhooks

# A running job whose deadline is so long past, and that nobody holds, is not coming back.
LOST_GRACE_S = 300.0


# Phase 1 of more than this would take days at any rate that a serving replica can bear.
MAX_MEASUREMENTS = 100_000
# Sequences that a rank carries at most unless the request says more: a probe must not displace the users.
DEFAULT_LOAD = 16
# Only strategies that compare with a threshold take these.
THRESHOLD_FIELDS = ("k", "alpha", "repeats", "aggregate", "baseline")
_COVERS = threading.Lock()


def get(db: Session, job_id: uuid.UUID) -> Job:
    """A job.

    Raises
    ------
    Problem
        404.
    """
    job = repository.get(db, job_id)
    if job is None:
        raise not_found("job", job_id)
    return job


def with_events(db: Session, job_id: uuid.UUID) -> Job:
    """A job whose events are still stored.

    Raises
    ------
    Problem
        404, or 410 when the retention has deleted them.
    """
    job = get(db, job_id)
    if job.events_deleted_at is not None:
        raise Problem(
            410,
            "events_deleted",
            f"the events of job {job_id} were deleted on {job.events_deleted_at:%Y-%m-%d}, after the time that"
            " FAULTSENSE_RETENTION_EVENTS_DAYS keeps them; its verdict stays",
        )
    return job


def delete_old_events(db: Session, older_than: dt.timedelta) -> int:
    """Delete the events of a few jobs that ended long ago; the number of jobs, 0 when none is left."""
    return repository.delete_events(db, older_than)


def settle(db: Session, replica: Replica, request: LocalizeRequest) -> SessionSettings:
    """The session's settings for a request: defaults by the replica's size, capabilities from its layout.

    Raises
    ------
    Problem
        422 naming the field, when the replica cannot be probed so.
    """
    if request.webhook_url is not None:
        webhooks.check_url("body.webhook_url", request.webhook_url)
    _check_senders(replica)
    strategy = _strategy(replica, request)
    adaptive = strategy == "adaptive"
    if adaptive and request.k is not None:
        raise invalid("body.k", "strategy adaptive chooses its own probes; leave k out, or use faultsense")
    k = default_probe_size(replica.gpus) if request.k is None else request.k
    k = 2 if request.strategy == "pairwise" and request.k is None else k
    topology = topologies.current(db, replica.id)
    placement = None if topology is None else topologies.placement(topology)
    wanted = request.model_dump(include={"alpha", "repeats", "aggregate", "signal", "seed"})
    try:
        settings = SessionSettings(
            gpus=replica.gpus,
            strategy=strategy,
            k=k,
            baseline=request.baseline or default_baseline(replica.gpus, k),
            prompt_tokens=request.prompt_tokens,
            decode_tokens=request.decode_tokens,
            hosts=None if placement is None else placement.hosts,
            shared={} if placement is None else placement.shared,
            paths_selectable=replicas.paths_selectable(replica),
            topology_version=None if topology is None else topology.version,
            adaptive=_assumptions(replica, request) if adaptive else None,
            **wanted,
        )
    except SettingsError as error:
        raise invalid(f"body.{error.field}", error.message) from None
    _check_tokens(replica, settings)
    if not adaptive:
        _check_size(settings)
        _check_load(replica, settings)
        _check_pace(replica, settings)
    return settings


def _strategy(replica: Replica, request: LocalizeRequest) -> str:
    """``auto`` by what the replica can do (DESIGN section 5, last table), and by what the request asks for."""
    if request.strategy != "auto":
        return request.strategy
    threshold = any(
        name in request.model_fields_set and getattr(request, name) is not None for name in THRESHOLD_FIELDS
    )
    return "adaptive" if replicas.capabilities(replica).any_shape and not threshold else "faultsense"


def _assumptions(replica: Replica, request: LocalizeRequest) -> Assumptions:
    """What strategy adaptive is told: the operator's targets, and the most that a rank may carry.

    Raises
    ------
    Problem
        422 when the replica cannot carry what is asked for.
    """
    able = replicas.capabilities(replica)
    tokens = request.prompt_tokens + request.decode_tokens
    rate = replica.document["limits"]["tokens_per_second"]
    by_server = able.most_sequences(request.prompt_tokens)
    by_pace = int(rate * MAX_PACE_S / (tokens * replica.gpus)) if rate else None
    most = min(limit for limit in (by_server, by_pace, 1024) if limit is not None)
    if most < 1:
        slow = by_pace is not None and by_pace < 1
        raise invalid(
            "body.decode_tokens" if slow else "body.prompt_tokens",
            f"a probe of all {replica.gpus} GPUs takes {tokens} tokens a GPU, more than the replica's"
            f" {'limits.tokens_per_second' if slow else 'max_num_batched_tokens'} admit; fewer tokens",
        )
    if request.max_load is not None and request.max_load > most:
        raise invalid("body.max_load", f"the server and the replica's limits take at most {most} sequences a rank")
    return Assumptions(
        targets=Targets(request.target_gpu, request.target_path, request.target_delay_ms),
        transport=request.transport or able.transport,
        max_tokens=request.max_load or min(most, DEFAULT_LOAD),
    )


def plan(replica: Replica, settings: SessionSettings) -> PlanOut:
    """What Phase 1 will take, before anything is sent."""
    sweep = _plan(settings)
    tokens = sweep.sequences * settings.tokens
    limits = replica.document["limits"]
    waits = [sweep.measurements / limits["probes_per_second"]]
    if limits["tokens_per_second"]:
        waits.append(tokens / limits["tokens_per_second"])
    return PlanOut(
        settings=settings.to_dict(),
        probes=sweep.probes,
        lower_bound=sweep.lower_bound,
        measurements=sweep.measurements,
        tokens=tokens,
        path_units=sweep.path_units * settings.tokens,
        seconds_at_least=round(max(waits), 3),
        detectable=Detectable.model_validate(sweep.detectable),
        by_transport={name: Detectable.model_validate(some) for name, some in sweep.by_transport.items()},
    )


def create(db: Session, replica: Replica, request: LocalizeRequest, settings: SessionSettings) -> Job:
    """Queue a job.

    Raises
    ------
    Problem
        409 with the Location of the job that the replica is busy with, or because probing is stopped; 422 when a
        webhook's secret cannot be kept.
    """
    probing_stops.refuse_if_stopped(db, replica.id)
    wanted = request.model_dump(mode="json", exclude={"webhook_secret"})
    webhook_id = uuid.uuid4()
    if request.webhook_url is not None:
        wanted["webhook_id"] = str(webhook_id)
    values: dict[str, Any] = {
        "replica_id": replica.id,
        "state": "queued",
        "request": wanted,
        "settings": settings.to_dict(),
        "topology_version": settings.topology_version,
        "planned": planned_at_first(settings),
    }
    job = repository.create(db, values, request.deadline_s)
    if job is None:
        refuse_if_busy(db, replica)
        raise Problem(409, "busy", "the replica was busy a moment ago; try again", headers={"Retry-After": "1"})
    if request.webhook_url is not None:
        webhooks.create_for_job(db, webhook_id, job.id, request.webhook_url, request.webhook_secret)
    return job


def planned_at_first(settings: SessionSettings) -> int:
    """Measurements of Phase 1."""
    return _plan(settings).measurements


def _plan(settings: SessionSettings) -> SweepPlan:
    """A large cover takes seconds, once: whoever wants the same one meanwhile waits for it."""
    with _COVERS:
        return make_strategy(settings).plan()


def refuse_if_busy(db: Session, replica: Replica) -> None:
    """Refuse what cannot be done while a job lives.

    Raises
    ------
    Problem
        409 with the job's Location.
    """
    job = repository.live_of(db, replica.id)
    if job is not None:
        raise Problem(
            409,
            "busy",
            f"replica {replica.name!r} is busy with job {job.id}; wait for it or cancel it",
            headers={"Location": f"/jobs/{job.id}", "Retry-After": "5"},
        )


def cancel(db: Session, job: Job) -> None:
    """Cancel a job: at once while it is queued, within one probe while it runs.

    Raises
    ------
    Problem
        409 when it has ended in another way.
    """
    if repository.cancel_queued(db, job.id):
        accounts.count_end(db, "cancelled", None)
        outcomes.announce(db, [job.id])
        return
    if repository.request_cancel(db, job.id):
        return
    db.refresh(job)
    if job.state != "cancelled":
        raise Problem(409, "job_ended", f"job {job.id} has already {job.state}")


def sweep(db: Session, requeue_after_s: float) -> list[uuid.UUID]:
    """End what is past saving, and return the jobs that a worker must be told of again."""
    for state, ended in (
        ("expired", repository.expire_queued(db)),
        ("failed", repository.give_up_lost(db, LOST_GRACE_S)),
    ):
        if ended:
            accounts.count_end(db, state, None, len(ended))
            outcomes.announce(db, ended)
    return repository.due_again(db, requeue_after_s)


def _check_senders(replica: Replica) -> None:
    """Without a choice of the sending rank there is no probe."""
    layout = replica.document["layout"]
    if layout["tp"] > 1:
        raise Problem(
            422,
            "no_rank_choice",
            f"layout.tp is {layout['tp']}: with tensor parallelism several GPUs are one sender, so no probe can"
            " choose the sending GPU; localizing needs one data-parallel rank a GPU",
        )
    for i, endpoint in enumerate(replica.document["probe_endpoints"]):
        if endpoint["rank_choice"] == "none":
            raise Problem(
                422,
                "no_rank_choice",
                f"probe_endpoints.{i}.rank_choice is 'none': no probe can choose the sending GPU there; serve the"
                " probe model with the rank header or with one port a rank",
            )


def _check_size(settings: SessionSettings) -> None:
    """Before a cover is computed: its lower bound costs nothing."""
    if not settings.paths_selectable:
        return
    at_least = schonheim_bound(settings.gpus, settings.k) * settings.repeats
    if at_least > MAX_MEASUREMENTS:
        raise invalid(
            "body.k",
            f"{settings.gpus} GPUs by {settings.k} take at least {at_least} measurements; at most"
            f" {MAX_MEASUREMENTS} are accepted: a larger k, or fewer repeats",
        )


def _check_pace(replica: Replica, settings: SessionSettings) -> None:
    """A single probe must fit into the token budget soon enough for its worker to stay responsive."""
    rate = replica.document["limits"]["tokens_per_second"]
    tokens = settings.k**2 * settings.tokens
    if rate and tokens / rate > MAX_PACE_S:
        raise invalid(
            "body.decode_tokens",
            f"one probe takes {tokens} tokens, {tokens / rate:.0f} s at the replica's limits.tokens_per_second;"
            f" at most {MAX_PACE_S:.0f} s are accepted: fewer tokens, a smaller k, or a higher limit",
        )


def _check_load(replica: Replica, settings: SessionSettings) -> None:
    """Never more sequences or prompt tokens a rank and step than the server's limits (DESIGN section 4)."""
    manifest = replica.document["manifest"]
    if settings.k > manifest["max_num_seqs"]:
        raise invalid(
            "body.k", f"{settings.k} sequences a rank, the server takes {manifest['max_num_seqs']} (max_num_seqs)"
        )
    if settings.k * settings.prompt_tokens > manifest["max_num_batched_tokens"]:
        raise invalid(
            "body.prompt_tokens",
            f"{settings.k} x {settings.prompt_tokens} tokens a rank, the server takes"
            f" {manifest['max_num_batched_tokens']} a step (max_num_batched_tokens)",
        )


def _check_tokens(replica: Replica, settings: SessionSettings) -> None:
    longest = replica.document["manifest"]["max_model_len"]
    if settings.tokens > longest:
        raise invalid(
            "body.decode_tokens", f"prompt and decode tokens are {settings.tokens}, the model takes {longest}"
        )
