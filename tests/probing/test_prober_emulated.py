"""The prober against emulated replicas: another process, real HTTP, modelled latencies and faults."""

import asyncio
from dataclasses import replace
from statistics import median

import httpx
import pytest

from app.emulator.replica import EmulatedReplica
from app.probe_model.synthetic import synthetic_manifest
from app.probing.prober import Prober

from . import support
from .support import BOUND_S, access_of, no_limits, probe

# Requests that arrive one step apart must still have a common window: more tokens than elsewhere.
TOKENS = {"decode_tokens": 8}
QUICK = {"noise_sigma": 0.0, "fixed_ms": 2.0, "recovery_s": 0.0}


@pytest.fixture(scope="module")
def shared():
    with EmulatedReplica(gpus=4, **QUICK) as running:
        yield running


@pytest.fixture
def replica(shared):
    """Without faults, and with every rank parked: a warm-up leaves them so."""
    shared.set_faults([])
    assert take(shared, probe(0), signal="ttft").type == "measured"
    return shared


def settings(gpus, **changes):
    return support.settings(gpus, **TOKENS | changes)


def measure(access, *probes, **options):
    return asyncio.run(support.measure(access, *probes, **TOKENS | options))


def take(replica, *probes, access=None, **options):
    return measure(access_of(replica, **(access or {})), *probes, **options)


def tbt_ms(replica, *members, faults=()):
    """Median TBT of three probes while faults are active."""
    replica.set_faults(faults)
    events = take(replica, *[probe(*members)] * 3)
    assert {e.type for e in events} == {"measured"}, events
    return median(e.data["tbt_ms"] for e in events)


def test_faults_are_slow_in_the_probes_that_they_touch_also_where_one_way_only(replica):
    healthy = tbt_ms(replica, 0, 1)
    one_way = tbt_ms(replica, 0, 1, faults=["path:0>1+20ms"])
    both_ways = tbt_ms(replica, 0, 1, faults=["path:0-1+20ms"])
    slow_gpu = tbt_ms(replica, 0, 1, faults=["gpu:1*14"])
    beside = [tbt_ms(replica, 2, 3, faults=[fault]) for fault in ("path:0-1+20ms", "gpu:1+20ms")]
    assert slow_gpu > 20
    assert min(one_way, both_ways) > 40
    assert both_ways < 1.3 * one_way  # a pair sends both ways: tokens in dispatch, results in combine
    assert max(healthy, *beside) < 0.7 * one_way


def test_a_slow_gpu_is_slow_alone_too(replica):
    slow = tbt_ms(replica, 2, faults=["gpu:2+25ms"])
    assert slow > 25
    assert tbt_ms(replica, 1, faults=["gpu:2+25ms"]) < 0.7 * slow


def requests_of(replica, *probes, **s):
    """Requests that each rank got for each probe in turn."""

    async def run():
        found, before = [], replica.stats()["requests"]
        async with asyncio.timeout(BOUND_S), Prober(access_of(replica), settings(4, **s), no_limits()) as prober:
            for taken in probes:
                assert (await prober.measure(taken)).type == "measured"
                after = replica.stats()["requests"]
                found.append([b - a for a, b in zip(before, after, strict=True)])
                before = after
        return found

    return asyncio.run(run())


def test_idle_ranks_are_parked_once_and_not_needlessly_again(replica):
    # The window does not matter here, so that no probe is taken twice.
    assert requests_of(
        replica, probe(0, 1), probe(0, 1), probe(2, 3), probe(2, 3), probe(0, 3), signal="ttft"
    ) == [
        [2, 2, 1, 1],  # every rank warmed up, then the probe
        [1, 1, 0, 0],
        [1, 1, 1, 1],  # 0 and 1 are parked, 2 and 3 probe
        [0, 0, 1, 1],
        [1, 0, 1, 1],  # 2 is parked; 1 still is
    ]


class NeverParks(Prober):
    def _to_park(self, _):
        return []


def test_without_parking_a_stale_rank_disturbs_the_next_probe(replica):
    """Rank 1 last sent to GPU 0: its dummy steps keep crossing the slow path."""
    replica.set_faults(["path:0-1+20ms"])
    parked = take(replica, probe(0, 1), probe(2, 3))
    unparked = take(replica, probe(0, 1), probe(2, 3), prober=NeverParks)
    with_parking, without = parked[-1].data["tbt_ms"], unparked[-1].data["tbt_ms"]
    assert without > 40  # there and back
    assert with_parking < 0.6 * without


HASTY = {"probe_timeout_s": 0.5}


def test_a_hang_during_warm_up_names_its_rank_and_the_engine_is_not_alive(replica):
    replica.set_faults(["gpu:2!hang"])
    late = take(replica, probe(0, 1), access=HASTY)
    assert (late.type, late.data["in_flight"], late.data["engine_alive"]) == ("timed_out", [2], False)
    assert late.data["waited_ms"] >= 500


def test_a_hang_during_a_probe_has_the_probe_under_test(replica):
    async def run():
        access = access_of(replica, **HASTY)
        async with asyncio.timeout(BOUND_S), Prober(access, settings(4), no_limits()) as prober:
            before = await prober.measure(probe(0, 1))
            replica.set_faults(["gpu:1!hang"])
            return before, await prober.measure(probe(0, 1))

    before, late = asyncio.run(run())
    assert before.type == "measured"
    assert (late.type, late.data["in_flight"], late.data["engine_alive"]) == ("timed_out", [0, 1], False)


def test_a_very_slow_path_is_censored_and_the_engine_is_alive(replica):
    async def run():
        # Every decode step takes 300 ms more; a step of the rank that is asked afterwards does not.
        replica.set_faults(["path:0-1+150ms"])
        access = access_of(replica, probe_timeout_s=0.9)
        async with asyncio.timeout(BOUND_S), Prober(access, settings(4), no_limits()) as prober:
            late = await prober.measure(probe(0, 1))
            replica.set_faults([])
            return late, await prober.measure(probe(0, 1))

    late, recovered = asyncio.run(run())
    assert (late.type, late.data["in_flight"], late.data["engine_alive"]) == ("timed_out", [0, 1], True)
    assert late.data["waited_ms"] >= 900
    assert recovered.type == "measured"


@pytest.mark.parametrize("during", ["warm-up", "probe"])
def test_a_gpu_that_answers_errors_fails_the_engine(replica, during):
    async def run():
        async with asyncio.timeout(BOUND_S), Prober(access_of(replica), settings(4), no_limits()) as prober:
            if during == "probe":
                assert (await prober.measure(probe(0, 1))).type == "measured"
            replica.set_faults(["gpu:1!error"])
            return await prober.measure(probe(0, 1))

    failed = asyncio.run(run())
    assert (failed.type, failed.data["code"]) == ("failed", "engine_failed")
    assert failed.data["in_flight"] == ([0, 1] if during == "probe" else [1])


def test_a_rank_that_refuses_on_its_own_url_is_named():
    async def run(replica):
        async with asyncio.timeout(BOUND_S), Prober(access_of(replica), settings(3), no_limits()) as prober:
            measured = await prober.measure(probe(0, 2))
            replica.set_faults(["gpu:2!error"])
            during = await prober.measure(probe(0, 2))
        return measured, during, await support.measure(access_of(replica), probe(0, 1))

    with EmulatedReplica(gpus=3, rank_choice="url", **QUICK) as replica:
        measured, during, in_warm_up = asyncio.run(run(replica))
    assert measured.type == "measured"
    for failed, in_flight in ((during, [0, 2]), (in_warm_up, [2])):
        assert (failed.type, failed.data["code"], failed.data["rank"]) == ("failed", "rank_refused", 2)
        assert failed.data["in_flight"] == in_flight


def test_a_server_that_is_gone_is_unreachable_and_no_rank_is_to_blame():
    for rank_choice in ("header", "url"):
        with EmulatedReplica(gpus=2, rank_choice=rank_choice) as gone:
            access = access_of(gone)
        failed = measure(access, probe(0, 1))
        assert (failed.type, failed.data["code"]) == ("failed", "endpoint_unreachable")


def test_another_model_is_not_found(replica):
    access = replace(access_of(replica), model="production")
    failed = measure(access, probe(0, 1))
    assert (failed.type, failed.data["code"]) == ("failed", "model_not_found")
    assert "production" not in failed.data["detail"]


def test_more_ranks_than_the_server_has_are_out_of_range(replica):
    access = access_of(replica)
    (endpoint,) = access.endpoints
    wider = replace(
        access, endpoints=[replace(endpoint, ranks=(0, 1, 2, 3, 4))], gpu_tokens=[*access.gpu_tokens, 3]
    )
    failed = measure(wider, probe(0, 1))
    assert (failed.data["code"], failed.data["rank"]) == ("rank_out_of_range", 4)


def test_a_full_queue_is_an_overload():
    async def run(replica):
        access = access_of(replica)
        occupying = {"prompt": [access.gpu_tokens[3]], "max_tokens": 200, "stream": True}
        # Steps of 0.15 s: while one runs, two of the three requests wait and the last finds the queue full.
        async with (
            asyncio.timeout(BOUND_S),
            Prober(access, settings(4), no_limits()) as prober,
            httpx.AsyncClient(base_url=replica.control_url, trust_env=False, timeout=BOUND_S) as client,
        ):
            assert (await prober.measure(probe(0, 1))).type == "measured"
            replica.set_faults(["gpu:3+150ms"])
            async with client.stream("POST", "/v1/completions", json=occupying) as response:
                await anext(response.aiter_bytes())
                return await prober.measure(probe(0, 1, 2))

    with EmulatedReplica(gpus=4, max_num_queued=2, **QUICK) as replica:
        failed = asyncio.run(run(replica))
    assert (failed.type, failed.data["code"]) == ("failed", "overloaded")


def test_a_model_that_is_too_short_cuts_streams():
    manifest = synthetic_manifest(2, max_model_len=20)
    with EmulatedReplica(gpus=2, manifest=manifest, **QUICK) as replica:
        short, long = (take(replica, probe(0, 1), prompt_tokens=p, decode_tokens=8) for p in (12, 13))
        assert short.type == "measured"
        assert (long.type, long.data["code"]) == ("failed", "stream_cut")
        assert "7 of 8 tokens" in long.data["detail"]


def test_another_token_than_the_served_model_s_is_rejected(replica):
    access = replace(access_of(replica), gpu_tokens=[2**20 - 1] * 4)
    failed = measure(access, probe(0, 1))
    assert (failed.data["code"], failed.data["in_flight"]) == ("request_rejected", [0])
