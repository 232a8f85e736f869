"""All settings of the service, from the environment (``FAULTSENSE_...``) or a ``.env`` file."""

from __future__ import annotations

import json
from functools import lru_cache
from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.selection.tolerances import ABOVE, BELOW, MAX_ABOVE

LOOPBACK_NETWORKS = ["127.0.0.0/8", "::1/128"]
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
# Longest wait for one probe's tokens.
MAX_PACE_S = 30.0
PRIVATE_NETWORKS = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]


class Settings(BaseSettings):
    """Settings of API, worker and tick."""

    model_config = SettingsConfigDict(env_prefix="FAULTSENSE_", env_file=".env", extra="ignore")

    database_url: SecretStr = Field(
        default=SecretStr("postgresql+psycopg://faultsense@127.0.0.1:5432/faultsense"),
        description="SQLAlchemy URL of PostgreSQL, with the psycopg driver.",
    )
    redis_url: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:6379/0"), description="URL of Redis or Valkey, the Celery broker."
    )
    secret_keys: list[SecretStr] = Field(
        default_factory=list,
        description="Fernet keys that encrypt recoverable secrets (replica tokens, webhook secrets); the first one"
        " encrypts, all decrypt. `faultsense keys secret` makes one.",
    )
    replica_networks: list[str] = Field(
        default=PRIVATE_NETWORKS, description="Networks in CIDR notation that replicas may be in."
    )
    webhook_networks: list[str] = Field(
        default_factory=list,
        description="Private networks in CIDR notation that webhooks may go to, there also without TLS; public"
        " addresses need no entry.",
    )
    webhook_timeout_s: float = Field(
        default=10.0, gt=0, le=30, description="Longest wait for a receiver's answer."
    )
    webhook_schedule_s: list[Annotated[float, Field(ge=0, le=7 * DAY_S)]] = Field(
        default=[0, 5, 300, 1800, 2 * HOUR_S, 5 * HOUR_S, 10 * HOUR_S, 14 * HOUR_S, 20 * HOUR_S, 24 * HOUR_S],
        min_length=1,
        max_length=30,
        description="Wait before each try of a delivery, seconds; then it is exhausted.",
    )
    webhook_tick_s: float = Field(
        default=5.0, gt=0, le=300, description="How often the tick looks for due deliveries."
    )
    webhook_in_flight: int = Field(default=32, ge=1, le=1000, description="Deliveries on their way at a time.")
    webhook_rotation_s: float = Field(
        default=DAY_S,
        ge=0,
        le=30 * DAY_S,
        description="A replaced webhook secret signs beside its successor for so long.",
    )
    max_body_bytes: int = Field(default=4 << 20, ge=1024, description="Largest request body.")
    max_upload_bytes: int = Field(
        default=16 << 20,
        ge=1024,
        description="Largest request body of `POST /analyses` and selection windows: 10,000 records have 10 MB.",
    )
    selection_below: float = Field(
        default=BELOW,
        ge=0,
        lt=1,
        description="A rail's wire bytes may be less than its selected ones by this fraction.",
    )
    selection_above: float = Field(
        default=ABOVE, ge=0, le=MAX_ABOVE, description="They may be more by this fraction: headers, retries."
    )
    probe_timeout_s: float = Field(default=30.0, gt=0, le=600, description="Deadline of one probe's requests.")
    warm_up_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Ranks are warmed up for at least so long, and each at least once, before a worker measures.",
    )
    slice_s: float = Field(default=60.0, gt=0, le=90, description="A job gives its worker back after this.")
    lease_s: float = Field(default=15.0, gt=1, le=300, description="A silent worker loses its job after this.")
    sweep_s: float = Field(default=5.0, gt=0, le=300, description="How often the tick looks for lost jobs.")
    requeue_after_s: float = Field(
        default=30.0, gt=0, le=3600, description="A queued job is sent again when no worker took it for so long."
    )
    auth_failures_per_minute: int = Field(
        default=20, ge=1, le=10_000, description="Wrong API keys from one address, a minute and API process."
    )
    retention_events_days: float = Field(
        default=90.0,
        gt=0,
        le=3650,
        description="A job's events are deleted so long after its end.",
    )
    retention_webhooks_days: float = Field(
        default=30.0, ge=2, le=3650, description="Events of webhooks are kept so long, with their deliveries."
    )
    retention_audit_days: float = Field(
        default=400.0, gt=0, le=3650, description="Audit entries are kept so long."
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address of the private metrics port.")
    metrics_port: int | None = Field(
        default=None, ge=1, le=65535, description="Serve /metrics here, too, without a key; unset: do not."
    )
    log_format: str = Field(
        default="json", pattern="^(json|text)$", description="One JSON object a line, or text."
    )
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Log level.")

    @property
    def hard_limit_s(self) -> float:
        """When a slice that does not end is killed: after its time, one probe's pace, its hang and the check
        whether the engine still answers, it would have ended by itself.
        """
        return max(120.0, self.slice_s + MAX_PACE_S + 2 * self.probe_timeout_s + 30.0)

    @property
    def visibility_timeout_s(self) -> float:
        """When Redis gives a message that nobody acknowledged to another worker; longer than any task runs."""
        return max(300.0, 2 * self.hard_limit_s)

    @field_validator("replica_networks", "webhook_networks")
    @classmethod
    def _readable_networks(cls, value: list[str]) -> list[str]:
        for text in value:
            ip_network(text)
        return value


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The process's settings, read once."""
    return Settings()


def describe() -> str:
    """All settings as a Markdown table, for docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "From the environment, or a `.env` file in the working directory; lists are JSON. Written by"
        " `faultsense settings`.",
        "",
        "| variable | default | meaning |",
        "| --- | --- | --- |",
    ]
    properties = Settings.model_json_schema()["properties"]
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = default.get_secret_value() if isinstance(default, SecretStr) else json.dumps(default)
        meaning = f"{field.description}{_limits(properties[name])}".replace("|", "\\|")
        lines.append(f"| `FAULTSENSE_{name.upper()}` | `{shown}` | {meaning} |")
    return "\n".join(lines) + "\n"


def _limits(schema: dict[str, Any]) -> str:
    signs = {
        "exclusiveMinimum": "> ",
        "minimum": ">= ",
        "exclusiveMaximum": "< ",
        "maximum": "<= ",
        "pattern": "",
    }
    rules = {**schema, **next((kind for kind in schema.get("anyOf", ()) if kind.get("type") != "null"), {})}
    limits = [f"{sign}{rules[name]}" for name, sign in signs.items() if name in rules]
    return f" (`{', '.join(limits)}`)" if limits else ""
