import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.emulator.latency import LatencyModel, involved
from app.emulator.noise import Noise
from app.localization.faults import parse_faults
from app.localization.placement import layout

from .support import QUIET

N = 8
FLAT = {"same_host": 1.0, "cross_host": 1.0}


def model(**settings):
    return LatencyModel(N, **{"hosts": 2, "noise": QUIET, **settings})


def work(latency, loads, *faults, idle=frozenset()):
    return latency.work_ms(loads, parse_faults(faults, N), idle)


LOADS = st.dictionaries(
    st.integers(0, N - 1),
    st.dictionaries(st.integers(0, N - 1), st.integers(0, 20), max_size=N),
    max_size=N,
)
PAIR = st.lists(st.integers(0, N - 1), min_size=2, max_size=2, unique=True)
FAULT = st.one_of(
    st.builds("gpu:{}*{}".format, st.integers(0, N - 1), st.integers(1, 9)),
    st.builds("gpu:{}+{}ms".format, st.integers(0, N - 1), st.integers(1, 90)),
    PAIR.flatmap(lambda p: st.builds(f"path:{p[0]}-{p[1]}*{{}}".format, st.integers(1, 9))),
    PAIR.flatmap(lambda p: st.builds(f"path:{p[0]}>{p[1]}*{{}}".format, st.integers(1, 9))),
    PAIR.flatmap(lambda p: st.builds(f"path:{p[0]}>{p[1]}+{{}}ms".format, st.integers(1, 90))),
)
MODELS = st.builds(
    model, transport=st.sampled_from(["serial", "shared"]), mode=st.sampled_from(["sparse", "allgather"])
)


@given(MODELS, LOADS, st.lists(FAULT, max_size=3), FAULT)
def test_one_more_fault_never_makes_a_step_faster(latency, loads, faults, more):
    assert work(latency, loads, *faults, more) >= work(latency, loads, *faults) - 1e-9


@given(MODELS, LOADS, st.lists(FAULT, max_size=3))
def test_shared_transport_is_never_slower_than_serial(latency, loads, faults):
    serial, shared = (
        LatencyModel(N, 2, transport=transport, mode=latency.mode, noise=QUIET)
        for transport in ("serial", "shared")
    )
    assert work(shared, loads, *faults) <= work(serial, loads, *faults) + 1e-9


@given(MODELS, LOADS, st.lists(st.builds("gpu:{}*{}".format, st.integers(0, 7), st.integers(1, 9)), max_size=2))
def test_swapping_senders_and_receivers_leaves_the_network_time(latency, loads, faults):
    only_network = LatencyModel(N, 2, compute_ms=0.0, transport=latency.transport, mode="sparse", noise=QUIET)
    mirrored: dict[int, dict[int, int]] = {}
    for sender, row in loads.items():
        for receiver, tokens in row.items():
            mirrored.setdefault(receiver, {})[sender] = tokens
    paths = ["path:0-1*5", "path:2>3*4", "path:2>3+7ms"]
    assert work(only_network, loads, *paths, *faults) == pytest.approx(
        work(only_network, mirrored, *paths, *faults)
    )


def regular(r, c):
    """Every rank sends c tokens to each of the r ranks after it."""
    return {u: {(u + i) % N: c for i in range(1, r + 1)} for u in range(N)}


@given(st.integers(1, 7), st.integers(1, 16), st.integers(1, 12))
def test_a_slow_path_is_diluted_as_the_design_says(r, c, s):
    """DESIGN section 5: excess (s-1)/r of the send time when serial, max(0, s-r)/r when shared."""
    send_ms = r * c * 1.0
    for transport, share in (("serial", (s - 1) / r), ("shared", max(0, s - r) / r)):
        latency = model(transport=transport, path_ms=FLAT)
        excess = work(latency, regular(r, c), f"path:0-1*{s}") - work(latency, regular(r, c))
        assert excess == pytest.approx(share * send_ms)


@given(st.integers(1, 7), st.integers(1, 12), st.sampled_from(["serial", "shared"]))
def test_an_added_delay_is_not_diluted_and_counts_once_per_barrier(r, d, transport):
    latency, loads = model(transport=transport, path_ms=FLAT), regular(r, 3)
    healthy = work(latency, loads)
    barriers = 2 if r == N - 1 else 1  # only then does rank 1 send to rank 0 as well
    assert work(latency, loads, f"path:0-1+{d}ms") - healthy == pytest.approx(2 * d)
    assert work(latency, loads, f"path:0>1+{d}ms") - healthy == pytest.approx(barriers * d)
    assert work(latency, loads, f"path:1>0+{d}ms") - healthy == pytest.approx(barriers * d)


@given(st.integers(1, 7), st.integers(2, 12))
def test_a_one_way_fault_where_one_end_sends_has_half_strength_and_two_of_them_are_one_both_ways(r, s):
    latency, loads = model(path_ms=FLAT), regular(r, 4)
    healthy = work(latency, loads)
    both = work(latency, loads, f"path:0-1*{s}") - healthy
    for way in (f"path:0>1*{s}", f"path:1>0*{s}"):
        assert work(latency, loads, way) - healthy == pytest.approx(both if r == N - 1 else both / 2)
    assert work(latency, loads, f"path:0>1*{s}", f"path:1>0*{s}") - healthy == pytest.approx(both)


@pytest.mark.parametrize("transport", ["serial", "shared"])
@pytest.mark.parametrize("way", ["0>1", "1>0"])
@pytest.mark.parametrize(
    ("loads", "delayed", "slowed"),
    [
        # 4 tokens x 1 ms, half in each barrier. *5: 2 ms become 10 in each barrier that crosses the slow way.
        ({0: {1: 4}, 1: {0: 4}}, 2 * 30, 2 * 8),
        ({0: {1: 4}}, 30, 8),
        ({1: {0: 4}}, 30, 8),
        ({0: {1: 4}, 1: {0: 0}}, 30, 8),
        ({0: {2: 4}, 2: {1: 4}, 1: {2: 4}}, 0, 0),
    ],
    ids=["pair", "0 sends", "1 sends", "an empty entry", "elsewhere"],
)
def test_a_one_way_fault_strikes_in_both_barriers_where_both_ends_send(loads, delayed, slowed, way, transport):
    latency = model(path_ms=FLAT, transport=transport)
    healthy = work(latency, loads)
    assert work(latency, loads, f"path:{way}+30ms") - healthy == pytest.approx(delayed)
    assert work(latency, loads, f"path:{way}*5") - healthy == pytest.approx(slowed)


@pytest.mark.parametrize("way", ["0>1", "1>0"])
def test_a_one_way_fault_in_a_clique_costs_as_one_both_ways(way):
    latency = model(path_ms=FLAT)
    clique = {u: dict.fromkeys(range(4), 2) for u in range(4)}
    # three paths of 2 tokens, half of each in a barrier: 3 ms; the slow one *5 makes 7 of them
    assert work(latency, clique) == pytest.approx(3.0 + 8 * 1.25 + 3 + 3)
    for fault in (f"path:{way}*5", "path:0-1*5"):
        assert work(latency, clique, fault) == pytest.approx(3.0 + 8 * 1.25 + 7 + 7)


def test_each_barrier_has_its_own_slowest_gpu():
    latency = model(path_ms=FLAT)
    loads = {0: {1: 4}, 2: {3: 4}}
    # dispatch crosses 0>1, combine 3>2: 30 and 20 on different GPUs, one in each barrier
    both = work(latency, loads, "path:0>1+30ms", "path:3>2+20ms")
    assert both - work(latency, loads) == pytest.approx(30 + 20)
    # the same way round: both in dispatch, where the slower hides the other
    same = work(latency, loads, "path:0>1+30ms", "path:2>3+20ms")
    assert same - work(latency, loads) == pytest.approx(30)


@given(st.integers(1, 7), st.integers(1, 16), st.integers(2, 9))
def test_a_slow_gpu_is_not_diluted(r, c, s):
    latency, loads = model(), regular(r, c)
    excess = work(latency, loads, f"gpu:5*{s}") - work(latency, loads)
    assert excess == pytest.approx((s - 1) * r * c * latency.compute_ms)


def test_the_step_is_fixed_plus_largest_compute_plus_largest_send_or_receive():
    loads = {0: {1: 2, 4: 3}, 2: {1: 1, 2: 9}, 5: {4: 1}}
    # compute: 9 on GPU 2; send of rank 0: 2 * 0.5 (same host) + 3 * 1.0 (other host)
    assert work(model(), loads) == pytest.approx(3.0 + 9 * 1.25 + 4.0)
    assert work(model(), {}) == pytest.approx(3.0)
    assert work(model(), {3: {3: 4}}, "path:3-4*9") == pytest.approx(3.0 + 5.0)  # a self-send crosses no path


def test_faults_elsewhere_do_not_show():
    loads = {0: {1: 4}, 1: {0: 4}}
    assert work(model(), loads, "path:0-2*50", "path:2-3+99ms", "gpu:7*9") == work(model(), loads)


def test_a_delay_on_a_gpu_strikes_on_work_but_not_on_the_dummy_of_its_own_idle_rank():
    dummies = {u: {u: 1} for u in range(N)}
    healthy = work(model(), dummies)
    assert work(model(), dummies, "gpu:5+40ms", idle=set(range(N))) == healthy
    assert work(model(), {**dummies, 5: {5: 1}}, "gpu:5+40ms", idle=set(range(N)) - {5}) == healthy + 40
    stale = {**dummies, 2: {5: 1}}
    assert work(model(), stale, "gpu:5+40ms", idle=set(range(N))) == work(model(), stale) + 40


def test_a_collective_is_as_slow_as_its_slowest_path_whatever_the_destinations():
    latency = model(mode="allgather")
    slow = {
        work(latency, {u: {v: 4}}, "path:3-6*5") - work(latency, {u: {v: 4}}) for u in range(N) for v in range(N)
    }
    assert slow == {4 * (5 * 1.0 - 1.0)}
    assert work(latency, {0: {1: 4}}, "path:0-1*2") == work(latency, {0: {1: 4}})  # 2 * 0.5 hides behind 1.0
    assert work(latency, {0: {1: 4}}, "path:6-7+30ms") - work(latency, {0: {1: 4}}) == 60
    assert work(latency, {0: {1: 4}}, "path:6>7+30ms") - work(latency, {0: {1: 4}}) == 60, "both barriers cross it"
    assert work(latency, {0: {1: 4}}, "path:3>6*5") - work(latency, {0: {1: 4}}) == 4 * (5 * 1.0 - 1.0)
    assert work(latency, {}) == 3.0


def test_involved_leaves_out_own_dummies_only():
    loads = {0: {1: 2}, 2: {2: 1}, 3: {4: 1}, 5: {5: 1}, 6: {7: 0}}
    assert involved(loads, {2, 3}) == {0, 1, 3, 4, 5}


def test_noise_multiplies_the_whole_step():
    latency = model(noise=Noise(sigma=0.2, seed=4))
    keys = [(0, 0, 1), (1, 0, 1)]
    assert latency.step_ms({0: {1: 1}}, (), keys) == pytest.approx(
        latency.work_ms({0: {1: 1}}) * latency.noise.factor(keys)
    )


def test_hosts_are_spread_evenly_or_named():
    assert layout(8, 2).hosts == (0, 0, 0, 0, 1, 1, 1, 1)
    sizes = [layout(10, 4).hosts.count(number) for number in range(4)]
    assert sorted(sizes) == [2, 2, 3, 3]
    assert layout(4, ("x", "y", "x", "y")).hosts == (0, 1, 0, 1)
    for bad in (0, 9, ("x",)):
        with pytest.raises(ValueError, match="hosts"):
            layout(8, bad)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"fixed_ms": -1.0}, "fixed_ms"),
        ({"compute_ms": float("nan")}, "compute_ms"),
        ({"path_ms": {"same_host": 1.0}}, "path_ms"),
    ],
)
def test_out_of_range_settings_are_named(bad, named):
    with pytest.raises(ValueError, match=named):
        model(**bad)
    with pytest.raises(ValueError, match="gpus"):
        LatencyModel(1)
