"""Topologies from what other tools write.

    document         the topology document itself (JSON)
    nvidia-smi       `nvidia-smi topo -m`
    mooncake         Mooncake native topology (JSON with nics and mems)
    mooncake-matrix  Mooncake NIC priority matrix (JSON)
    csv              a table, one GPU a line
    tent-rails       TENT rail file (JSON): laid onto a topology, see `rails`

Parsers are pure: text in, a draft out, or an `ImportRefused` with line and column. What a file does not say is
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from pydantic import ValidationError

from app.localization.placement import Placement
from app.topology import documents
from app.topology.errors import ImportRefused, UnknownFormat
from app.topology.importers import csv_table, json_text, mooncake, nvidia_smi
from app.topology.importers.draft import Draft
from app.topology.schemas import TopologyIn, TopologyOut

Format = Literal["document", "nvidia-smi", "mooncake", "mooncake-matrix", "csv", "tent-rails"]

FORMATS: tuple[Format, ...] = get_args(Format)
_OF_ONE_HOST = {
    "nvidia-smi": nvidia_smi.parse,
    "mooncake": mooncake.parse_native,
    "mooncake-matrix": mooncake.parse_matrix,
}
ASSUMED_HOST = "host-a"
# What the service adds to a document.
_OF_A_VERSION = frozenset(TopologyOut.model_fields) - frozenset(TopologyIn.model_fields)


@dataclass(frozen=True, slots=True)
class Imported:
    """A topology that was read, and what to know about it."""

    placement: Placement
    notes: tuple[str, ...]


def detect(text: str) -> Format:
    """Which format a text has.

    Raises
    ------
    UnknownFormat
        None of them, or more than one.
    ImportRefused
        Nothing in it, or broken JSON.
    """
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise ImportRefused("the file is empty", 1, 1)
    found = _json_formats(text) if text.lstrip()[0] in "{[" else _text_formats(text)
    if len(found) != 1:
        words = "fits none of the formats" if not found else f"could be {' or '.join(found)}"
        raise UnknownFormat(f"the file {words}; name one: {', '.join(FORMATS)}", 1, 1)
    return found[0]


def read(texts: Sequence[str], form: Format | None = None, hosts: Sequence[str] = ()) -> Imported:
    """A topology from one file, or from one file a host.

    Parameters
    ----------
    texts : sequence of str
        Contents of the files. Ranks are numbered through them in order.
    form : str, optional
        One of `FORMATS`; default: whatever each text is.
    hosts : sequence of str
        Name of the host that each file describes; a single file may do without.

    Raises
    ------
    ImportRefused
        A file that cannot be read, or a whole that cannot be.
    """
    if hosts and len(hosts) != len(texts):
        raise ImportRefused(f"{len(texts)} files need {len(texts)} host names, not {len(hosts)}")
    drafts = []
    for part, text in enumerate(texts):
        try:
            host = hosts[part] if hosts else None
            drafts.append(_draft(text, form or detect(text), host, alone=len(texts) == 1))
        except ImportRefused as refused:
            refused.part = part
            raise
    whole = drafts[0] if len(drafts) == 1 else _joined(drafts)
    parts = [part for part, draft in enumerate(drafts) for _ in draft.gpus]
    return Imported(_checked(whole, parts), tuple(whole.notes))


def _draft(text: str, form: Format, host: str | None, *, alone: bool) -> Draft:
    text = text.removeprefix("\ufeff")
    if form == "tent-rails":
        raise ImportRefused("a rail file names NICs, no GPUs: lay it onto a topology that states the NICs")
    if form in _OF_ONE_HOST:
        if host is not None:
            return _OF_ONE_HOST[form](text, host)
        if not alone:
            raise ImportRefused("such files do not name their host: name one for each")
        draft = _OF_ONE_HOST[form](text, ASSUMED_HOST)
        return replace(draft, notes=[*draft.notes, f"the file does not name its host: {ASSUMED_HOST} is assumed"])
    if not alone:
        raise ImportRefused(f"a {form} file numbers its own ranks: import it alone")
    return csv_table.parse(text, host) if form == "csv" else _document(text, host)


def _document(text: str, host: str | None) -> Draft:
    """The topology document, or a version as the service answers it; checked here: errors point into the text."""
    root = json_text.parse(text)
    members = root.members("a topology document")
    if host is not None:
        raise ImportRefused("a topology document names its hosts; leave the host out")
    stated = {name: node.plain() for name, node in members.items() if name not in _OF_A_VERSION}
    try:
        document = TopologyIn.model_validate(stated)
    except ValidationError as error:
        first = error.errors()[0]
        raise root.find(first["loc"]).refuse(_words(error)) from None
    gpus = [gpu.model_dump(exclude_none=True) for gpu in document.gpus]
    return Draft(gpus, [root.find(("gpus", index)).place for index in range(len(gpus))], document.parents)


def _joined(drafts: Sequence[Draft]) -> Draft:
    """Hosts one after the other; where a GPU stands is said of its own file."""
    gpus = [gpu for draft in drafts for gpu in draft.gpus]
    return Draft(
        [{**gpu, "rank": rank} for rank, gpu in enumerate(gpus)],
        [where for draft in drafts for where in draft.where],
        notes=[note for draft in drafts for note in draft.notes],
    )


def _checked(draft: Draft, parts: Sequence[int]) -> Placement:
    """The whole as a placement; ``parts`` has the number of each GPU's file."""
    document = {"gpus": [dict(gpu) for gpu in draft.gpus], "parents": dict(draft.parents)}
    try:
        TopologyIn.model_validate(document)
    except ValidationError as error:
        path = error.errors()[0]["loc"]
        refused = ImportRefused(_words(error), *draft.place(path))
        of_gpu = path[1] if len(path) > 1 and path[0] == "gpus" else -1
        refused.part = parts[of_gpu] if parts and isinstance(of_gpu, int) else 0
        raise refused from None
    return documents.placement(document)


def _words(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg'].removeprefix('Value error, ')}" if field else first["msg"]


def _json_formats(text: str) -> list[Format]:
    members = json_text.parse(text).value
    if not isinstance(members, dict):
        return []
    marks: dict[Format, bool] = {
        "document": "gpus" in members,
        "mooncake": "nics" in members or "mems" in members,
        "mooncake-matrix": mooncake.is_matrix(members),
        "tent-rails": "all" in members or "direct" in members,
    }
    return [form for form, fits in marks.items() if fits]


def _text_formats(text: str) -> list[Format]:
    marks: dict[Format, bool] = {"nvidia-smi": nvidia_smi.has_table(text), "csv": csv_table.has_header(text)}
    return [form for form, fits in marks.items() if fits]
