"""Rules of selection windows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from app.kit.problems import Problem, invalid, not_found
from app.selection.acceptance import Judgement, judge
from app.selection.counter_texts import read_counters
from app.selection.counters import Movement
from app.selection.errors import InputError, RailFileError, UnitError
from app.selection.rails import read_rails
from app.selection.record import read_records
from app.selection.tolerances import Tolerances
from app.selection_windows import repository
from app.selection_windows.models import SelectionWindow
from app.selection_windows.schemas import SelectionWindowIn, Texts
from app.settings import get_settings

Read = TypeVar("Read")


def create(
    db: Session, replica_id: uuid.UUID, topology_version: int | None, wanted: SelectionWindowIn
) -> SelectionWindow:
    """Judge an upload and store both.

    Raises
    ------
    Problem
        422 naming the part of the request and the place in it; nothing is stored then.
    """
    records = _read("records", wanted.records, read_records)
    rails = _read("rails", wanted.rails, read_rails)
    before, after = (_read(name, getattr(wanted, name), read_counters) for name in ("before", "after"))
    settings = get_settings()
    tolerances = Tolerances(below=settings.selection_below, above=settings.selection_above)
    try:
        judgement = judge(records, rails, Movement(before, after, wanted.unit), tolerances)
    except RailFileError as error:
        raise _refused("rails", wanted.rails, error.field, error) from None
    except UnitError as error:
        name, _, field = error.field.partition(".")
        raise _refused(name, getattr(wanted, name), field, error) from None
    window = SelectionWindow(
        replica_id=replica_id,
        topology_version=topology_version,
        records=len(records.pairs),
        upload=json.dumps(wanted.model_dump()),
        judgement=_stored(judgement),
    )
    db.add(window)
    db.flush()
    return window


def get(db: Session, replica_id: uuid.UUID, window_id: uuid.UUID) -> SelectionWindow:
    """A window.

    Raises
    ------
    Problem
        404.
    """
    window = repository.get(db, replica_id, window_id)
    if window is None:
        raise not_found("selection window", window_id)
    return window


def _read(name: str, given: Texts, reader: Callable[[str], Read]) -> Read:
    try:
        return reader(given if isinstance(given, str) else json.dumps(given))
    except InputError as error:
        raise _refused(name, given, error.field, error) from None


def _stored(judgement: Judgement) -> dict[str, Any]:
    """The judgement's document; rails with their remotes one by one, to find what sits at them."""
    document = judgement.to_dict()
    for shown, rail in zip(document["rails"], judgement.rails, strict=True):
        shown["remotes"] = list(rail.remotes)
    return document


def _refused(name: str, given: Texts, field: str, error: InputError) -> Problem:
    """A part of the request that is refused: in a text by line and field, in an object by its path."""
    inside = [*([str(error.line)] if error.line else []), *([field] if field else [])]
    between = ":" if isinstance(given, str) or error.line else "."
    return invalid(between.join([f"body.{name}", *inside]), error.message)
