"""A private Redis (or Valkey): password, 127.0.0.1 only."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path

import redis

from app.embedded.privileges import Privileges
from app.embedded.server import HOST, Server
from app.embedded.supervisor import Supervisor

READY = b"ready to accept connections"
CONNECT_SECONDS = 10.0

CONFIGURATION = """\
bind {host}
port {port}
protected-mode yes
requirepass {password}
daemonize no
save ""
appendonly yes
appendfsync {fsync}
"""


class RedisServer(Server):
    """Redis in `folder`. Acknowledged writes survive stop and kill: the append-only file is always on.

    Parameters
    ----------
    program : Path
        The server program.
    supervisor, privileges, folder, durable
        See `Server`.
    """

    name = "Redis"
    stop_steps = ((signal.SIGTERM, 10.0),)

    def __init__(
        self, supervisor: Supervisor, privileges: Privileges, folder: Path, *, durable: bool, program: Path
    ) -> None:
        super().__init__(supervisor, privileges, folder, durable=durable)
        self._program = program
        self._configuration = folder / "redis.conf"
        self._password = secrets.token_hex(32)

    def url(self, database: int = 0) -> str:
        """Return the URL of a numbered database; it holds the password."""
        return f"redis://:{self._password}@{HOST}:{self.port}/{database}"

    def prepare(self) -> None:
        """Write the configuration, readable by the server only."""
        fsync = "everysec" if self._durable else "no"
        self.write_secret(
            self._configuration,
            CONFIGURATION.format(host=HOST, port=self.port, password=self._password, fsync=fsync),
        )

    def command(self) -> list[str]:
        """Return the server command; the password is in the file. Data go to the working directory."""
        return [str(self._program), str(self._configuration)]

    def is_ready(self) -> bool:
        """Look for the line in the log that says so, after the data are loaded."""
        return self._log.exists() and READY in self._log.read_bytes().lower()

    def check(self) -> None:
        """Connect with the password."""
        client = redis.Redis(host=HOST, port=self.port, password=self._password, socket_timeout=CONNECT_SECONDS)
        try:
            client.ping()
        except redis.RedisError as error:
            raise self.error(f"does not answer: {error}", advice="see the log lines for the reason") from error
        finally:
            client.close()
