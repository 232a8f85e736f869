"""What commands print, and how they refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from pydantic import ValidationError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def validation_message(error: ValidationError) -> str:
    """The fields at fault, as one line."""
    parts = (
        (".".join(map(str, e["loc"])) or "input", e["msg"].removeprefix("Value error, ")) for e in error.errors()
    )
    return "; ".join(f"{field}: {message}" for field, message in parts)


class Refused(Exception):
    """Input that a command does not take; the message says why and what it would take."""


def say(text: str) -> None:
    """Print a line for a person."""
    typer.echo(text)


def fail(text: str) -> None:
    """Print a line on standard error."""
    typer.echo(f"faultsense: {text}", err=True)


def put_json(document: Any) -> None:
    """Print a document as one line."""
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    sys.stdout.flush()


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn the typed errors of a library call into a refusal."""
    try:
        yield
    except kinds as error:
        raise Refused(str(error)) from None
