"""The topology commands: read what other tools write, compare, and draw."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from app.cli.layout import read_topology_file
from app.cli.output import AsJson, Refused, fail, problem, put_json, say

if TYPE_CHECKING:
    from app.localization.placement import Placement
    from app.topology.errors import ImportRefused

T = TypeVar("T")
UNREADABLE = "unreadable_topology"

app = typer.Typer(no_args_is_help=True, help="Topologies: import, compare and export them.")


class ImportFormat(StrEnum):
    """Formats that can be read."""

    auto = "auto"
    document = "document"
    nvidia_smi = "nvidia-smi"
    mooncake = "mooncake"
    mooncake_matrix = "mooncake-matrix"
    csv = "csv"
    tent_rails = "tent-rails"


class ExportFormat(StrEnum):
    """Formats that can be written."""

    json = "json"
    node_link = "node-link"
    dot = "dot"


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="One file, or one a host in rank order.")],
    form: Annotated[ImportFormat, typer.Option("--format", help="What the files are.")] = ImportFormat.auto,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host that the file describes, where it does not say; repeat it for several files."),
    ] = None,
    onto: Annotated[
        Path | None, typer.Option(help="With a TENT rail file: the topology whose NICs it puts on rails.")
    ] = None,
    remote_host: Annotated[
        str | None, typer.Option(help="With a TENT rail file: the remote host; --host is the local one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a topology and print it: with --json the document that PUT /replicas/{id}/topology takes.

    What a file leaves open is said on standard error and left out.
    """
    hosts = tuple(host or ())
    if onto is not None:
        placement = _reading([onto, *files], as_json, lambda texts: _laid(texts, form, hosts, remote_host))
    elif remote_host is not None:
        raise Refused("--remote-host goes with --onto")
    else:
        placement = _read(files, form, hosts, as_json)
    if as_json:
        put_json(placement.document())
    else:
        _show(placement)


@app.command("diff")
def diff(
    old: Annotated[Path, typer.Argument(metavar="A", help="The topology of before.")],
    new: Annotated[Path, typer.Argument(metavar="B", help="The topology of now.")],
    as_json: AsJson = False,
) -> None:
    """Say what changed between two topologies. GPUs are matched by device id, then by rank."""
    import dataclasses

    from app.topology.diff import diff as compare

    before, now = (_read([path], ImportFormat.auto, (), as_json) for path in (old, new))
    found = compare(before, now)
    if as_json:
        put_json(dataclasses.asdict(found))
    elif not found.changes:
        say("nothing changed")
    for change in () if as_json else found.changes:
        say(change.text)


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="A topology, in any format that `import` reads.")],
    form: Annotated[ExportFormat, typer.Option("--format", help="What to write.")] = ExportFormat.json,
) -> None:
    """Print a topology as its document, as networkx node-link JSON, or for Graphviz."""
    from app.topology import exports

    placement = _read([file], ImportFormat.auto, (), as_json=False)
    if form is ExportFormat.dot:
        typer.echo(exports.dot(placement), nl=False)
    else:
        put_json(placement.document() if form is ExportFormat.json else exports.node_link(placement))


def _read(files: list[Path], form: ImportFormat, hosts: tuple[str, ...], as_json: bool) -> Placement:
    """The topology of some files; what they leave open is said."""
    from app.topology import importers

    wanted = next((known for known in importers.FORMATS if known == form.value), None)
    imported = _reading(files, as_json, lambda texts: importers.read(texts, wanted, hosts))
    for note in imported.notes:
        fail(f"note: {note}")
    return imported.placement


def _laid(texts: list[str], form: ImportFormat, hosts: tuple[str, ...], remote: str | None) -> Placement:
    """The topology of the first text with the rails of the second."""
    from app.topology import importers
    from app.topology.errors import ImportRefused
    from app.topology.importers import rails

    if form not in {ImportFormat.auto, ImportFormat.tent_rails}:
        raise Refused("--onto goes with a TENT rail file")
    if len(texts) != 2 or len(hosts) != 1:
        raise Refused("--onto goes with one rail file and one --host, the host that the file calls local")
    onto = importers.read(texts[:1]).placement
    known = onto.names("host")
    for option, name in (("--host", hosts[0]), ("--remote-host", remote)):
        if name is not None and name not in known:
            raise Refused(f"{option}: the topology has no host {name!r}; it has {', '.join(known)}")
    others = [name for name in known if name != hosts[0]]
    if remote is None and len(others) != 1:
        raise Refused(f"the topology has {len(others)} other hosts: say which one is remote with --remote-host")
    try:
        return rails.lay(rails.parse(texts[1]), onto, hosts[0], remote or others[0])
    except ImportRefused as refused:
        refused.part = 1
        raise


def _reading(files: list[Path], as_json: bool, read: Callable[[list[str]], T]) -> T:
    """Read files. What cannot be read is a line on standard error, or with --json a problem document."""
    from app.topology.errors import ImportRefused

    texts = []
    for path in files:
        try:
            content = read_topology_file(path)
        except Refused as refused:
            raise problem(UNREADABLE, str(refused), (str(path), str(refused))) if as_json else refused from None
        try:
            texts.append(content.decode())
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            column = error.start - content.rfind(b"\n", 0, error.start)
            raise _refused(ImportRefused("not UTF-8", line, column), path, as_json) from None
    try:
        return read(texts)
    except ImportRefused as error:
        raise _refused(error, None if error.part is None else files[error.part], as_json) from None


def _refused(error: ImportRefused, path: Path | None, as_json: bool) -> Exception:
    """What is wrong with a file; without one, with the names of hosts."""
    words = str(error) if path is None else f"{path}: {error}"
    if not as_json:
        return Refused(words)
    place = "" if error.line is None else f":{error.line}:{error.column}"
    return problem(UNREADABLE, words, (f"{path or '--host'}{place}", error.message))


def _show(placement: Placement) -> None:
    """Print a table, a GPU a line."""
    from app.localization.placement import PLACE_FIELDS

    rows = [["rank", *PLACE_FIELDS]]
    for rank, place in enumerate(placement.places):
        rows.append([str(rank), *(getattr(place, field) or "-" for field in PLACE_FIELDS)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for switch, above in placement.parents.items():
        say(f"{switch} is under {above}")
