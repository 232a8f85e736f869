"""What the adaptive strategy is told before it measures anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from app.localization.adaptive.costs import Costs, Transport
from app.localization.adaptive.planner import Targets
from app.localization.errors import SettingsError

# Whole numbers of a document may be of any length, which no float holds.
LARGEST_NUMBER = 10**12


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Targets, and what is known of the replica; part of the settings event of a job log.

    Parameters
    ----------
    costs : Costs or None
        As they were measured before; None: not known, so the job measures them first.
    targets : Targets
        What must be found.
    transport : {"serial", "shared", "undiluted"} or None
        How a rank's sends share its link; None: not known, so the worse of serial and shared is certified.
    trusted : bool
        Whether the costs hold now, to within sigma: a single probe can then be compared with what it should take.
        Else only probes of the same job are compared.
    max_tokens : int or None
        The most sequences that the server takes a rank and step; None: no limit.
    fixed_size : bool
        Whether every probe is a clique of exactly k GPUs (`Settings.k`): for engines that form no other.

    Raises
    ------
    SettingsError
        A value out of range.
    """

    costs: Costs | None = None
    targets: Targets = field(default_factory=Targets)
    transport: Transport | None = None
    trusted: bool = False
    max_tokens: int | None = None
    fixed_size: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.trusted, bool):
            raise SettingsError("trusted", f"must be true or false, got {self.trusted!r}")
        if self.trusted and self.costs is None:
            raise SettingsError("costs", "only costs that are given can be trusted")
        if self.transport is not None and self.transport not in get_args(Transport):
            raise SettingsError("transport", f"must be one of {', '.join(get_args(Transport))}, or left out")
        if self.max_tokens is not None and (type(self.max_tokens) is not int or self.max_tokens < 1):
            raise SettingsError("max_tokens", f"must be at least 1, got {self.max_tokens!r}")
        for name in ("trusted", "fixed_size"):
            if type(getattr(self, name)) is not bool:
                raise SettingsError(name, f"must be true or false, got {getattr(self, name)!r}")

    @classmethod
    def from_dict(cls, document: object) -> Assumptions:
        """Read what `dataclasses.asdict` wrote.

        Raises
        ------
        SettingsError
            Unknown field, or a value out of range.
        """
        values = _fields("adaptive", cls, document)
        if values.get("costs") is not None:
            values["costs"] = Costs(**_numbers(_fields("costs", Costs, values["costs"])))
        if "targets" in values:
            values["targets"] = Targets(**_numbers(_fields("targets", Targets, values["targets"])))
        return cls(**values)


def _fields(name: str, kind: Any, document: object) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise SettingsError(name, "is not an object")
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(document) - known)
    if unknown:
        raise SettingsError(f"{name}.{unknown[0]}", "is not a setting of this version")
    return dict(document)


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    for name, value in values.items():
        if value is None and name == "delay_ms":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingsError(name, f"must be a number, got {value!r}")
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise SettingsError(name, f"must be at most {LARGEST_NUMBER}")
    return values
