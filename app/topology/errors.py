"""What is wrong with a topology, and where.

TopologyError         a document that contradicts itself: which field
ImportRefused         a file that cannot be read as a topology: which line and column
"""

from __future__ import annotations


class TopologyError(ValueError):
    """A topology that contradicts itself.

    Parameters
    ----------
    path : tuple of str or int
        The field of the document, for example ``("gpus", 3, "device")``.
    message : str
        What is wrong with it.
    """

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


class ImportRefused(ValueError):
    """A file that cannot be read as a topology.

    Parameters
    ----------
    message : str
        What is wrong, and what would be right.
    line, column : int or None
        Where, both from 1; in CSV the column is the number of the cell. None where it is the whole file.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}, column {column}: {message}")
        self.message = message
        self.line = line
        self.column = column
        self.part: int | None = None
        """Number of the file, from 0; None where no file is at fault."""


class UnknownFormat(ImportRefused):
    """A file that fits none of the formats, or more than one; the message lists them."""
