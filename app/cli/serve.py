"""Commands that run the service: everything at once, or one process of it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import Refused, read_settings, refusing, refusing_database, say, write_or_compare


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("up")(up)
    app.command("serve")(serve)
    app.command("worker")(worker)
    app.command("tick")(tick)
    app.command("migrate")(migrate)
    app.command("check")(check)
    app.command("settings")(show_settings)


def up(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")] = 8000,
    data: Annotated[
        Path | None, typer.Option(help="Keep the data here; default: a temporary folder, gone at the end.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Jobs that run at a time.")] = 2,
) -> None:
    """Start everything: embedded PostgreSQL and Redis, API, worker and tick. Ctrl-C stops all."""
    from app.cli.stack import Stack, StackError
    from app.embedded import EmbeddedServiceError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with refusing(EmbeddedServiceError, StackError), Stack(port=port, data=data, workers=workers) as stack:
        say(f"API key      {stack.api_key}")
        say(f"API          {stack.url}")
        say(f"Swagger UI   {stack.url}/docs")
        say(f"Logs         {stack.logs}")
        say("Ctrl-C stops everything.")
        try:
            stack.wait()
        except KeyboardInterrupt:
            say("stopping ...")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
) -> None:
    """Run the API process."""
    import uvicorn

    from app.kit import logs
    from app.metrics.endpoints import serve_privately

    settings = read_settings()
    logs.configure(settings)
    if settings.metrics_port is not None:
        with refusing(OSError):
            serve_privately(settings.metrics_host, settings.metrics_port)
    uvicorn.run(
        "app.main:create_app",
        factory=True,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        # Longer than clients keep idle connections, so that no request meets one that is being closed.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=10,
        limit_concurrency=1000,  # connections; event streams among them
    )


def worker(
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Jobs at a time, one process each.")] = 2,
    only: Annotated[
        str | None, typer.Option(help="`jobs` or `webhooks`: leave the other to other workers; default: both.")
    ] = None,
) -> None:
    """Run a worker: it takes jobs up and probes, and delivers webhooks."""
    from app.kit.broker import QUEUE, WEBHOOK_QUEUE

    queues = {None: f"{QUEUE},{WEBHOOK_QUEUE}", "jobs": QUEUE, "webhooks": WEBHOOK_QUEUE}
    if only not in queues:
        raise Refused("--only must be jobs or webhooks")
    _celery(
        "worker",
        f"--concurrency={concurrency}",
        f"--queues={queues[only]}",
        "--without-mingle",
        "--without-gossip",
        "--without-heartbeat",
        "--max-tasks-per-child=500",
        f"--hostname=faultsense-{os.getpid()}@%h",
    )


def tick() -> None:
    """Run the tick: it finds lost jobs and due webhooks. One is enough; more do no harm."""
    read_settings()
    os.execv(sys.executable, [sys.executable, "-m", "workers.tick"])  # noqa: S606


def migrate(
    revision: Annotated[str, typer.Argument(help="Target; `head` is this version's.")] = "head",
    down: Annotated[
        bool, typer.Option("--down", help="Migrate back to the target; `base` drops everything.")
    ] = False,
) -> None:
    """Bring the database to this version's tables."""
    from alembic.util import CommandError

    from app.kit import migrate as migrations

    url = read_settings().database_url.get_secret_value()
    with refusing(CommandError), refusing_database():
        migrations.downgrade(url, revision) if down else migrations.upgrade(url, revision)


def check(
    what: Annotated[str, typer.Argument(help="worker or tick.")],
) -> None:
    """Whether this machine's worker or tick is alive; for health checks. Exit status 1 when it is not."""
    from app.kit import broker

    settings = read_settings()
    if what == "worker":
        alive = broker.worker_answers(socket.gethostname())
    elif what == "tick":
        age_s = broker.tick_age_s()
        alive = age_s is not None and age_s < 3 * settings.sweep_s + 10
    else:
        raise Refused("say `check worker` or `check tick`; the API has /livez and /readyz")
    say(f"{what}: {'alive' if alive else 'silent'}")
    raise typer.Exit(0 if alive else 1)


def show_settings(
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only compare with --out; exit status 1.")] = False,
) -> None:
    """Describe all settings, as Markdown."""
    from app.settings import describe

    write_or_compare(describe(), out, check=check, source="the settings say")


def _celery(*arguments: str) -> None:
    """Become Celery: one process, so that signals reach it."""
    level = read_settings().log_level
    os.execv(  # noqa: S606
        sys.executable,
        [sys.executable, "-m", "celery", "--app=workers.celery_app", *arguments, f"--loglevel={level}"],
    )
