"""Faults as a prober sees them: over sockets, in wall time. Ratios are wide, since the machine may be busy."""

import json
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import httpx
import pytest

from app.emulator.replica import EmulatedReplica
from app.localization.faults import FaultSyntaxError

from .support import SAMPLES, completion, events, mean_gap_ms

DEADLINE_S = 20.0


def opened(url):
    return httpx.Client(base_url=url, trust_env=False, timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def shared():
    with EmulatedReplica(gpus=4, hosts=2, noise_sigma=0.0, recovery_s=0.5) as running:
        yield running


@pytest.fixture
def replica(shared):
    """A healthy replica with every rank parked, whatever the test before did to it."""
    shared.set_faults([])
    with opened(shared.control_url) as client:
        while client.get("/health").status_code == 503:
            pass
        park(client, shared)
    return shared


def park(client, replica):
    for rank, own in enumerate(replica.manifest["gpu_tokens"]):
        assert completion([own], rank=rank, max_tokens=1, client=client).status_code == 200


def gap(replica, rank, token, repeats=3):
    with opened(replica.control_url) as client:
        return median(mean_gap_ms(client, rank, token) for _ in range(repeats))


def test_the_inter_token_time_is_the_model_s():
    with EmulatedReplica(gpus=4, hosts=2, noise_sigma=0.0, fixed_ms=40.0) as slow:
        tokens = slow.manifest["gpu_tokens"]
        loads = {0: {2: 1}, 1: {1: 1}, 2: {2: 1}, 3: {3: 1}}
        expected = slow.config.latency_model().work_ms(loads)
        measured = gap(slow, 0, tokens[2])
        assert 0.8 * expected < measured < 2 * expected
        assert slow.stats()["steps"] == 15


@pytest.mark.parametrize(
    ("fault", "on", "off"),
    [
        ("path:0-2+60ms", (0, 2), (0, 1)),
        ("path:0>2+120ms", (2, 0), (1, 3)),
        ("path:0-2*100", (0, 2), (1, 2)),
        ("gpu:2*60", (1, 2), None),
    ],
)
def test_a_fault_shows_on_its_path_or_gpu_and_not_beside_it(replica, fault, on, off):
    tokens = replica.manifest["gpu_tokens"]
    healthy = gap(replica, on[0], tokens[on[1]])
    replica.set_faults([fault])
    assert gap(replica, on[0], tokens[on[1]]) > 3 * healthy
    if off is not None:  # ranks that probed before are parked, or their stale token would cross the path
        with opened(replica.control_url) as client:
            park(client, replica)
        assert gap(replica, off[0], tokens[off[1]]) < 2 * healthy + 10


def test_a_stale_dummy_contaminates_other_probes_until_its_rank_is_parked(replica):
    tokens = replica.manifest["gpu_tokens"]
    healthy = gap(replica, 1, tokens[1])
    replica.set_faults(["path:0-3+60ms"])
    with opened(replica.control_url) as client:
        completion([tokens[3]], rank=0, max_tokens=1, client=client)
        assert gap(replica, 1, tokens[1]) > 3 * healthy
        completion([tokens[0]], rank=0, max_tokens=1, client=client)
        assert gap(replica, 1, tokens[1]) < 2 * healthy + 10


def test_a_hang_freezes_the_engine_with_health_at_200_and_ends_when_it_is_removed(replica):
    tokens = replica.manifest["gpu_tokens"]
    replica.set_faults(["gpu:3!hang"])
    with opened(replica.control_url) as client, ThreadPoolExecutor(2) as threads:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json={"prompt": [tokens[3]]}, timeout=0.4)
        waiting = threads.submit(completion, [tokens[1]], rank=1, client=client)
        with opened(replica.control_url) as other:
            assert other.get("/health").status_code == 200
            steps = replica.stats()["steps"]
            assert not waiting.done()
            replica.set_faults([])
        assert waiting.result(DEADLINE_S).status_code == 200
        assert replica.stats()["steps"] > steps


def test_an_error_ends_streams_with_an_event_then_health_is_503_then_it_recovers(replica):
    tokens = replica.manifest["gpu_tokens"]
    recorded = (SAMPLES / "err_worker_killed_midstream.txt").read_text()
    with opened(replica.control_url) as client:
        body = {"prompt": [tokens[1]], "max_tokens": 4000, "stream": True, "return_token_ids": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            replica.set_faults(["gpu:1!error"])
            *_, event, end = (line for line in lines if line)
        assert event in recorded
        assert end == "data: [DONE]"
        assert client.get("/health").status_code == 503
        refused = completion([tokens[0]], rank=0, client=client)
        assert refused.status_code == 500
        assert refused.json()["error"] == json.loads(event.removeprefix("data: "))["error"]
        replica.set_faults([])
        while client.get("/health").status_code == 503:
            pass
        assert completion([tokens[1]], rank=0, client=client).status_code == 200


def test_an_error_answers_a_plain_request_with_500(replica):
    replica.set_faults(["gpu:1!error"])
    with opened(replica.control_url) as client:
        assert completion([replica.manifest["gpu_tokens"][1]], rank=0, client=client).status_code == 500


def test_a_failed_rank_refuses_on_its_own_port_and_comes_back():
    with EmulatedReplica(gpus=3, rank_choice="url", noise_sigma=0.0, faults=("gpu:1!error",)) as replica:
        tokens, urls = replica.manifest["gpu_tokens"], [e["url"] for e in replica.endpoints]
        assert [(e["ranks"], e["rank_choice"]) for e in replica.endpoints] == [(str(r), "url") for r in range(3)]
        assert len(set(urls)) == 3
        with httpx.Client(trust_env=False, timeout=DEADLINE_S) as client:
            with pytest.raises(httpx.ConnectError):
                completion([tokens[0]], url=urls[1], client=client)
            for rank in (0, 2):
                assert completion([tokens[0]], url=urls[rank], client=client).status_code == 200
            replica.set_faults([])
            assert completion([tokens[0]], url=urls[1], client=client).status_code == 200
            assert replica.stats()["requests"] == [1, 1, 1]
            body = {"prompt": [tokens[1]], "max_tokens": 4000, "stream": True}
            with client.stream("POST", f"{urls[1]}/v1/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                replica.set_faults(["gpu:1!error"])
                with pytest.raises(httpx.TransportError):
                    list(lines)
            replica.set_faults(["gpu:0!error"])
            assert completion([tokens[1]], url=urls[1], client=client).status_code == 200


def test_every_rank_port_serves_one_engine():
    with EmulatedReplica(gpus=2, rank_choice="url", noise_sigma=0.0, fixed_ms=20.0) as replica:
        tokens = replica.manifest["gpu_tokens"]
        replica.set_faults(["gpu:0!hang"])
        with ThreadPoolExecutor(1) as threads, opened(replica.endpoints[1]["url"]) as client:
            waiting = threads.submit(completion, [tokens[0]], client=client, stream=True)
            replica.set_faults([])
            assert events(waiting.result(DEADLINE_S).text)[-1] == "[DONE]"


def test_a_bad_fault_is_refused_before_it_is_sent(replica):
    with pytest.raises(FaultSyntaxError, match="0 to 3"):
        replica.set_faults(["gpu:4*2"])
