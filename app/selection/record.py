"""The selection record, the target record that stands beside it, and files of them: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from app.selection.documents import Document, Name, load, validate
from app.selection.errors import RecordError, UnknownVersionError

SCHEMA_VERSION = 1
SELECTION = "rdma_selection_metrics"
TARGETS = "target_metrics"

Count = Annotated[int, Field(ge=0, lt=2**64)]


class DeviceSelection(Document):
    """What was selected on one rail: intent, not traffic."""

    dev_id: Annotated[int, Field(ge=0, lt=2**31)]
    available: bool
    selected_slices: Count
    selected_bytes: Count
    device_name: Name
    numa_node: Annotated[int, Field(ge=-1, lt=2**31)]


class Selection(Document):
    """Counters of one selector: cumulative in a snapshot, of a window in a record.

    ``single_path_allocations`` and ``multi_path_allocations`` may lag behind ``allocations`` while traffic runs;
    ``probe_allocations`` (scheduled exploration) are counted in one of them as well.
    """

    allocations: Count
    single_path_allocations: Count
    multi_path_allocations: Count
    probe_allocations: Count
    devices: list[DeviceSelection]

    @model_validator(mode="after")
    def _every_device_once(self) -> Self:
        seen: set[int] = set()
        for place, device in enumerate(self.devices):
            if device.dev_id in seen:
                raise _at_its_field(("devices", place, "dev_id"), f"dev_id {device.dev_id} stands twice")
            seen.add(device.dev_id)
        return self

    @property
    def selected_bytes(self) -> int:
        """Bytes over all rails."""
        return sum(device.selected_bytes for device in self.devices)


class _Workload(Document):
    backend: Name
    op_type: Name
    block_size: Count
    batch_size: Count
    num_threads: Count

    @property
    def workload(self) -> tuple[str, int, int, int]:
        """What a record and its target record have in common; ``op_type`` may differ between them."""
        return self.backend, self.block_size, self.batch_size, self.num_threads


class SelectionRecord(_Workload):
    """The selections of one measurement window."""

    schema_version: Literal[1]
    record_type: Literal["rdma_selection_metrics"]
    measurement_window: Literal["snapshot_delta"]
    selection: Selection


class TargetRecord(_Workload):
    """What one run transferred, by target; its ``*_gbps`` are decimal gigabytes per second."""

    schema_version: Literal[1]
    record_type: Literal["target_metrics"]
    aggregate_operations: Count
    aggregate_transferred_bytes: Count
    aggregate_throughput_gbps: float | None = None
    targets: list[dict[str, Any]] = Field(default_factory=list)


@dataclass(frozen=True)
class Pair:
    """A selection record, its line, and the target record beside it."""

    line: int
    record: SelectionRecord
    target: TargetRecord | None = None


@dataclass(frozen=True)
class Records:
    """A file of records: windows in the order of the file, and target records (line, record) without a window."""

    pairs: tuple[Pair, ...]
    alone: tuple[tuple[int, TargetRecord], ...] = ()


def read_records(text: str) -> Records:
    """Read a file of records; blank lines are skipped.

    A target record belongs to the first selection record of the same backend, block size, batch size and number
    of threads that has none yet, whichever of the two stands first.

    Raises
    ------
    RecordError
        Naming line and field; also when a record contradicts itself, and when there is no selection record.
    UnknownVersionError
        When a record has another ``schema_version``.
    """
    selections: list[tuple[int, SelectionRecord]] = []
    targets: list[tuple[int, TargetRecord]] = []
    for line, value in _values(text):
        if value.get("record_type") == TARGETS:
            targets.append((line, validate(TargetRecord, value, RecordError, line)))
        else:
            record = validate(SelectionRecord, value, RecordError, line)
            _check(record.selection, line)
            selections.append((line, record))
    if not selections:
        raise RecordError(f"there is no record of record_type {SELECTION!r}")
    return _paired(selections, targets)


def dump_record(record: SelectionRecord | TargetRecord) -> str:
    """One line of JSON, without the line's end; devices sorted by ``dev_id``."""
    document = record.model_dump()
    if isinstance(record, SelectionRecord):
        document["selection"]["devices"].sort(key=lambda device: device["dev_id"])
    return json.dumps(document, allow_nan=False)


def _values(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, row in enumerate(text.split("\n"), start=1):
        if not row.strip():
            continue
        value = load(row, RecordError, line)
        if not isinstance(value, dict):
            raise RecordError("must be one JSON object a line", line=line)
        version = value.get("schema_version")
        if type(version) is not int:
            raise RecordError("must be a whole number", line=line, field="schema_version")
        if version != SCHEMA_VERSION:
            raise UnknownVersionError(
                f"{version} is not known here; {SCHEMA_VERSION} is", line=line, field="schema_version"
            )
        if value.get("record_type") not in {SELECTION, TARGETS}:
            raise RecordError(f"must be {SELECTION!r} or {TARGETS!r}", line=line, field="record_type")
        yield line, value


def _at_its_field(path: tuple[str | int, ...], message: str) -> ValidationError:
    problem = PydanticCustomError("selection", "{message}", {"message": message})
    return ValidationError.from_exception_data("selection", [InitErrorDetails(type=problem, loc=path, input=None)])


def _check(selection: Selection, line: int) -> None:
    """Refuse what no selector can have counted.

    Not in the model: between two snapshots a counter may be reset, and two endpoints of a job may have one name.
    Slices without bytes may be, and single- and multi-path counts may lag.
    """
    of_paths = selection.single_path_allocations + selection.multi_path_allocations
    if of_paths > selection.allocations:
        message = (
            f"{selection.single_path_allocations} single-path and {selection.multi_path_allocations} multi-path"
            f" allocations are more than the {selection.allocations} there were"
        )
        raise RecordError(message, line=line, field="selection.allocations")
    if selection.probe_allocations > selection.allocations:
        message = f"{selection.probe_allocations} are more than the {selection.allocations} allocations there were"
        raise RecordError(message, line=line, field="selection.probe_allocations")
    names: dict[str, int] = {}
    for place, device in enumerate(selection.devices):
        field = f"selection.devices.{place}"
        if names.setdefault(device.device_name, device.dev_id) != device.dev_id:
            message = f"{device.device_name} is dev_id {names[device.device_name]} and dev_id {device.dev_id}"
            raise RecordError(message, line=line, field=f"{field}.device_name")
        if device.selected_bytes and not device.selected_slices:
            message = f"0 slices have {device.selected_bytes} bytes"
            raise RecordError(message, line=line, field=f"{field}.selected_slices")


def _paired(selections: list[tuple[int, SelectionRecord]], targets: list[tuple[int, TargetRecord]]) -> Records:
    waiting: dict[tuple[str, int, int, int], list[tuple[int, TargetRecord]]] = {}
    for line, target in targets:
        waiting.setdefault(target.workload, []).append((line, target))
    pairs = []
    for line, record in selections:
        beside = waiting.get(record.workload)
        pairs.append(Pair(line, record, beside.pop(0)[1] if beside else None))
    alone = sorted(((line, t) for left in waiting.values() for line, t in left), key=lambda one: one[0])
    return Records(tuple(pairs), tuple(alone))
