"""Faults on shared parts in the latency model and in the engine; hop classes."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.emulator.config import EmulatorConfig
from app.emulator.latency import LatencyModel
from app.emulator.requests import EngineDeadError
from app.localization.faults import parse_faults
from app.localization.placement import layout

from .support import QUIET, in_lab

N = 12
PLACES = layout(N, 4, nics_per_host=2, leaves=2)  # three GPUs a host: two on NIC 0, one on NIC 1
PARTS = st.sampled_from(
    ["nic:host-a/0", "nic:host-d/1", "host:host-b", "fabric:host-c", "leaf:0", "leaf:1", "rail:1"]
)
FAULT = st.one_of(
    st.builds("{}*{}".format, PARTS, st.integers(2, 9)),
    st.builds("{}+{}ms".format, PARTS, st.integers(1, 90)),
    st.builds("gpu:{}*{}".format, st.integers(0, N - 1), st.sampled_from([1.1, 1.7, 3])),
    st.builds("all*{}".format, st.sampled_from([1.1, 1.7, 3])),
    st.sampled_from(["path:0-3*1.3", "path:3>0+7ms", "path:4-9*2.7", "all+3ms"]),
)
PAIRS = [(u, v) for u in range(N) for v in range(N) if u != v]


def model(**more):
    return LatencyModel(N, **{"hosts": PLACES, "noise": QUIET, **more})


def excess(latency, u, v, *faults, tokens=3):
    loads = {u: {v: tokens}}
    return latency.work_ms(loads, parse_faults(faults, N, PLACES)) - latency.work_ms(loads)


@settings(max_examples=15, deadline=None)
@given(PARTS, st.integers(2, 9), st.integers(1, 90), st.sampled_from(["serial", "shared"]))
def test_a_part_slows_exactly_the_paths_that_cross_it(part, factor, delay, transport):
    latency = model(transport=transport)
    fault = parse_faults([f"{part}*{factor}"], N, PLACES)[0]
    crossing = PLACES.crosses(fault.component)
    for u, v in PAIRS:
        base_ms = 3 * (0.5 if PLACES.hop_class(u, v) == "same_host" else 1.0)
        expected = (factor - 1) * base_ms if crossing[u, v] else 0
        assert excess(latency, u, v, f"{part}*{factor}") == pytest.approx(expected)
        assert excess(latency, u, v, f"{part}+{delay}ms") == pytest.approx(2 * delay if crossing[u, v] else 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(FAULT, min_size=2, max_size=3), st.sampled_from(["serial", "shared"]), st.data())
def test_the_order_of_faults_changes_nothing_not_even_the_rounding(faults, transport, data):
    loads = {u: {v: 1 + (u + v) % 4 for v in range(N) if (u * v) % 3} for u in range(N)}
    times = {
        model(transport=transport).work_ms(loads, parse_faults(order, N, PLACES)) for order in permutations(faults)
    }
    assert len(times) == 1


def test_factors_multiply_and_delays_add_over_parts_paths_and_repeats():
    latency = model()
    # 0 (host-a, NIC 0) to 3 (host-b, NIC 0): 3 ms healthy
    assert excess(latency, 0, 3, "nic:host-a/0*3", "host:host-b*2") == pytest.approx((6 - 1) * 3)
    assert excess(latency, 0, 3, "nic:host-a/0*3", "nic:host-b/0*3") == pytest.approx((9 - 1) * 3)
    assert excess(latency, 0, 3, "host:host-a+5ms", "host:host-b+7ms", "path:0-3+1ms") == pytest.approx(26)
    assert excess(latency, 0, 3, "host:host-a*2", "path:0>3*3") == pytest.approx(((6 + 2) / 2 - 1) * 3)
    assert excess(latency, 0, 3, "rail:0*2") == pytest.approx(3), "both ends are on it: it counts once"


def test_a_slow_nic_is_not_diluted_by_the_other_paths_of_its_gpu():
    latency = model()
    loads = {0: dict.fromkeys(range(3, 9), 2)}
    healthy, slow = latency.work_ms(loads), latency.work_ms(loads, parse_faults(["nic:host-a/0*3"], N, PLACES))
    network = healthy - latency.fixed_ms - 2 * latency.compute_ms
    assert slow - healthy == pytest.approx(2 * network)


def test_a_fault_in_everything_is_on_the_whole_step():
    latency = model()
    loads = {0: {3: 2, 4: 1}}
    healthy = latency.work_ms(loads)
    assert latency.work_ms(loads, parse_faults(["all*1.5", "all+4ms"])) == pytest.approx(1.5 * healthy + 4)
    assert latency.work_ms({}, parse_faults(["all*2"])) == pytest.approx(2 * latency.fixed_ms)


def test_hop_classes_have_their_own_times():
    path_ms = {"same_host": 0.5, "cross_host": 1.0, "cross_rail": 1.5, "cross_leaf": 2.0}
    latency = model(path_ms=path_ms, compute_ms=0.0, fixed_ms=0.0)
    seen = {(u, v): latency.work_ms({u: {v: 1}}) for u, v in PAIRS}
    assert all(seen[u, v] == path_ms[PLACES.hop_class(u, v)] for u, v in PAIRS)
    assert set(seen.values()) == set(path_ms.values())
    assert model(path_ms={"same_host": 0.5, "cross_host": 1.0}).work_ms({0: {8: 4}}) == pytest.approx(3 + 5 + 4)
    with pytest.raises(ValueError, match="path_ms"):
        model(path_ms={"same_host": 0.5, "cross_host": 1.0, "cross_sea": 9.0})
    with pytest.raises(ValueError, match="12 GPUs, not 8"):
        LatencyModel(8, PLACES)


def test_a_collective_is_as_slow_as_the_slowest_part():
    latency = model(mode="allgather")
    assert latency.work_ms({0: {1: 4}}, parse_faults(["leaf:1*3"])) - latency.work_ms({0: {1: 4}}) == 8.0
    apart = LatencyModel(
        4, layout(4, 4), mode="allgather", path_ms={"same_host": 9.0, "cross_host": 1.0}, noise=QUIET
    )
    assert apart.work_ms({0: {1: 4}}) == 3 + 5 + 4, "no two GPUs share a host: that time is nobody's"


def lab(**more):
    return {"gpus": 4, "hosts": layout(4, 2), "max_num_seqs": 64, **more}


@pytest.mark.parametrize("mode", ["sparse", "allgather"])
def test_a_hung_nic_freezes_the_steps_that_cross_it(mode):
    async def scenario(lab):
        local = lab.submit(0, [[1]])
        await lab.settle()
        assert (len(local.times.get(0, [])) == 5) == (mode == "sparse"), "a collective crosses every part"
        lab.set_faults()
        await lab.settle()
        lab.set_faults("nic:host-a/0!hang")
        crossing = lab.submit(3, [[0]])
        await lab.settle()
        assert crossing.times == {}
        lab.set_faults()
        await lab.settle()
        assert len(crossing.times[0]) == 5

    in_lab(scenario, **lab(faults=["nic:host-a/0!hang"], mode=mode))


@pytest.mark.parametrize("in_step", [True, False])
def test_a_broken_uplink_ends_the_step_that_crosses_it_also_where_ranks_have_ports(in_step):
    async def scenario(lab):
        local = lab.submit(0, [[1]])
        await lab.settle()
        assert len(local.times[0]) == 5
        crossing = lab.submit(1, [[2]])
        await lab.settle()
        assert isinstance(crossing.error, EngineDeadError)
        assert lab.engine.failed_ranks("error") == frozenset(), "no GPU has failed"

    in_lab(scenario, **lab(faults=["host:host-b!error"], errors_in_step=in_step))


def test_a_flapping_fault_comes_and_goes_between_steps():
    async def scenario(lab):
        reply = lab.submit(0, [[1]], tokens=400)
        await lab.settle()
        healthy = 3 + 2 * 1.25 + 0.5
        assert {round(gap, 3) for gap in reply.gaps_ms} == {healthy, healthy + 10}
        slow = sum(gap for gap in reply.gaps_ms if gap > healthy + 5)
        assert slow / sum(reply.gaps_ms) == pytest.approx(0.4, abs=0.1)

    in_lab(scenario, faults=["path:0-1+5ms@0.4"])


def test_drift_grows_while_the_steps_go_on():
    async def scenario(lab):
        reply = lab.submit(0, [[0]], tokens=500)
        await lab.settle()
        gaps = reply.gaps_ms
        assert all(b >= a - 1e-6 for a, b in pairwise(gaps))
        assert gaps[0] == pytest.approx(4.25, rel=0.02)
        assert gaps[-1] == pytest.approx(8.5)

    in_lab(scenario, faults=["all*2/1s"])


def test_faults_on_parts_that_are_not_there_are_refused_by_the_settings():
    with pytest.raises(ValueError, match="it has host-a, host-b"):
        EmulatorConfig(gpus=8, hosts=2, faults=("host:host-c*2",))
    config = EmulatorConfig(gpus=8, hosts=2, leaves=1, nics_per_host=1, faults=("nic:host-b/0*2",))
    assert EmulatorConfig.model_validate(config.model_dump(mode="json")) == config
    places = EmulatorConfig(gpus=8, places=config.placement.places)
    assert EmulatorConfig.model_validate(places.model_dump(mode="json")).topology() == config.topology()
    with pytest.raises(ValueError, match="8 GPUs, not 4"):
        EmulatorConfig(gpus=4, places=config.placement.places)
