"""``faultsense selection judge``: did the port counters carry what was selected?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from app.cli.output import AsJson, Refused, problem, put_json, say

if TYPE_CHECKING:
    from app.selection.acceptance import Judgement

selection = typer.Typer(help="Judge which rails carried the traffic.", no_args_is_help=True)

Read = TypeVar("Read")


@selection.callback()
def _group() -> None:
    """Judge which rails carried the traffic."""


@selection.command("judge")
def judge(
    records: Annotated[Path, typer.Option(help="Selection records, one JSON object a line; target records too.")],
    rails: Annotated[Path, typer.Option(help='Rail file: {"all": [{"local", "remote"}, ...], "direct": [...]}.')],
    before: Annotated[Path, typer.Option(help="Port counters of source and target before the run.")],
    after: Annotated[Path, typer.Option(help="Port counters of source and target after it.")],
    unit: Annotated[str, typer.Option(help="What a count is: words4 (sysfs port_xmit_data) or bytes.")],
    as_json: AsJson = False,
) -> None:
    """Judge selection records against port counters. Exit status 0 for every answer, 2 for unreadable input."""
    from app.selection.acceptance import judge as judge_rails
    from app.selection.counter_texts import read_counters
    from app.selection.counters import Movement, check_unit
    from app.selection.errors import InputError
    from app.selection.rails import read_rails
    from app.selection.record import read_records

    try:
        movement = Movement(_read(before, read_counters), _read(after, read_counters), check_unit(unit))
        judgement = judge_rails(_read(records, read_records), _read(rails, read_rails), movement)
    except (Refused, InputError) as error:
        raise problem("unreadable_selection", str(error)) if as_json else Refused(str(error)) from None
    if as_json:
        put_json(judgement.to_dict())
    else:
        _say(judgement)


def _read(path: Path, reader: Callable[[str], Read]) -> Read:
    """Read a file; what is wrong with it is said with its name."""
    from app.selection.errors import InputError

    try:
        return reader(path.read_text(encoding="utf-8-sig"))
    except InputError as error:
        raise Refused(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None


def _say(judgement: Judgement) -> None:
    say(f"{judgement.result}: {_SUMMARIES[judgement.result]}")
    for rail in judgement.rails:
        say(f"  {rail.result:<12} {rail.local} -> {rail.remote or '?'}: {rail.reason}")
    for port in judgement.other_ports:
        if port.result != "pass":
            say(f"  {port.result:<12} {port.side} {port.device}: {port.reason}")
    for reason in judgement.reasons:
        say(f"  {reason.code}: {reason.text}")
    spread = judgement.distribution
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in spread.shares.items())
    measures = f"max/mean {spread.max_over_mean:.2f}, Gini {spread.gini:.2f}"
    say(f"selected, not wire: {spread.shape} ({shares}; {measures})")


_SUMMARIES = {
    "pass": "every eligible rail carried what was selected for it, and nothing else moved",
    "fail": "bytes were not where they were selected",
    "inconclusive": "records and counters do not settle it",
}
