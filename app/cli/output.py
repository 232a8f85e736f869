"""What commands print, and how they refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

if TYPE_CHECKING:
    from app.settings import Settings

#: Bytes of a file of measurements: the most characters that an analysis takes, some of more than one byte.
MAX_INPUT_BYTES = 40 * 2**20

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


def read_settings() -> Settings:
    """The settings of the service.

    Raises
    ------
    Refused
        Naming the environment variable that cannot be used; values are never shown.
    """
    from pydantic_settings import SettingsError

    from app.settings import get_settings

    try:
        return get_settings()
    except ValidationError as error:
        raise Refused(f"FAULTSENSE_ settings: {validation_message(error)}") from None
    except SettingsError as error:
        raise Refused(f"FAULTSENSE_ settings: {error}") from None


def fail(text: str) -> None:
    """Print a line on standard error."""
    typer.echo(f"faultsense: {text}", err=True)


def problem(code: str, detail: str, *fields: tuple[str, str]) -> typer.Exit:
    """Print a problem document on standard error; what is returned ends the command with status 2.

    Parameters
    ----------
    fields : tuple of (str, str)
        The places at fault, and what is wrong with them.
    """
    from app.kit.problems import FieldError, Problem

    errors = [FieldError(field=field, message=message) for field, message in fields]
    typer.echo(json.dumps(Problem(422, code, detail, errors=errors).document()), err=True)
    return typer.Exit(2)


def put_json(document: Any) -> None:
    """Print a document as one line."""
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    sys.stdout.flush()


def write_or_compare(text: str, out: Path | None, *, check: bool, source: str) -> None:
    """Print a document that is checked in, write it, or only compare it.

    Parameters
    ----------
    source : str
        What it is made from, for the message when the file is another.

    Raises
    ------
    Refused
        When there is nothing to compare with, or the file cannot be used.
    typer.Exit
        With status 1 on a difference.
    """
    if check and out is None:
        raise Refused("--check needs --out, the file to compare with")
    with refusing(OSError):
        if out is None:
            typer.echo(text, nl=False)
        elif not check:
            out.write_text(text, encoding="utf-8")
        elif not out.exists() or out.read_bytes() != text.encode():
            fail(f"{out} is not what {source}; run `make openapi` and commit the result")
            raise typer.Exit(1)


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn the typed errors of a library call into a refusal."""
    try:
        yield
    except kinds as error:
        raise Refused(str(error)) from None


@contextmanager
def refusing_database() -> Iterator[None]:
    """Turn a database that cannot be used into a refusal of one line."""
    from sqlalchemy.exc import ArgumentError, OperationalError, ProgrammingError

    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        raise Refused(f"the database cannot be used: {' '.join(str(error.orig).split())}") from None
    except (ArgumentError, ModuleNotFoundError):
        raise Refused("FAULTSENSE_DATABASE_URL must begin with postgresql+psycopg://") from None
