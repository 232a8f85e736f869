"""PostgreSQL and Redis together, with one life: the public face of this package."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from app.embedded.errors import EmbeddedServiceError
from app.embedded.postgres import PostgresServer
from app.embedded.privileges import Privileges, choose_privileges
from app.embedded.programs import find_postgres, find_redis
from app.embedded.redis_server import RedisServer
from app.embedded.supervisor import Supervisor

LOCK_SECONDS = 60.0
LOCK_POLL_SECONDS = 0.05
ROOT_FOLDER = "root folder"

_T = TypeVar("_T")


class EmbeddedServices:
    """A private PostgreSQL and a private Redis on free ports of 127.0.0.1, with random passwords.

    They end with this object or with this process, whichever comes first and however: a watchdog process
    holds a socket to this process and stops the servers when that closes, also after SIGKILL.

    Parameters
    ----------
    root : Path, optional
        Where data, secrets and logs live. A given root keeps its data and can be started again; without one a
        temporary folder (mode 0700) is made and removed at the end.
    durable : bool
        Whether PostgreSQL syncs each commit to disk (Redis: once a second). Without it, data survive the end
        of the processes but not a power loss: right for tests.

    Examples
    --------
    >>> with EmbeddedServices() as services:  # doctest: +SKIP
    ...     services.database_url
    'postgresql+psycopg://faultsense:...@127.0.0.1:41233/faultsense'
    """

    def __init__(self, root: Path | None = None, durable: bool = False) -> None:
        self._given_root = root
        self._durable = durable
        self._root: Path | None = None
        self._supervisor: Supervisor | None = None
        self._postgres: PostgresServer | None = None
        self._redis: RedisServer | None = None
        self._owner = os.getpid()

    @property
    def root(self) -> Path:
        """The folder of data, secrets and logs."""
        return _started(self._root)

    @property
    def postgres(self) -> PostgresServer:
        """The PostgreSQL server: ``stop()``, ``start()``, ``kill()``."""
        return _started(self._postgres)

    @property
    def redis(self) -> RedisServer:
        """The Redis server: ``stop()``, ``start()``, ``kill()``."""
        return _started(self._redis)

    @property
    def database_url(self) -> str:
        """SQLAlchemy URL of the database ``faultsense``, with its password; the same over restarts."""
        return self.postgres.url()

    @property
    def redis_url(self) -> str:
        """URL of Redis database 0, with its password; the same over restarts."""
        return self.redis.url()

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a further database, empty or as a copy of `template`, and return its URL.

        Raises
        ------
        EmbeddedServiceError
            When the name is not usable or taken, or somebody is connected to the template.
        """
        self.postgres.create_database(name, template)
        return self.postgres.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, ending its connections."""
        self.postgres.drop_database(name)

    def start(self) -> Self:
        """Start both servers and wait until they answer.

        Raises
        ------
        EmbeddedServiceError
            When a program is missing, the root cannot be used, or a server does not start; nothing is left
            running then.
        """
        if self._supervisor is not None:
            return self
        programs, redis_program = find_postgres(), find_redis()
        privileges = choose_privileges()
        for program in (programs / "postgres", redis_program):
            privileges.require_access(program)
        self._owner = os.getpid()
        self._supervisor = self._start_supervisor(privileges)
        try:
            self._start_servers(self._supervisor, privileges, programs, redis_program)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop both servers; remove the root if it is a temporary one. A no-op when not started.

        In a forked copy of the process nothing is stopped.
        """
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        if os.getpid() != self._owner:
            supervisor.abandon()
            return
        try:
            supervisor.close()
        finally:
            if self._given_root is None:
                shutil.rmtree(self.root, ignore_errors=True)
            self._root = self._postgres = self._redis = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_supervisor(self, privileges: Privileges) -> Supervisor:
        root = self._root = _make_root(self._given_root, privileges)
        try:
            lock = _lock(root)
            try:
                return Supervisor(root, privileges, lock=lock, temporary=self._given_root is None)
            finally:
                os.close(lock)
        except BaseException:
            if self._given_root is None:
                shutil.rmtree(root, ignore_errors=True)
            raise

    def _start_servers(
        self, supervisor: Supervisor, privileges: Privileges, programs: Path, redis_program: Path
    ) -> None:
        folders = [_prepare_folder(self.root / name, privileges) for name in ("postgres", "redis")]
        self._postgres = PostgresServer(
            supervisor, privileges, folders[0], durable=self._durable, programs=programs
        )
        self._redis = RedisServer(supervisor, privileges, folders[1], durable=self._durable, program=redis_program)
        self._postgres.start()
        self._redis.start()


def _started(value: _T | None) -> _T:
    if value is None:
        raise EmbeddedServiceError(
            "embedded services",
            "are not running",
            advice="use them inside `with EmbeddedServices() as services:`",
        )
    return value


def _unusable(root: Path, reason: object) -> EmbeddedServiceError:
    return EmbeddedServiceError(
        ROOT_FOLDER, f"{root} cannot be used: {reason}", advice="choose a folder that this user may write"
    )


def _make_root(given: Path | None, privileges: Privileges) -> Path:
    """Return an existing folder; one made here belongs to the servers' user. Parents are left alone."""
    try:
        if given is None:
            root, new = Path(tempfile.mkdtemp(prefix="faultsense-")).resolve(), True
        else:
            root = given.resolve()
            new = not root.exists()
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if new:
            privileges.own(root)
    except OSError as error:
        raise _unusable(given or Path(tempfile.gettempdir()), error) from error
    return root


def _prepare_folder(folder: Path, privileges: Privileges) -> Path:
    """Return a server's own folder, closed to others and owned by the server's user."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        privileges.own(folder)
        folder.chmod(0o700)
    except OSError as error:
        raise _unusable(folder, error) from error
    privileges.require_access(folder)
    return folder


def _lock(root: Path) -> int:
    """Lock a root against a second use; wait a while, as a watchdog may still be stopping servers there."""
    path = root / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(root, error) from error
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise EmbeddedServiceError(
                    ROOT_FOLDER,
                    f"{root} is in use by another process",
                    advice="stop that one, or choose another root",
                ) from error
        time.sleep(LOCK_POLL_SECONDS)
