"""JSON texts from outside: no repeated keys, no NaN, no endless nesting; errors say where."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.selection.errors import InputError

MAX_NESTING = 16


def _visible(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be printable")
    return value


# Names end in messages, tables and logs.
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_visible)]


class Document(BaseModel):
    """Strict about types, lenient about keys that it does not know; an object of it never changes."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


Model = TypeVar("Model", bound=BaseModel)
Item = TypeVar("Item", bound=Hashable)


def load(text: str, error: type[InputError], line: int | None = None) -> Any:
    """Parse one JSON value.

    Raises
    ------
    InputError
        Of the given kind, with the line: the given one, or that of the text where the parser stopped.
    """
    try:
        value = json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except json.JSONDecodeError as wrong:
        raise error(f"not JSON: {wrong.msg} at column {wrong.colno}", line=line or wrong.lineno) from None
    except (ValueError, RecursionError) as wrong:
        raise error(f"not usable JSON: {wrong}", line=line) from None
    if _too_deep(value, MAX_NESTING):
        raise error(f"nested deeper than {MAX_NESTING}", line=line)
    return value


def validate(model: type[Model], value: Any, error: type[InputError], line: int | None = None) -> Model:
    """Make a model of a parsed value.

    Raises
    ------
    InputError
        Of the given kind, naming the first field at fault.
    """
    try:
        return model.model_validate(value)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise error(first["msg"].removeprefix("Value error, "), line=line, field=field) from None


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = repeated(name for name, _ in pairs)
    if twice is not None:
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return dict(pairs)


def repeated(items: Iterable[Item]) -> Item | None:
    """The first item that has stood before, or None."""
    seen: set[Item] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _too_deep(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_too_deep(item, levels - 1) for item in inner)
