"""A private PostgreSQL: scram passwords, 127.0.0.1 only, never as root."""

from __future__ import annotations

import re
import secrets
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from app.embedded.errors import EmbeddedServiceError
from app.embedded.privileges import Privileges
from app.embedded.server import HOST, POLL_SECONDS, START_SECONDS, Server
from app.embedded.supervisor import Supervisor

USER = DATABASE = "faultsense"
MAINTENANCE_DATABASE = "postgres"
CONNECT_SECONDS = 10
PID_FILE_STATUS_LINE = 7
DATABASE_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)

SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # Shared memory of parallel queries as files in the data folder, so that they go with it.
    "dynamic_shared_memory_type": "mmap",
}
# synchronous_commit stays on: without fsync it costs next to nothing, and off would lose the last commits when
# the server is killed.
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}


class PostgresServer(Server):
    """PostgreSQL in `folder`, made by ``initdb`` at its first start.

    Parameters
    ----------
    programs : Path
        The folder of ``postgres`` and ``initdb``.
    supervisor, privileges, folder, durable
        See `Server`.
    """

    name = "PostgreSQL"
    # Fast shutdown, then immediate shutdown (which ends busy backends too).
    stop_steps = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 8.0))

    def __init__(
        self, supervisor: Supervisor, privileges: Privileges, folder: Path, *, durable: bool, programs: Path
    ) -> None:
        super().__init__(supervisor, privileges, folder, durable=durable)
        self._programs = programs
        self._data = folder / "data"
        self._password_file = folder / "password"
        self._password = ""

    def url(self, database: str = DATABASE) -> str:
        """Return the SQLAlchemy URL of a database; it holds the password."""
        return f"postgresql+psycopg://{USER}:{self._password}@{HOST}:{self.port}/{database}"

    def create_database(self, name: str, template: str | None = None) -> None:
        """Create a database, empty or as a copy.

        Parameters
        ----------
        name : str
            Lower-case letters, digits and underscores.
        template : str, optional
            The database to copy; nobody may be connected to it.

        Raises
        ------
        EmbeddedServiceError
            When the name is not usable or taken, or the template is missing or in use.
        """
        statement = sql.SQL("CREATE DATABASE {}").format(self._identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(self._identifier(template))
        self._execute(statement, f"database {name} cannot be created")

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, ending its connections.

        Raises
        ------
        EmbeddedServiceError
            When PostgreSQL refuses.
        """
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(self._identifier(name))
        self._execute(statement, f"database {name} cannot be dropped")

    def prepare(self) -> None:
        """Make the data folder at the first start; remove a stale lock file."""
        if not (self._data / "PG_VERSION").exists():
            self._initialize()
        try:
            self._password = self._password_file.read_text().strip()
        except OSError as error:
            raise EmbeddedServiceError(
                self.name,
                f"its password cannot be read: {error}",
                advice=f"restore that file, or remove {self._folder} to start with an empty database",
            ) from error
        self._remove_stale_pid_file()

    def command(self) -> list[str]:
        """Return the ``postgres`` command; the password is in the data, not here."""
        settings = SETTINGS | {"port": str(self.port)} | ({} if self._durable else NOT_DURABLE)
        options = [argument for key, value in settings.items() for argument in ("-c", f"{key}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self._data), *options]

    def is_ready(self) -> bool:
        """Read the status in ``postmaster.pid``, as ``pg_ctl`` does."""
        lines = self._pid_file_lines()
        return (
            len(lines) > PID_FILE_STATUS_LINE
            and lines[0].strip() == str(self._pid)
            and lines[PID_FILE_STATUS_LINE].strip() == "ready"
        )

    def check(self) -> None:
        """Connect, and create the service's database at the first start."""
        exists = sql.SQL("SELECT 1 FROM pg_database WHERE datname = {}").format(sql.Literal(DATABASE))
        if not self._execute(exists, "does not answer"):
            self.create_database(DATABASE)

    def _initialize(self) -> None:
        """Run ``initdb`` beside the final place: a folder named ``data`` is always a complete one."""
        fresh = self._folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self.write_secret(self._password_file, secrets.token_hex(32) + "\n")
        command = [
            str(self._programs / "initdb"),
            "-D",
            str(fresh),
            "-U",
            USER,
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
        ]
        command += ["--auth=scram-sha-256", f"--pwfile={self._password_file}"]
        self._run_initdb([*command, *([] if self._durable else ["--no-sync"])])
        fresh.rename(self._data)

    def _run_initdb(self, command: list[str]) -> None:
        log = self._folder / "initdb.log"
        log.unlink(missing_ok=True)
        steps = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
        self._supervisor.spawn("initdb", command, folder=self._folder, log=log, steps=steps)
        deadline = time.monotonic() + START_SECONDS
        while (code := self._supervisor.returncode("initdb")) is None:
            if time.monotonic() > deadline:
                self._supervisor.stop("initdb", steps)
                raise self.error("initdb takes too long", advice="is this machine overloaded?", log=log)
            time.sleep(POLL_SECONDS)
        if code != 0:
            raise self.error(
                f"initdb ended with status {code}", advice="see the log lines for the reason", log=log
            )

    def _pid_file_lines(self) -> list[str]:
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, UnicodeDecodeError):
            return []

    def _remove_stale_pid_file(self) -> None:
        """Remove the lock file of a crash whose process id belongs to another program by now.

        PostgreSQL itself removes one whose process is gone, but refuses to start when any process of the same
        user has that id: usual after a reboot or in a new container, where the ids start again.
        """
        lines = self._pid_file_lines()
        if lines and str(self._data) not in _command_line(lines[0].strip()):
            (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _identifier(self, name: str) -> sql.Identifier:
        if not DATABASE_NAME.fullmatch(name):
            raise EmbeddedServiceError(
                self.name,
                f"{name!r} is no database name for here",
                advice="use at most 63 lower-case letters, digits and underscores, no digit first",
            )
        return sql.Identifier(name)

    def _execute(self, statement: sql.SQL | sql.Composed, problem: str) -> list[tuple[Any, ...]]:
        try:
            with psycopg.connect(
                host=HOST,
                port=self.port,
                user=USER,
                password=self._password,
                dbname=MAINTENANCE_DATABASE,
                connect_timeout=CONNECT_SECONDS,
                # Against PG* variables of the environment.
                sslmode="disable",
                gssencmode="disable",
                options="",
                autocommit=True,
            ) as connection:
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise self.error(f"{problem}: {error}", advice="see the reason above") from error


def _command_line(pid: str) -> str:
    """Return the command line of a process, empty when there is none."""
    if not pid.isdigit():
        return ""
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            return Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return ""
    done = subprocess.run(
        ["ps", "-o", "command=", "-p", pid],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=CONNECT_SECONDS,
        check=False,
    )
    return done.stdout
