"""``faultsense selection judge``: did the port counters carry what was selected?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from app.cli.output import MAX_INPUT_BYTES, AsJson, Refused, problem, put_json, say
from app.selection.tolerances import ABOVE, BELOW

if TYPE_CHECKING:
    from app.selection.acceptance import Judgement
    from app.selection.errors import InputError

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
    below: Annotated[
        float, typer.Option(help="A rail's wire bytes may be less than its selected ones by this fraction.")
    ] = BELOW,
    above: Annotated[float, typer.Option(help="They may be more by this fraction.")] = ABOVE,
    as_json: AsJson = False,
) -> None:
    """Judge selection records against port counters. Exit status 0 for every answer, 2 for unreadable input."""
    try:
        judgement = _judged(
            {"records": records, "rails": rails, "before": before, "after": after}, unit, below, above
        )
    except _Unreadable as error:
        raise problem("unreadable_selection", str(error), error.at) if as_json else error from None
    if as_json:
        put_json(judgement.to_dict())
    else:
        _say(judgement)


class _Unreadable(Refused):
    """Input that cannot be judged; ``at`` is its place and what is wrong there."""

    def __init__(self, text: str, place: str, message: str) -> None:
        super().__init__(text)
        self.at = (place, message)


def _judged(files: Mapping[str, Path], unit: str, below: float, above: float) -> Judgement:
    from app.selection.acceptance import judge as judge_rails
    from app.selection.counter_texts import read_counters
    from app.selection.counters import Movement, check_unit
    from app.selection.errors import InputError, RailFileError, TolerancesError, UnitError
    from app.selection.rails import read_rails
    from app.selection.record import read_records
    from app.selection.tolerances import Tolerances

    try:
        tolerances, stated = Tolerances(below=below, above=above), check_unit(unit)
        first, last = (_read(files[name], read_counters) for name in ("before", "after"))
        movement = Movement(first, last, stated)
        read = _read(files["records"], read_records), _read(files["rails"], read_rails)
        return judge_rails(*read, movement, tolerances)
    except RailFileError as error:
        raise _in_file(files["rails"], error) from None
    except UnitError as error:
        raise _in_file(files[error.field.partition(".")[0]], error) from None
    except TolerancesError as error:
        raise _Unreadable(f"--{error.field}: {error.message}", f"--{error.field}", error.message) from None
    except InputError as error:  # the unit: what is in the files has been found at them
        raise _Unreadable(str(error), f"--{error.field}", error.message) from None


def _read(path: Path, reader: Callable[[str], Read]) -> Read:
    """Read a file; what is wrong with it is said with its name."""
    from app.selection.errors import InputError

    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise _of_file(path, error.strerror or str(error)) from None
    if len(data) > MAX_INPUT_BYTES:
        raise _of_file(path, f"larger than {MAX_INPUT_BYTES} bytes")
    try:
        return reader(data.decode("utf-8-sig"))
    except InputError as error:
        raise _in_file(path, error) from None
    except UnicodeDecodeError as error:
        raise _of_file(path, f"is not UTF-8: {error.reason} at byte {error.start}") from None


def _of_file(path: Path, message: str) -> _Unreadable:
    return _Unreadable(f"{path}: {message}", str(path), message)


def _in_file(path: Path, error: InputError) -> _Unreadable:
    """What is wrong in a file: line and field where they are known."""
    place = [str(path), *([str(error.line)] if error.line else []), *([error.field] if error.field else [])]
    return _Unreadable(f"{path}: {error}", ":".join(place), error.message)


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
