"""Checks of texts that people choose: they end in logs, pages and chats."""

from __future__ import annotations


def printable(value: str) -> str:
    """A text without control characters.

    Raises
    ------
    ValueError
        When it has some.
    """
    if not value.isprintable():
        raise ValueError("must be printable")
    return value


def plain_name(value: str) -> str:
    """A printable text that begins and ends with something to see.

    Raises
    ------
    ValueError
        When it does not.
    """
    if value != value.strip() or not value.isprintable():
        raise ValueError("must be printable, without spaces at its ends")
    return value
