"""The one error of this package."""

from __future__ import annotations


class ProbeModelError(ValueError):
    """A probe model cannot be built, read, verified or served as asked.

    Parameters
    ----------
    field : str
        The argument, file or manifest field at fault.
    problem : str
        What is wrong with it and what to do.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
