"""The ``faultsense`` command. Subcommands import what they need when they run: help stays fast and light."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from app import __version__
from app.cli import (
    analyze,
    client,
    core,
    demo,
    emulate,
    keys,
    plan,
    probe_model,
    selection,
    serve,
    simulate,
    topology,
    webhooks,
)
from app.cli.output import Refused, fail

app = typer.Typer(
    name="faultsense",
    help="Find the GPU or path that makes a Mixture-of-Experts serving replica slow.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
serve.add_to(app)
plan.add_to(app)
simulate.add_to(app)
core.add_to(app)
analyze.add_to(app)
client.add_to(app)
emulate.add_to(app)
demo.add_to(app)
app.add_typer(keys.app, name="keys")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(topology.app, name="topology")
app.add_typer(probe_model.app, name="probe-model")
app.add_typer(selection.selection, name="selection")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"faultsense {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the GPU or path that makes a Mixture-of-Experts serving replica slow."""


def main() -> None:
    """Entry point: refused input is one line on standard error and exit status 2."""
    try:
        app()
    except Refused as refused:
        fail(str(refused))
        sys.exit(2)
