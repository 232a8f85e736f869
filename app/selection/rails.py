"""Rail files: which local device may reach which remote one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from app.selection.documents import Document, Name, load, validate
from app.selection.errors import RailFileError

_NAMES_SHOWN = 16


class _Rail(Document):
    local: Name
    remote: Name


_Listed = Annotated[list[_Rail], Field(min_length=1, max_length=1024)]


class _RailFile(Document):
    all: _Listed | None = None
    direct: _Listed | None = None


@dataclass(frozen=True)
class Rail:
    """An eligible local device and the remote devices that its bytes may arrive at, most often one.

    ``places`` says where in the file it is paired with each of them, for example ``direct.3``.
    """

    local: str
    remotes: tuple[str, ...]
    places: tuple[str, ...] = field(default=(), compare=False)

    def place(self, index: int, end: Literal["local", "remote"]) -> str:
        """The field of the file that names an end of a pair; empty where that is not known."""
        return f"{self.places[index]}.{end}" if self.places else ""


def read_rails(text: str) -> tuple[Rail, ...]:
    """Read ``{"all": [{"local", "remote"}, ...], "direct": [...]}``, in the order of the file.

    Eligible are the local devices of ``all`` and ``direct``. Bytes of a device arrive at its ``direct`` remote; a
    device without one may reach every remote that ``all`` gives it.

    Raises
    ------
    RailFileError
        For an empty file, an empty or missing list, a pair or a direct device that stands twice, or a ``direct``
        pair that ``all`` does not have. (Upstream falls back to a mapping of its own without a word.)
    """
    if not text.strip():
        raise RailFileError('is empty; {"all": [{"local", "remote"}, ...], "direct": [...]} is wanted')
    value = load(text, RailFileError)
    if not isinstance(value, dict):
        raise RailFileError("must be a JSON object")
    read = validate(_RailFile, value, RailFileError)
    if read.all is None and read.direct is None:
        raise RailFileError("has neither `all` nor `direct`: no rail is eligible")
    pairs = _pairs("all", read.all or [])
    direct = _pairs("direct", read.direct or [])
    nearest = dict(direct.keys())
    for place, (local, remote) in enumerate(direct):
        if pairs and (local, remote) not in pairs:
            raise RailFileError(f"{local} - {remote} is not among `all`", field=f"direct.{place}")
        if nearest[local] != remote:
            raise RailFileError(f"{local} has two direct remotes", field=f"direct.{place}")
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, listed_ in (("all", pairs), ("direct", direct)):
        for place, (local, remote) in enumerate(listed_):
            found[local][remote] = f"{name}.{place}"
    for local, remote in direct:
        found[local] = {remote: found[local][remote]}
    return tuple(Rail(local, tuple(some), tuple(some.values())) for local, some in found.items())


def check_names(rails: Collection[Rail], locals_: Collection[str], remotes: Collection[str]) -> None:
    """Refuse names that nothing else knows.

    Parameters
    ----------
    rails : collection of Rail
        The rail file.
    locals_ : collection of str
        Devices of the records.
    remotes : collection of str
        Devices of the target's counters; when there is none, remote names cannot be checked.

    Raises
    ------
    RailFileError
        Naming the unknown device and those that are known.
    """
    for rail in rails:
        if rail.local not in locals_:
            message = f"unknown local device {rail.local}; the records have {listed(locals_)}"
            raise RailFileError(message, field=rail.place(0, "local"))
        for index, remote in enumerate(rail.remotes):
            if remotes and remote not in remotes:
                message = f"unknown remote device {remote}; the target's counters have {listed(remotes)}"
                raise RailFileError(message, field=rail.place(index, "remote"))


def listed(names: Collection[str], between: str = ", ") -> str:
    """Names in order for a message: 16 of them, and how many more there are."""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return between.join(sorted(names)[:_NAMES_SHOWN]) + more or "none"


def _pairs(name: str, listed: list[_Rail]) -> dict[tuple[str, str], None]:
    pairs: dict[tuple[str, str], None] = {}
    for place, rail in enumerate(listed):
        if (rail.local, rail.remote) in pairs:
            raise RailFileError(f"{rail.local} - {rail.remote} stands twice", field=f"{name}.{place}")
        pairs[rail.local, rail.remote] = None
    return pairs
