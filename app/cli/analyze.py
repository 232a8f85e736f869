"""The ``analyze`` command: a verdict from measurements that somebody already has."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import AsJson, Refused, put_json, say

if TYPE_CHECKING:
    from app.analyses import Analysis, Suspect

#: Bytes; a text of the most characters that an analysis takes, with some that need more than one byte.
_MAX_BYTES = 40 * 2**20


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
    from app.analyses import analyze as analyse_text

    try:
        text = _read(file)
        answer = _from_job_log(text, kind) or analyse_text(
            text, topology=_read(topology) if topology else None, kind=kind
        )
    except UnreadableInput as error:
        if not as_json:
            raise Refused(str(error)) from None
        sys.stderr.write(json.dumps(error.document()) + "\n")
        raise typer.Exit(2) from None
    if as_json:
        put_json(answer.to_dict())
        return
    say(f"{answer.outcome} ({answer.format})")
    for suspect in answer.suspects:
        say(f"  {suspect.name}: " + (f"{suspect.slowdown:.2f}x slower" if suspect.slowdown else "failed"))
    for reason in answer.reasons:
        say(f"  {reason.code}: {reason.text}")


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
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableInput("unreadable_file", f"{error.strerror or error}", file.name) from None
    if len(data) > _MAX_BYTES:
        raise UnreadableInput("too_large", f"at most {_MAX_BYTES} bytes are analysed", file.name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableInput("unknown_format", "the file is no UTF-8 text", f"byte {error.start}") from None


def _from_job_log(text: str, kind: str | None) -> Analysis | None:
    """The verdict of a replayed job log; None when the text is none."""
    from app.analyses import Analysis, Reason, UnreadableInput
    from app.localization.errors import LocalizationError
    from app.localization.replay import replay_lines

    first = text[:4096].partition("\n")[0]
    if kind != "job-log" and not (first.startswith("{") and '"settings"' in first and '"seq"' in first):
        return None
    try:
        replayed = replay_lines(text.splitlines())
    except (LocalizationError, RecursionError) as error:
        raise UnreadableInput("broken_log", str(error)) from None
    if replayed.verdict is None:
        at = (replayed.divergence or {}).get("seq")
        raise UnreadableInput(
            "broken_log", f"the log diverges from its own settings: {replayed.divergence}", f"event {at}"
        )
    verdict = replayed.verdict
    return Analysis(
        "job-log",
        verdict["outcome"],
        [_suspect(s) for s in verdict["suspects"]],
        [Reason(r["code"], r["text"]) for r in verdict["reasons"]],
    )


def _suspect(said: dict[str, Any]) -> Suspect:
    from app.analyses import Suspect

    return Suspect(
        said["kind"], said["members"], said["slowdown"], f"{said['kind']} {'-'.join(map(str, said['members']))}"
    )
