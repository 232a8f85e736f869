"""The ``analyze`` command: a verdict from measurements that somebody already has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.output import MAX_INPUT_BYTES, AsJson, Refused, problem, put_json, say

if TYPE_CHECKING:
    from app.analyses import Analysis, Suspect

#: Reasons with which a suspect without a slowdown does not work at all.
_DOWN = {"port_down", "link_down", "rank_refused"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("analyze")(analyze)


def analyze(
    file: Annotated[
        Path, typer.Argument(help="The measurements: a matrix, pairs, a list, counters, a job's log.")
    ],
    topology: Annotated[Path | None, typer.Option(help="Where the ranks sit: the JSON of the topology.")] = None,
    kind: Annotated[str | None, typer.Option(help="The format, instead of detecting it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Name the slow GPU, path or group in measurements made elsewhere, or say why nobody can be named."""
    from app.analyses import UnreadableInput
    from app.analyzing.service import analyze as analyse_text
    from app.analyzing.topology import parse_topology

    try:
        text = _read(file)
        answer = analyse_text(text, topology=parse_topology(_read(topology)) if topology else None, kind=kind)
    except UnreadableInput as error:
        if not as_json:
            raise Refused(str(error)) from None
        raise problem(error.code, str(error), *([(error.place, error.detail)] if error.place else [])) from None
    if as_json:
        put_json(answer.to_dict())
        return
    say(f"{answer.outcome} ({answer.format})")
    for suspect in answer.suspects:
        say("  " + _in_words(suspect, answer))
    for reason in answer.reasons:
        say(f"  {reason.code}: {reason.text}")


def _in_words(suspect: Suspect, answer: Analysis) -> str:
    """Who is slow and by how much; where that has no figure and nothing is down, the reasons say what is known."""
    if suspect.slowdown is not None:
        return f"{suspect.name}: {suspect.slowdown:.2f}x slower"
    down = any(reason.code in _DOWN for reason in answer.reasons)
    return f"{suspect.name}: failed" if down else suspect.name


def _read(file: Path) -> str:
    """The text of a file, at most as much as an analysis takes.

    Raises
    ------
    UnreadableInput
        When it is larger, no UTF-8, or cannot be opened.
    """
    from app.analyses import UnreadableInput

    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise UnreadableInput("unreadable_file", f"{error.strerror or error}", file.name) from None
    if len(data) > MAX_INPUT_BYTES:
        raise UnreadableInput("too_large", f"at most {MAX_INPUT_BYTES} bytes are analysed", file.name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableInput(
            "unknown_format", "the file is no UTF-8 text", f"{file.name}, byte {error.start}"
        ) from None
