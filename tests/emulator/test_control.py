"""/emulator: faults on shared parts, on a schedule, and the topology document."""

import time

import httpx
import pytest

from app.emulator.replica import EmulatedReplica
from app.localization.faults import UnknownPartError

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def replica():
    with EmulatedReplica(gpus=8, hosts=2) as running:
        yield running


@pytest.fixture
def client(replica):
    with httpx.Client(base_url=replica.control_url, trust_env=False, timeout=DEADLINE_S) as opened:
        yield opened
    replica.set_faults([])


def faults(client):
    return client.get("/emulator/faults").json()


def until(client, expected):
    ends = time.monotonic() + DEADLINE_S
    while faults(client)["faults"] != expected:
        assert time.monotonic() < ends, faults(client)


def test_shared_parts_are_set_and_unknown_ones_refused_with_what_exists(replica, client):
    wanted = ["nic:host-a/0*3", "host:host-b*2", "leaf:1*2@0.5", "fabric:host-a+3ms/9s", "all*1.2"]
    assert client.put("/emulator/faults", json={"faults": wanted}).json() == {"faults": wanted}
    response = client.put("/emulator/faults", json={"faults": ["host:host-c*2"]})
    assert response.status_code == 422
    assert "it has host-a, host-b" in response.json()["detail"]
    with pytest.raises(UnknownPartError, match="host-a/0"):
        replica.set_faults(["nic:host-a/7*2"])
    assert faults(client)["faults"] == wanted


def test_a_schedule_replaces_the_faults_in_turn(replica, client):
    replica.set_faults(["gpu:1*2"])
    later = {"after_s": 86_400.0, "faults": ["gpu:3*2"]}
    replica.schedule_faults({0.05: ["gpu:2*2", "leaf:0*2"], 86_400: ["gpu:3*2"]})
    until(client, ["gpu:2*2", "leaf:0*2"])
    assert faults(client)["schedule"] == [later]
    # Given in another order than their times: the later of the two stays.
    replica.schedule_faults({0.1: [], 0.05: ["gpu:4*2"], 86_400: ["gpu:3*2"]})
    until(client, [])
    assert faults(client) == {"faults": [], "schedule": [later]}


def test_setting_faults_ends_the_schedule(replica, client):
    replica.schedule_faults({0.05: ["gpu:1*2"], 0.1: ["gpu:2*2"]})
    replica.set_faults(["gpu:5*2"])
    assert faults(client) == {"faults": ["gpu:5*2"]}
    replica.schedule_faults({0.0: ["gpu:6*2"]})  # later than what was scheduled before
    until(client, ["gpu:6*2"])
    replica.schedule_faults({0.15: ["gpu:7*2"]})
    until(client, ["gpu:7*2"])


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ([], "1 to 1024"),
        ("soon", "1 to 1024"),
        ([{"after_s": 1, "faults": []}] * 2, "must rise"),
        ([{"after_s": 2, "faults": []}, {"after_s": 1, "faults": []}], "must rise"),
        ([{"after_s": -1, "faults": []}], "after_s"),
        ([{"after_s": True, "faults": []}], "after_s"),
        ([{"after_s": "1", "faults": []}], "after_s"),
        ([{"after_s": 1e9, "faults": []}], "after_s"),
        ([{"after_s": 1}], "an entry is"),
        (["gpu:5*2"], "an entry is"),
        ([{"after_s": 1, "faults": ["gpu:8*2"]}], "0 to 7"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(client, schedule, words):
    response = client.put("/emulator/faults", json={"schedule": schedule})
    assert response.status_code == 422
    assert words in response.json()["detail"]
    assert faults(client) == {"faults": []}


def test_not_a_number_is_refused(client):
    body = b'{"schedule": [{"after_s": NaN, "faults": []}]}'
    assert client.put("/emulator/faults", content=body).status_code == 422


def test_the_topology_is_the_replica_s(replica, client):
    assert client.get("/emulator/topology").json() == replica.topology
    assert replica.topology["gpus"][5] == {
        "rank": 5,
        "host": "host-b",
        "device": "cuda:1",
        "nic": "1",
        "rail": "1",
        "leaf": "1",
    }
