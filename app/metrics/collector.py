"""The whole service as PostgreSQL knows it, read at scrape time: every API process answers the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from app.jobs.accounts import PROBE_SECONDS
from app.jobs.schemas import Outcome
from app.kit import counters
from app.kit.db import get_engine
from app.webhooks import repository as webhooks

PREFIX = "faultsense_"
# With the label values that are known beforehand: a counter that is born at 1 never increases to Prometheus.
COUNTERS: dict[str, tuple[str, list[str], list[tuple[str, ...]]]] = {
    "jobs_finished_total": (
        "Jobs that ended, by state and verdict.",
        ["state", "outcome"],
        [
            *(("succeeded", outcome) for outcome in get_args(Outcome)),
            ("cancelled", "inconclusive"),
            *((state, "none") for state in ("failed", "cancelled", "expired")),
        ],
    ),
    "sweeps_total": ("Looks for lost jobs: proof that the tick is alive.", [], [()]),
    "lease_recoveries_total": ("Jobs taken up again after their worker went silent.", [], [()]),
    "probes_total": (
        "Measurements of ended jobs, by phase and result.",
        ["phase", "result"],
        list(product("12", ("measured", "timed_out", "failed"))),
    ),
    "probes_allowed_total": ("Measurements that the replicas' limits allowed while ended jobs ran.", [], [()]),
    "webhook_attempts_total": ("Webhook attempts, by result.", ["result"], [("delivered",), ("failed",)]),
    "webhook_deliveries_total": (
        "Webhook deliveries that ended, by state.",
        ["state"],
        [("delivered",), ("exhausted",), ("disabled",)],
    ),
}
GAUGES = {
    "jobs_live": ("Jobs that are queued or running, by state.", ["state"]),
    "queue_age_seconds": ("Age of the oldest queued job that no worker has taken.", []),
    "expired_leases": ("Running jobs whose worker has gone silent and that none has taken up yet.", []),
    "replicas": ("Registered replicas.", []),
    "probing_stops": ("Stop switches that are on, by scope.", ["scope"]),
    "webhooks_due": ("Webhook deliveries that wait for their next attempt.", []),
    "webhooks_due_age_seconds": ("How long the oldest of them has been due.", []),
}
_LIVE = text(
    """
    SELECT state, count(*) AS number,
           coalesce(extract(epoch FROM now() - min(created_at)), 0)::float AS age,
           count(*) FILTER (WHERE lease_until < now()) AS expired
    FROM jobs WHERE state IN ('queued', 'running') GROUP BY state
    """
)
_STOPS = text("SELECT scope = 'fleet' AS fleet, count(*) AS number FROM probing_stops GROUP BY 1")
_REPLICAS = text("SELECT count(*) FROM replicas WHERE deleted_at IS NULL")

Samples = dict[str, list[tuple[list[str], float]]]


class ServiceCollector(Collector):
    """Collects from PostgreSQL; without it only ``faultsense_database_up 0``."""

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """All families, each with its samples."""
        up = GaugeMetricFamily(PREFIX + "database_up", "Whether PostgreSQL answers.")
        try:
            with Session(get_engine()) as db:
                counts, gauges = counters.read(db), _gauges(db)
        except (DBAPIError, PoolTimeoutError):
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from _counter_families(counts)
        yield _latencies(counts)
        for name, (help_text, labels) in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, help_text, labels=labels)
            for values, number in gauges[name]:
                gauge.add_metric(values, number)
            yield gauge

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Nothing: registering must not ask the database."""
        return []


def _counter_families(counts: list[counters.Count]) -> Iterator[CounterMetricFamily]:
    for name, (help_text, labels, known) in COUNTERS.items():
        family = CounterMetricFamily(PREFIX + name, help_text, labels=labels)
        values = dict.fromkeys(known, 0.0)
        values |= {tuple(at[label] for label in labels): value for counted, at, value in counts if counted == name}
        for of, value in values.items():
            family.add_metric(of, value)
        yield family


def _latencies(counts: list[counters.Count]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(
        PREFIX + "probe_seconds", "Wall time of the measurements of ended jobs, by phase.", labels=["phase"]
    )
    buckets: dict[str, dict[str, float]] = defaultdict(dict)
    sums: dict[str, float] = {}
    for name, at, value in counts:
        if name == "probe_seconds_bucket":
            buckets[at["phase"]][at["le"]] = value
        elif name == "probe_seconds_sum":
            sums[at["phase"]] = value
    for phase, found in sorted(buckets.items()):
        total, cumulative = 0.0, []
        for le in [*map(str, PROBE_SECONDS), "+Inf"]:
            total += found.get(le, 0.0)
            cumulative.append((le, total))
        family.add_metric([phase], cumulative, sums.get(phase, 0.0))
    return family


def _gauges(db: Session) -> Samples:
    live = {row.state: row for row in db.execute(_LIVE)}
    stops = {row.fleet: row.number for row in db.execute(_STOPS)}
    number, age_s = webhooks.waiting(db)
    queued, running = live.get("queued"), live.get("running")
    return {
        "jobs_live": [([state], live[state].number if state in live else 0) for state in ("queued", "running")],
        "queue_age_seconds": [([], queued.age if queued else 0.0)],
        "expired_leases": [([], running.expired if running else 0)],
        "replicas": [([], db.execute(_REPLICAS).scalar_one())],
        "probing_stops": [([scope], stops.get(scope == "fleet", 0)) for scope in ("fleet", "replica")],
        "webhooks_due": [([], number)],
        "webhooks_due_age_seconds": [([], age_s)],
    }
