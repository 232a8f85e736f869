"""How a server is started without root's rights: PostgreSQL refuses to run as root.

An ordinary user needs nothing. Root starts the servers in a user namespace that shows root as an ordinary
user: no account is needed, and data and programs may stay in root's private home. Where user namespaces are
closed (many containers) the servers run as ``postgres`` or ``nobody``, and only their own folders are handed
over.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.embedded.errors import EmbeddedServiceError

NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
ACCOUNTS = ("postgres", "nobody")
CHECK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Privileges:
    """Whose rights the servers run with.

    Parameters
    ----------
    uid, gid : int
        The ids that the kernel checks file access against.
    groups : frozenset of int
        The supplementary groups kept.
    prefix : tuple of str
        Put before a command line.
    switch : bool
        Whether the watchdog must switch to `uid` and `gid` before it runs the program.
    """

    uid: int
    gid: int
    groups: frozenset[int] = frozenset()
    prefix: tuple[str, ...] = ()
    switch: bool = False

    def own(self, path: Path) -> None:
        """Hand a file over, or a folder with all that is in it; a no-op unless this process is root.

        Needed when a kept root was last used with other rights.
        """
        if os.geteuid() != 0 or path.stat().st_uid == self.uid:
            return
        for parent, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.chown(Path(parent, name), self.uid, self.gid, follow_symlinks=False)
        # Last: its owner says that all below is done, also after a crash half-way.
        os.chown(path, self.uid, self.gid)

    def require_access(self, path: Path) -> None:
        """Check that `path` can be reached with these rights.

        Raises
        ------
        EmbeddedServiceError
            Names the first folder that is closed.
        """
        for folder in reversed(path.absolute().parents):
            if not self._may_enter(folder):
                raise EmbeddedServiceError(
                    path.name,
                    f"{path} cannot be reached: the servers run with uid {self.uid}, which may not enter {folder}",
                    advice="keep the root folder and the Python environment where that uid may enter (for "
                    "example under /srv), or run as an ordinary user who may enter both",
                )

    def _may_enter(self, folder: Path) -> bool:
        """Mode bits only, as root in a user namespace has no more than those; access lists are not read."""
        info = folder.stat()
        if info.st_uid == self.uid:
            return bool(info.st_mode & stat.S_IXUSR)
        if info.st_gid == self.gid or info.st_gid in self.groups:
            return bool(info.st_mode & stat.S_IXGRP)
        return bool(info.st_mode & stat.S_IXOTH)


def namespace_works() -> bool:
    """Try whether root may open a user namespace here with this system's ``unshare``."""
    if not shutil.which(NAMESPACE[0]):
        return False
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*NAMESPACE, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHECK_SECONDS,
            check=False,
        )
        return done.returncode == 0
    return False


def choose_privileges() -> Privileges:
    """Return rights that are not root's.

    Raises
    ------
    EmbeddedServiceError
        When this process is root and there is neither a user namespace nor an account to switch to.
    """
    mine = Privileges(os.geteuid(), os.getegid(), frozenset(os.getgroups()))
    if mine.uid != 0:
        return mine
    if namespace_works():
        return Privileges(mine.uid, mine.gid, mine.groups, prefix=NAMESPACE)
    for name in ACCOUNTS:
        with suppress(KeyError):
            account = pwd.getpwnam(name)
            return Privileges(account.pw_uid, account.pw_gid, switch=True)
    raise EmbeddedServiceError(
        "PostgreSQL",
        "this process is root, user namespaces are closed, and there is no account postgres or nobody",
        advice="run as an ordinary user",
    )
