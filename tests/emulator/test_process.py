"""The emulator's process: documents, start, stop, and no orphan."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pydantic
import pytest

from app.emulator.config import EmulatorConfig
from app.emulator.replica import EmulatedReplica
from app.emulator.runner import Sockets
from app.probe_model.manifest import Manifest
from app.probe_model.synthetic import synthetic_manifest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 20.0

HOLDER = """
import sys
from app.emulator.replica import EmulatedReplica
replica = EmulatedReplica(gpus=2)
print(replica.control_url, replica.pid, flush=True)
sys.stdin.read()
if "exit" in sys.argv:
    sys.exit(0)  # without stop()
"""

FOREGROUND = """
from app.emulator.config import EmulatorConfig
from app.emulator.runner import run_emulator
config = EmulatorConfig(gpus=3, rank_choice="url")
run_emulator(config, on_ready=lambda url, endpoints, _: print(url, len(endpoints), flush=True))
"""


def started(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def connect(url):
    return socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=DEADLINE_S)


def wait_until_gone(connection, url):
    assert connection.recv(1) == b""  # the process closes it when it ends
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        connect(url)


@pytest.mark.parametrize("how", ["killed", "exit"])
def test_the_emulator_ends_with_its_parent(how):
    parent = started(HOLDER, how)
    url = parent.stdout.readline().split()[0]
    connection = connect(url)
    if how == "killed":
        parent.kill()
    parent.communicate(timeout=DEADLINE_S)
    wait_until_gone(connection, url)


def test_stop_ends_the_process_and_may_be_called_twice():
    replica = EmulatedReplica(gpus=2)
    connection = connect(replica.control_url)
    replica.stop()
    wait_until_gone(connection, replica.control_url)
    with pytest.raises(ProcessLookupError):
        os.kill(replica.pid, 0)
    replica.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_foreground_emulator_serves_and_ends_on_a_signal(number):
    process = started(FOREGROUND)
    url, endpoints = process.stdout.readline().split()
    assert endpoints == "3"
    assert httpx.get(f"{url}/version", trust_env=False, timeout=DEADLINE_S).json() == {"version": "0.32.0"}
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


def test_a_hung_engine_and_an_open_stream_do_not_keep_it_from_stopping():
    replica = EmulatedReplica(gpus=2, faults=("gpu:0!hang",))
    connection = connect(replica.control_url)
    body = json.dumps({"prompt": [2], "stream": True}).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}"])
    connection.sendall(f"{head}\r\n\r\n".encode() + body)
    assert connection.recv(12) == b"HTTP/1.1 200"
    replica.stop()
    while connection.recv(4096):
        pass
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        connect(replica.control_url)


def test_only_loopback_is_bound():
    for choice in ("header", "url"):
        sockets = Sockets.bind(EmulatorConfig(gpus=3, rank_choice=choice))
        assert {sock.getsockname()[0] for sock in sockets.all()} == {"127.0.0.1"}
        for sock in sockets.all():
            sock.close()


def test_a_taken_port_is_an_error_and_leaves_nothing_bound():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            Sockets.bind(EmulatorConfig(gpus=2), taken.getsockname()[1])


def test_documents_fit_the_contracts():
    hosts = ("n1", "n2", "n1", "n2")
    with EmulatedReplica(gpus=4, hosts=hosts, manifest=synthetic_manifest(4, experts_per_gpu=4)) as replica:
        assert replica.endpoints == [{"url": replica.control_url, "ranks": "0-3", "rank_choice": "header"}]
        assert Manifest.model_validate(replica.manifest).experts == 16
        assert replica.topology == {
            "gpus": [
                {"rank": 0, "host": "n1", "device": "cuda:0"},
                {"rank": 1, "host": "n2", "device": "cuda:0"},
                {"rank": 2, "host": "n1", "device": "cuda:1"},
                {"rank": 3, "host": "n2", "device": "cuda:1"},
            ]
        }
    names = EmulatorConfig(gpus=60, hosts=30).host_names()
    assert (names[0], names[1], names[-1]) == ("host-a", "host-a", "host-ad")


def test_512_ranks_serve_on_ports_of_their_own():
    with EmulatedReplica(gpus=512, hosts=64, rank_choice="url", noise_sigma=0.0) as replica:
        token = replica.manifest["gpu_tokens"][511]
        with httpx.Client(trust_env=False, timeout=DEADLINE_S) as client:
            for rank in (0, 511):
                body = {"prompt": [token], "max_tokens": 1}
                response = client.post(f"{replica.endpoints[rank]['url']}/v1/completions", json=body)
                assert response.status_code == 200
        assert [rank for rank, n in enumerate(replica.stats()["requests"]) if n] == [0, 511]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"gpus": 1}, "gpus"),
        ({"gpus": 513}, "gpus"),
        ({"gpus": 4, "hosts": 5}, "hosts"),
        ({"gpus": 4, "faults": ("gpu:4*2",)}, "0 to 3"),
        ({"gpus": 4, "rank_choice": "none"}, "rank_choice"),
        ({"gpus": 4, "transport": "slow"}, "transport"),
        ({"gpus": 4, "noise_sigma": -1}, "noise_sigma"),
        ({"gpus": 4, "path_ms": {"same_host": 1}}, "path_ms"),
        ({"gpus": 4, "unknown": 1}, "unknown"),
    ],
)
def test_settings_out_of_range_are_named(settings, named):
    with pytest.raises(pydantic.ValidationError, match=named):
        EmulatedReplica(**settings)


def test_a_manifest_of_another_size_is_refused():
    with pytest.raises(ValueError, match="manifest"):
        EmulatedReplica(gpus=4, manifest=synthetic_manifest(8))
