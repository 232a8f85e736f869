"""Which rails carried a job's probes: the measured phases of all its attempts in one answer, and as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Literal

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from app.jobs import repository, windows
from app.jobs.documents import LIVE
from app.jobs.models import Job, JobWindow
from app.selection.distribution import distribution
from app.selection.record import Selection, SelectionRecord, TargetRecord, dump_record

Paths = Literal["none", "single-path", "multi-path", "single-path and multi-path"]

OSCILLATION = (
    "whether the choice went to and fro between rails cannot be read from counters that only add up: the sums are"
    " the same in any order"
)


class SelectedRailOut(BaseModel):
    """What was selected on one rail."""

    dev_id: int = Field(description="Index of the probe endpoint.")
    name: str
    available: bool = Field(description="False: given up in the last phase, since nothing came through it.")
    selected_slices: int
    selected_bytes: int
    share: float = Field(description="Of the selected bytes, 0 to 1.")


class AllocationsOut(BaseModel):
    """Requests of senders, by how many rails each went over."""

    total: int
    single_path: int
    multi_path: int
    scheduled_exploration: int = Field(description="Also counted as single-path or multi-path.")
    paths: Paths


class SpreadOut(BaseModel):
    """How evenly the selected bytes are spread."""

    shape: Literal["none", "single", "even", "concentrated"]
    gini: float
    max_over_mean: float


class WindowOut(BaseModel):
    """One attempt's measured phase."""

    attempt: int
    recorded: bool
    failure: str | None = Field(description="Why it has no record.")


class RefusedQuestion(BaseModel):
    """What these counters cannot tell."""

    question: str
    reason: str


class SelectionOut(BaseModel):
    """Which rails carried a job's probes, how much, how the requests were spread, and that no warm-up is in it.

    A slice is a sequence of a probe; its bytes are tokens x hidden size x bytes a number. All of it is what was
    selected: no counter here proves traffic.
    """

    basis: Literal["selected, not wire"] = "selected, not wire"
    warm_up_excluded: Literal[True] = True
    complete: bool = Field(description="Whether every measured phase so far has its record.")
    rails: list[SelectedRailOut]
    allocations: AllocationsOut
    distribution: SpreadOut
    windows: list[WindowOut]
    single_rail: list[str] = Field(
        description="Suspects that are accused through one rail alone: a slow front end is not a slow GPU."
    )
    refused_questions: list[RefusedQuestion]


def selection(db: Session, job: Job) -> SelectionOut:
    """The answer for a job, running or ended."""
    stored = windows.of_job(db, job.id)
    phases = _windows(db, job, stored)
    selections = [SelectionRecord.model_validate(row.record).selection for row in stored if row.record is not None]
    rails = _rails(selections)
    spread = asdict(distribution({str(rail.dev_id): rail.selected_bytes for rail in rails}))
    for rail in rails:
        rail.share = round(spread["shares"][str(rail.dev_id)], 6)
    verdict = repository.verdicts(db, [job.id]).get(job.id)
    reasons = [] if verdict is None else verdict["reasons"]
    return SelectionOut(
        complete=all(phase.recorded for phase in phases),
        rails=rails,
        allocations=_allocations(selections),
        distribution=SpreadOut.model_validate(spread),
        windows=phases,
        single_rail=[reason["text"] for reason in reasons if reason["code"] == "single_rail"],
        refused_questions=[RefusedQuestion(question="oscillation", reason=OSCILLATION)],
    )


def records(db: Session, job: Job) -> Iterator[str]:
    """The records of a job, a line each: every measured phase's selections, and beside them what was answered."""
    for row in windows.of_job(db, job.id):
        if row.record is not None:
            yield dump_record(SelectionRecord.model_validate(row.record))
            yield dump_record(TargetRecord.model_validate(row.target))


def _windows(db: Session, job: Job, stored: Sequence[JobWindow]) -> list[WindowOut]:
    found = {
        row.attempt: WindowOut(attempt=row.attempt, recorded=row.record is not None, failure=row.failure)
        for row in stored
    }
    for attempt in windows.attempts(db, job.id):
        if attempt not in found and not (job.state in LIVE and attempt == job.attempt):
            why = "its worker ended before the measured phase did"
            found[attempt] = WindowOut(attempt=attempt, recorded=False, failure=why)
    return [found[attempt] for attempt in sorted(found)]


def _rails(selections: Sequence[Selection]) -> list[SelectedRailOut]:
    """Sums by rail; what a rail is called and whether it is available is the last phase's."""
    rails: dict[int, SelectedRailOut] = {}
    for selected in selections:
        for device in selected.devices:
            before = rails.get(device.dev_id)
            rails[device.dev_id] = SelectedRailOut(
                dev_id=device.dev_id,
                name=device.device_name,
                available=device.available,
                selected_slices=device.selected_slices + (before.selected_slices if before else 0),
                selected_bytes=device.selected_bytes + (before.selected_bytes if before else 0),
                share=0.0,
            )
    return [rails[dev_id] for dev_id in sorted(rails)]


def _allocations(selections: Sequence[Selection]) -> AllocationsOut:
    single = sum(s.single_path_allocations for s in selections)
    multi = sum(s.multi_path_allocations for s in selections)
    words = [word for word, count in (("single-path", single), ("multi-path", multi)) if count]
    return AllocationsOut.model_validate(
        {
            "total": sum(s.allocations for s in selections),
            "single_path": single,
            "multi_path": multi,
            "scheduled_exploration": sum(s.probe_allocations for s in selections),
            "paths": " and ".join(words) or "none",
        }
    )
