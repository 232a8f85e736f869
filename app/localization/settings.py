"""Everything a session depends on besides the answers it gets: one immutable, serialisable snapshot."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from app.localization.adaptive.assumptions import Assumptions
from app.localization.cover import MAX_GPUS, MAX_PROBE_SIZE
from app.localization.errors import SettingsError

Aggregate = Literal["median", "min"]
BaselineMethod = Literal["median", "low_decile"]
Signal = Literal["tbt", "ttft"]

SHARED_KINDS = ("nic", "rail", "leaf")
TIER = re.compile(r"tier_\d{1,3}")
# Up to this share of slow probes in a sweep the median is still a healthy one, with some margin (DESIGN 5).
MEDIAN_SAFE_SHARE = 0.4
# Faults a sweep should survive: with three slow GPUs in different probes, 3 k / n of the probes are slow.
FAULTS_TO_SURVIVE = 3


def default_probe_size(gpus: int) -> int:
    """``min(8, floor(n/2))`` and at least 2: with k <= n/2 there are probes to compare."""
    return max(2, min(8, gpus // 2))


def default_baseline(gpus: int, k: int) -> BaselineMethod:
    """``median`` (the paper's) unless a few slow GPUs could make up too many probes; then ``low_decile``."""
    return "median" if FAULTS_TO_SURVIVE * k <= MEDIAN_SAFE_SHARE * gpus else "low_decile"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings event of a job log.

    Parameters
    ----------
    gpus : int
        n, 2..1024.
    strategy : str
        ``adaptive``, ``faultsense`` (the paper's two phases) or ``pairwise``.
    k : int
        Probe size, 2..min(16, n).
    alpha : float
        A probe is suspicious when T > alpha x baseline; above 1, at most 100.
    repeats : int
        Measurements a probe, 1..15.
    aggregate : {"median", "min"}
        How the repeats of a probe become one value.
    baseline : {"median", "low_decile"}
        How the values of a sweep become the healthy reference.
    signal : {"tbt", "ttft"}
        Which latency is judged.
    prompt_tokens, decode_tokens : int
        Tokens a destination, in prefill and in decode.
    seed : int
        For strategies that randomise.
    hosts : tuple of int or None
        Host index of each rank, when the topology is known: gives the hop class of a probe.
    shared : mapping of str to tuple of int
        By kind (``nic``, ``rail``, ``leaf``, and ``tier_2``, ``tier_3``, ... for switches above the leaves) the
        part that each rank is at, -1 where it is not stated; kinds that no two GPUs share are left out.
    paths_selectable : bool
        False where the all-to-all backend sends everything to everyone: then paths are never named.
    any_size : bool
        Whether probes smaller than k can be formed (one token a GPU); if not, strategy ``adaptive`` covers
        everything by probes of k.
    history_ms : float or None
        Baseline of an earlier healthy job under the same settings; decides ``uniform_slowdown`` only.
    topology_version : int or None
        The topology version the job runs under.
    engine : str or None
        The engine's version, as it reported itself.
    adaptive : Assumptions or None
        What strategy ``adaptive`` is told; None: the defaults.
    """

    gpus: int
    strategy: str = "faultsense"
    k: int = 8
    alpha: float = 1.3
    repeats: int = 3
    aggregate: Aggregate = "median"
    baseline: BaselineMethod = "median"
    signal: Signal = "tbt"
    prompt_tokens: int = 16
    decode_tokens: int = 16
    seed: int = 0
    hosts: tuple[int, ...] | None = None
    shared: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    paths_selectable: bool = True
    any_size: bool = True
    history_ms: float | None = None
    topology_version: int | None = None
    engine: str | None = None
    adaptive: Assumptions | None = None

    @property
    def tiers(self) -> dict[str, tuple[int, ...]]:
        """By kind the switch of every tier that each rank is under, leaves first."""
        kinds = [kind for kind in self.shared if kind == "leaf" or TIER.fullmatch(kind)]
        return {kind: self.shared[kind] for kind in sorted(kinds, key=lambda kind: (len(kind), kind))}

    def __post_init__(self) -> None:
        _whole("gpus", self.gpus, 2, MAX_GPUS)
        _whole("k", self.k, 2, min(MAX_PROBE_SIZE, self.gpus))
        _whole("repeats", self.repeats, 1, 15)
        _whole("prompt_tokens", self.prompt_tokens, 1, 100_000)
        _whole("decode_tokens", self.decode_tokens, 1, 10_000)
        _whole("seed", self.seed, 0, 2**63 - 1)
        if not (_is_number(self.alpha) and 1 < self.alpha <= 100):
            raise SettingsError("alpha", "must be above 1 and at most 100")
        _choice("aggregate", self.aggregate, get_args(Aggregate))
        _choice("baseline", self.baseline, get_args(BaselineMethod))
        _choice("signal", self.signal, get_args(Signal))
        if self.signal == "tbt" and self.decode_tokens < 2:
            raise SettingsError("decode_tokens", "TBT needs at least 2 decode tokens")
        if self.hosts is not None and len(self.hosts) != self.gpus:
            raise SettingsError("hosts", f"{len(self.hosts)} hosts given for {self.gpus} GPUs")
        _check_shared(self.shared, self.gpus)
        if self.history_ms is not None and not (_is_number(self.history_ms) and self.history_ms > 0):
            raise SettingsError("history_ms", "must be a positive number of milliseconds")

    @property
    def tokens(self) -> int:
        """Tokens that one send carries over a whole probe."""
        return self.prompt_tokens + self.decode_tokens

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; the inverse of `from_dict`."""
        document = dataclasses.asdict(self)
        document["hosts"] = None if self.hosts is None else list(self.hosts)
        document["shared"] = {kind: list(parts) for kind, parts in self.shared.items()}
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Settings:
        """Read a settings document.

        Raises
        ------
        SettingsError
            Unknown, missing or out-of-range field; `SettingsError.field` names it.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(document) - known)
        if unknown:
            raise SettingsError(unknown[0], "is not a setting of this version")
        if "gpus" not in document:
            raise SettingsError("gpus", "is missing")
        values = dict(document)
        if values.get("hosts") is not None:
            values["hosts"] = _indices("hosts", values["hosts"])
        if values.get("shared") is not None:
            if not isinstance(values["shared"], Mapping):
                raise SettingsError("shared", "is not an object")
            values["shared"] = {kind: _indices(f"shared.{kind}", some) for kind, some in values["shared"].items()}
        if values.get("adaptive") is not None:
            values["adaptive"] = Assumptions.from_dict(values["adaptive"])
        return cls(**values)


def _check_shared(shared: Mapping[str, tuple[int, ...]], gpus: int) -> None:
    for kind, parts in shared.items():
        if not TIER.fullmatch(kind):
            _choice("shared", kind, SHARED_KINDS)
        if len(parts) != gpus:
            raise SettingsError(f"shared.{kind}", f"{len(parts)} given for {gpus} GPUs")


def _indices(field: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
        raise SettingsError(field, "must be a list of whole numbers, one a rank")
    return tuple(cast("list[int]", value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(field: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise SettingsError(field, f"must be a whole number from {low} to {high}, got {value!r}")


def _choice(field: str, value: object, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise SettingsError(field, f"must be one of {', '.join(accepted)}, got {value!r}")
