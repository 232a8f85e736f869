"""JSON whose every value knows where it stands, so that what is wrong with it can be pointed at."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from app.topology.errors import ImportRefused

_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value.

    Parameters
    ----------
    value : dict of str to Node, list of Node, str, int, float, bool or None
        The value.
    text : str
        The whole text.
    at : int
        Where the value begins in it.
    """

    value: Any
    text: str
    at: int

    @property
    def place(self) -> tuple[int, int]:
        """Line and column, from 1."""
        return place(self.text, self.at)

    def refuse(self, message: str) -> ImportRefused:
        """An error about this value, for the caller to raise."""
        return ImportRefused(message, *self.place)

    def members(self, what: str) -> dict[str, Node]:
        """Members of an object; ``what`` says in words what it must be."""
        if not isinstance(self.value, dict):
            raise self.refuse(f"{what} must be an object")
        return self.value

    def elements(self, what: str) -> list[Node]:
        """Elements of an array."""
        if not isinstance(self.value, list):
            raise self.refuse(f"{what} must be an array")
        return self.value

    def string(self, what: str) -> str:
        """A string that is not empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.refuse(f"{what} must be a string that is not empty")
        return self.value

    def plain(self) -> Any:
        """The value without places, as `json.loads` gives it."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def find(self, path: tuple[str | int, ...]) -> Node:
        """The value at a path, or the last one on the way to it that is there."""
        node = self
        for step in path:
            inner = dict(enumerate(node.value)) if isinstance(node.value, list) else node.value
            if not isinstance(inner, dict) or step not in inner:
                break
            node = inner[step]
        return node


def parse(text: str) -> Node:
    """Read a JSON text.

    Raises
    ------
    ImportRefused
        Broken syntax, a number that is none, a key that stands twice in an object, or too deep a nesting.
    """
    try:
        json.loads(text, parse_constant=_no_number)
        node, _ = _value(text, 0)
    except json.JSONDecodeError as error:
        raise ImportRefused(f"not JSON: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise ImportRefused("not a topology: nested too deeply", 1, 1) from None
    except ValueError as error:
        if isinstance(error, ImportRefused):
            raise
        raise ImportRefused(f"not JSON: {error}", 1, 1) from None
    return node


def place(text: str, at: int) -> tuple[int, int]:
    """Line and column of a position, from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _value(text: str, at: int) -> tuple[Node, int]:
    """A value of a text that is known to be JSON, and where it ends."""
    at = _skip(text, at)
    if text[at] == "{":
        return _object(text, at)
    if text[at] == "[":
        return _array(text, at)
    value, end = _DECODER.raw_decode(text, at)
    return Node(value, text, at), end


def _object(text: str, start: int) -> tuple[Node, int]:
    found: dict[str, Node] = {}
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, end = _DECODER.raw_decode(text, at)
        if key in found:
            raise ImportRefused(f"{key!r} stands twice", *place(text, at))
        found[key], at = _value(text, _skip(text, end) + 1)
        at = _next(text, at)
    return Node(found, text, start), at + 1


def _array(text: str, start: int) -> tuple[Node, int]:
    found: list[Node] = []
    at = _skip(text, start + 1)
    while text[at] != "]":
        node, at = _value(text, at)
        found.append(node)
        at = _next(text, at)
    return Node(found, text, start), at + 1


def _next(text: str, at: int) -> int:
    """Position of the next element, or of the closing bracket."""
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()
