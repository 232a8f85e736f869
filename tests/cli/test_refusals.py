"""Bad input is refused with exit status 2 and one line that says what would be taken; never a traceback."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
from pathlib import Path

import pytest

from app.settings import get_settings
from tests.cli.support import refused, run, start

SMALL = ("--gpus", 4, "--hosts", 2)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("plan", "cover", "--n", 3000), ("n:", "3000", "1024")),
        (("plan", "cover", "--n", 1), ("n:",)),
        (("plan", "cover", "--n", 8, "--k", 1), ("k:",)),
        (("plan", "cover", "--n", 80, "--k", 17), ("k:", "16")),
        (("simulate", "--n", 3000, "--trials", 1), ("gpus:", "1024")),
        (("simulate", "--k", 1, "--trials", 1), ("k:",)),
        (("simulate", "--k", 0, "--trials", 1), ("k:",)),
        (("simulate", "--strategy", "guess", "--trials", 1), ("strategy:", "faultsense", "pairwise")),
        (("simulate", "--kind", "nic"), ("kind", "gpu, path or mixed")),
        (("simulate", "--trials", -1), ("trials:",)),
        (("simulate", "--trials", 0), ("trials:",)),
        (("simulate", "--faults", -1), ("faults:",)),
        (("simulate", "--faults", 65, "--kind", "gpu"), ("faults:", "64")),
        (("simulate", "--noise", "nan"), ("noise:",)),
        (("simulate", "--slowdown", 0.5), ("slowdown:",)),
        (("simulate", "--seed", -1), ("--seed",)),
        (("emulate", "--gpus", 1000), ("gpus:", "512")),
        (("emulate", "--gpus", 1), ("gpus:",)),
        (("emulate", *SMALL, "--hosts", 5), ("hosts",)),
        (("emulate", *SMALL, "--fault", "gpu:4*2"), ("gpu:4*2", "0 to 3")),
        (("emulate", *SMALL, "--fault", "gpu:1*0"), ("factor",)),
        (("emulate", *SMALL, "--fault", "path:1-1*2"), ("two different ranks",)),
        (("emulate", *SMALL, "--fault", "path:1-2!hang"), ("only a GPU",)),
        (("emulate", *SMALL, "--fault", "nonsense"), ("nonsense", "gpu:5*2.0")),
        (("emulate", *SMALL, "--fault", ""), ("not a fault",)),
        (("emulate", *SMALL, "--rank-choice", "guess"), ("rank_choice:",)),
        (("emulate", *SMALL, "--all2all", "guess"), ("mode:",)),
        (("emulate", *SMALL, "--transport", "guess"), ("transport:",)),
        (("emulate", *SMALL, "--noise", "nan"), ("noise_sigma:",)),
        (("emulate", *SMALL, "--seed", -1), ("seed:",)),
        (("emulate", *SMALL, "--rank-choice", "url", "--port", 65534), ("ports from 65534",)),
        (("demo", "--fault", "gpu:99*2"), ("gpu:99*2", "0 to 63")),
        (("demo", "--fault", "gpu:five*2"), ("not a fault",)),
        (("demo", "--fault", "none", "--fault", "gpu:1*2"), ("'none' is not a fault",)),
        (("demo", "--gpus", 1000), ("gpus:",)),
        (("demo", *SMALL, "--transport", "guess"), ("transport:",)),
        (("keys", "create", "--scope", "root"), ("--scope", "admin")),
        (("keys", "create", "a\nb"), ("NAME",)),
        (("keys", "create", "n" * 101), ("NAME",)),
        (("keys", "revoke", "first"), ("'first'", "keys list")),
    ],
    ids=lambda value: " ".join(map(str, value))[:60],
)
def test_refused(words: tuple[object, ...], expected: tuple[str, ...]) -> None:
    refused(run(*words), *expected)


@pytest.mark.parametrize(
    "words",
    [(), ("nope",), ("plan", "cover", "--n", "many"), ("worker", "--concurrency", 0), ("up", "--port", 70_000)],
    ids=lambda words: " ".join(map(str, words)) or "nothing",
)
def test_wrong_usage_is_explained(words: tuple[object, ...]) -> None:
    outcome = run(*words)
    assert outcome.status == 2
    assert "Usage:" in outcome.err + outcome.out
    assert "Traceback" not in outcome.err


def test_an_uncaught_refusal_shows_no_traceback_in_a_process_of_its_own() -> None:
    process = start("plan", "cover", "--n", "3000", "--json")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err == "faultsense: n: 3000 GPUs; 2 to 1024 are supported\n"


def test_emulate_refuses_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(run("emulate", *SMALL, "--port", port), f"ports from {port}", "in use")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_probe_model_without_torch_says_what_to_install(tmp_path: Path) -> None:
    out = tmp_path / "model"
    refused(run("probe-model", "build", "--gpus", 4, "--out", out), "pip install 'faultsense[torch]'")
    refused(run("probe-model", "verify", tmp_path), "pip install 'faultsense[torch]'")
    assert not out.exists()


def test_serve_command_of_no_probe_model(tmp_path: Path) -> None:
    refused(run("probe-model", "serve-command", tmp_path / "nothing"), "cannot be read")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DATABASE_URL", "postgresql+psycopg://faultsense@127.0.0.1:1/none", "the database cannot be used"),
        ("DATABASE_URL", "nosuch://faultsense@127.0.0.1/none", "postgresql+psycopg://"),
        ("DATABASE_URL", "nonsense", "postgresql+psycopg://"),
        ("LOG_LEVEL", "LOUD", "log_level"),
        ("REPLICA_NETWORKS", '["10.0.0.0/99"]', "replica_networks"),
        ("REPLICA_NETWORKS", "10.0.0.0/8", "replica_networks"),
    ],
)
def test_unusable_settings_are_named(name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"FAULTSENSE_{name}", value)
    get_settings.cache_clear()
    try:
        refused(run("keys", "list"), words)
        refused(run("migrate"), words)
    finally:
        get_settings.cache_clear()


def test_up_tells_what_kept_it_from_starting(tmp_path: Path) -> None:
    """A data folder that is a file."""
    (tmp_path / "data").write_text("")
    process = start("up", "--port", 0, "--data", tmp_path / "data")
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 2, err
    assert out == ""
    assert err.startswith("faultsense: ")
    assert "Traceback" not in err
