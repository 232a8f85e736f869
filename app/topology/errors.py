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
