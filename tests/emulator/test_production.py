"""The production server beside the probe server: traffic, queues, and how the two slow each other down."""

import time
from contextlib import contextmanager
from statistics import fmean, median

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.emulator.config import EmulatorConfig, ProductionConfig
from app.emulator.production import Traffic, capacity_rps, production_model, scattered
from app.emulator.replica import EmulatedReplica
from app.emulator.sharing import SharedGpus

from .support import Lab, completion, in_lab, mean_gap_ms

DEADLINE_S = 20.0


def opened(url):
    return httpx.Client(base_url=url, trust_env=False, timeout=DEADLINE_S)


def production_url(replica):
    (endpoint,) = replica.production_endpoints
    return endpoint["url"]


def metric(client, name):
    """Sum of a metric over the ranks."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


def until(condition):
    """Ask again until it holds; every question is a round trip to a server that goes on."""
    ends = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < ends, "it did not come about"


# What is pure


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_step_is_longer_by_what_the_other_engine_occupies(contention, first, second):
    gpus = SharedGpus(contention)
    assert gpus.enter(1, first) == 1
    assert gpus.enter(2, second) == pytest.approx(1 + contention * first)
    assert gpus.enter(1, first) == pytest.approx(1 + contention * second)
    gpus.leave(2)
    assert gpus.enter(1, first) == 1


def test_an_engine_feels_the_other_only_while_it_has_work():
    gpus = SharedGpus(contention=0.5)

    async def scenario(lab: Lab):
        alone = lab.submit(0, [[1]])
        await lab.settle()
        gpus.enter(99, 0.8)  # another engine begins a step
        beside = lab.submit(0, [[1]])
        await lab.settle()
        gpus.leave(99)
        again = lab.submit(0, [[1]])
        await lab.settle()
        assert beside.gaps_ms[0] == pytest.approx(1.4 * alone.gaps_ms[0])
        assert again.gaps_ms == alone.gaps_ms
        assert gpus.enter(99, 0.1) == 1, "this one has nothing to do now"

    in_lab(scenario, gpus_shared=gpus)


def traffic(load=0.5, seed=3, **more):
    config = EmulatorConfig(gpus=8, hosts=2, production={"load": load, **more})
    capacity = capacity_rps(production_model(config, config.production), config.production, seed)
    return Traffic(None, config.production, capacity, seed)


def test_arrivals_are_poisson_at_the_offered_rate_and_come_from_the_seed():
    arrivals = traffic(load=0.5)
    gaps = [arrivals.gap_s(number) for number in range(20_000)]
    mean = 1 / (0.5 * arrivals.capacity_rps)
    assert fmean(gaps) == pytest.approx(mean, rel=0.03)
    assert fmean(gap > mean for gap in gaps) == pytest.approx(0.3679, abs=0.015)
    assert gaps[:9] == [traffic(load=0.5).gap_s(number) for number in range(9)]
    assert gaps[:9] != [traffic(load=0.5, seed=4).gap_s(number) for number in range(9)]


def test_capacity_is_full_ranks_over_the_time_of_a_full_step():
    plain = {"noise_sigma": 0.0, "compute_ms": 0.0, "path_ms": {"same_host": 0.0, "cross_host": 0.0}}
    config = EmulatorConfig(gpus=4, **plain)
    production = ProductionConfig(fixed_ms=20.0, max_num_seqs=8, output_tokens=16)
    assert capacity_rps(production_model(config, production), production) == pytest.approx(4 * 8 / (16 * 0.020))
    assert traffic(prompt_tokens=1).capacity_rps > traffic(prompt_tokens=512).capacity_rps


def test_production_tokens_reach_every_gpu():
    destinations = scattered(8)
    reached = [rank for token in range(400) for rank in destinations(token)]
    assert min(reached.count(rank) for rank in range(8)) > 100
    assert all(1 <= len(destinations(token)) <= 4 for token in range(400))


# Over HTTP


@pytest.fixture(scope="module")
def quiet():
    """Without traffic of its own, and with steps long enough to measure."""
    with EmulatedReplica(
        gpus=4, hosts=2, noise_sigma=0.0, production={"contention": 0.5, "fixed_ms": 2.0, "token_cost": 4.0}
    ) as replica:
        yield replica


def test_it_is_a_server_of_its_own(quiet):
    with opened(production_url(quiet)) as production, opened(quiet.control_url) as probe:
        assert production.get("/health").status_code == 200
        assert production.get("/v1/models").json()["data"][0]["id"] == "production"
        assert probe.get("/v1/models").json()["data"][0]["id"] == "probe"
        answer = completion([3, 5], model="production", client=production)
        assert answer.json()["usage"] == {
            **answer.json()["usage"],
            "prompt_tokens": 2,
            "completion_tokens": 3,
        }
        assert completion([3], model="probe", client=production).status_code == 404
        assert production.get("/emulator/faults").status_code == 404, "faults are the probe server's"
        assert metric(production, "generation_tokens_total") == 3
        assert metric(probe, "generation_tokens_total") == 0
        assert quiet.stats()["requests"] == [0] * 4


def probe_ms(replica, client):
    return median(mean_gap_ms(client, 0, replica.manifest["gpu_tokens"][0], tokens=12) for _ in range(3))


def production_ms(client, tokens=12, repeats=3):
    return median(mean_gap_ms(client, 0, 3, tokens=tokens) for _ in range(repeats))


@contextmanager
def streaming(url):
    """A long request, under way."""
    body = {"prompt": [3], "max_tokens": 4000, "stream": True}
    with opened(url) as client, client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # kept: the stream ends with it
        next(lines)
        yield


def test_each_slows_the_other_while_it_works(quiet):
    """Contention 0.5: a probe's step of which 29 % is work, and a production step of which 90 % is."""
    with opened(production_url(quiet)) as production, opened(quiet.control_url) as probe:
        alone = probe_ms(quiet, probe), production_ms(production)
        with streaming(production_url(quiet)):
            slowed = probe_ms(quiet, probe)
        with streaming(quiet.control_url):
            beside = production_ms(production)
        until(lambda: metric(production, "num_requests_running") == metric(probe, "num_requests_running") == 0)
        after = probe_ms(quiet, probe), production_ms(production)
    assert slowed > 1.2 * max(alone[0], after[0])
    assert beside > 1.07 * max(alone[1], after[1])
    assert after[0] < 1.2 * alone[0]


def test_a_fault_slows_both(quiet):
    with opened(production_url(quiet)) as production, opened(quiet.control_url) as probe:
        healthy = probe_ms(quiet, probe), production_ms(production)
        quiet.set_faults(["all*4"])
        faulty = probe_ms(quiet, probe), production_ms(production, repeats=1)
        quiet.set_faults(["nic:host-a/0+50ms"])
        try:
            # Production tokens go to four GPUs; the probe stays on its own.
            assert production_ms(production, tokens=4, repeats=1) > 3 * healthy[1]
            assert probe_ms(quiet, probe) < 2 * healthy[0]
        finally:
            quiet.set_faults([])
    assert faulty[0] > 2.5 * healthy[0]
    assert faulty[1] > 2.5 * healthy[1]


def test_a_hang_stops_both_and_health_stays_200(quiet):
    with opened(production_url(quiet)) as production:
        quiet.set_faults(["fabric:host-a!hang"])
        try:
            with pytest.raises(httpx.ReadTimeout):
                production.post("/v1/completions", json={"prompt": list(range(40))}, timeout=0.3)
            assert production.get("/health").status_code == 200
        finally:
            quiet.set_faults([])
        assert completion([3], model="production", client=production).status_code == 200


@pytest.mark.parametrize(("load", "queues"), [(0.3, False), (2.5, True)])
def test_traffic_moves_the_metrics_and_beyond_capacity_the_queue_grows(load, queues):
    sizes = {"max_num_seqs": 2, "output_tokens": 8, "prompt_tokens": 8, "fixed_ms": 4.0}
    with (
        EmulatedReplica(gpus=4, hosts=2, production={"load": load, **sizes}) as replica,
        opened(production_url(replica)) as client,
    ):
        until(lambda: metric(client, "time_to_first_token_seconds_count") >= 80)
        running, waiting = metric(client, "num_requests_running"), metric(client, "num_requests_waiting")
        first_ms = 1e3 * metric(client, "time_to_first_token_seconds_sum") / 80
        assert running <= 8
        counts = replica.stats()["production"]
        assert counts["offered_rps"] == pytest.approx(load * counts["capacity_rps"], rel=1e-3)
        assert counts["refused"] == 0
        if queues:
            assert waiting > 20
            assert first_ms > 60
        else:
            assert waiting < 20
        assert counts["offered"] >= 80


def test_an_overload_is_refused_beyond_the_queue():
    limits = {"max_num_seqs": 1, "max_num_queued": 5, "fixed_ms": 15.0, "output_tokens": 8}
    with EmulatedReplica(gpus=2, production={"load": 4.0, **limits}) as replica:
        until(lambda: replica.stats()["production"]["refused"] > 3)
        with opened(production_url(replica)) as client:
            assert metric(client, "num_requests_waiting") <= 5
            until(lambda: completion([3], model="production", client=client).status_code == 503)
