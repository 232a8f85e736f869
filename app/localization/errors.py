"""What the core refuses, as one small tree."""

from __future__ import annotations


class LocalizationError(ValueError):
    """Base of everything the core raises on purpose."""


class SettingsError(LocalizationError):
    """A setting is out of range.

    Parameters
    ----------
    field : str
        The setting at fault, as named in the localize request.
    message : str
        What is wrong and what would be accepted.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    def __reduce__(self) -> tuple[type[SettingsError], tuple[str, str]]:
        """Errors come from other processes, too."""
        return type(self), (self.field, self.message)


class ShapeError(LocalizationError):
    """A probe shape that cannot be read."""


class EventError(LocalizationError):
    """An event that cannot be read, or that does not belong to the probe in flight."""
