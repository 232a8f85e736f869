"""What the selection core refuses, as one small tree."""

from __future__ import annotations

MAX_SHOWN = 300
"""Characters of a message, and of a field: both may quote what came from outside."""


class SelectionError(ValueError):
    """Base of everything that selection observability raises on purpose."""


class InputError(SelectionError):
    """An input that cannot be read; nothing of it is used.

    Its texts are fit for an answer and for a terminal, whatever they quote: characters that cannot be printed are
    escaped, and what is long is cut.

    Parameters
    ----------
    message : str
        What is wrong and what would be accepted.
    line : int, optional
        Line of the text, from 1.
    field : str
        Path of the field at fault, for example ``selection.devices.0.selected_bytes``; empty for the whole.
    """

    what = "input"

    def __init__(self, message: str, *, line: int | None = None, field: str = "") -> None:
        message, field = _shown(message), _shown(field)
        place = [self.what, *([f"line {line}"] if line else []), *([field] if field else [])]
        super().__init__(f"{', '.join(place)}: {message}")
        self.message = message
        self.line = line
        self.field = field


class RecordError(InputError):
    """A selection record, or a target record beside it."""

    what = "records"


class UnknownVersionError(RecordError):
    """A record of a schema version that is not known here."""


class RailFileError(InputError):
    """A rail file."""

    what = "rails"


class CountersError(InputError):
    """A snapshot of port counters."""

    what = "counters"


class UnitError(CountersError):
    """Snapshots of another unit than was stated."""


class TolerancesError(InputError):
    """Tolerances that cannot be."""

    what = "tolerances"


class SelectorError(SelectionError):
    """A rail selector was asked for what it cannot do; nothing was counted."""


class NoRailError(SelectorError):
    """No rail that may carry the request is available; nothing was counted."""


class BarrierError(SelectionError):
    """A measurement barrier was used other than once a worker."""


class WindowError(SelectionError):
    """A measurement window that has no record: it failed, was cut, or its counters were reset."""


def _shown(text: str) -> str:
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 3]}..."
