"""What an analysis refuses, as one small tree."""

from __future__ import annotations


class UnreadableInput(ValueError):
    """The input is no measurement that can be judged without guessing.

    Parameters
    ----------
    code : str
        Stable code, snake case: ``unknown_format``, ``ragged_matrix``, ``bad_number``, ...
    detail : str
        What is wrong and what would be accepted.
    place : str
        Where: ``line 3, column 7``, a field such as ``values.rank 4``, or empty for the whole input.
    """

    def __init__(self, code: str, detail: str, place: str = "") -> None:
        super().__init__(f"{place}: {detail}" if place else detail)
        self.code = code
        self.detail = detail
        self.place = place


def at_line(number: int, column: int | None = None) -> str:
    """A place in a text; both count from 1."""
    return f"line {number}" if column is None else f"line {number}, column {column}"
