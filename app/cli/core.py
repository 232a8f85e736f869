"""The replay command, and the exported API document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import AsJson, put_json, read_settings, refusing, say, write_or_compare


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("replay")(replay)
    app.command("openapi")(openapi)


def replay(
    log: Annotated[Path, typer.Argument(help="A job's log, as GET /jobs/{id}/log gives it.")],
    as_json: AsJson = False,
) -> None:
    """Replay a job: check every probe it chose and reproduce the verdict. Exit status 1 when it diverges."""
    from app.localization.errors import LocalizationError
    from app.localization.replay import replay_lines

    with refusing(LocalizationError, OSError, UnicodeDecodeError, RecursionError):
        result = replay_lines(log.read_text(encoding="utf-8").splitlines())
    if as_json:
        put_json(result.to_dict())
    elif result.divergence is None and result.verdict is not None:
        say(f"identical: {result.verdict['summary']}")
    else:
        say(f"diverges: {json.dumps(result.divergence)}")
    raise typer.Exit(0 if result.identical else 1)


def openapi(
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare with --out; exit status 1 on a difference.")
    ] = False,
) -> None:
    """Export the API document."""
    from app.main import create_app

    read_settings()
    text = json.dumps(create_app().openapi(), indent=1, sort_keys=True) + "\n"
    write_or_compare(text, out, check=check, source="the app exports")
