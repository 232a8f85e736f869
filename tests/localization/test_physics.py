"""The physics model: step times calculated by hand, and what the families of noise are like."""

from __future__ import annotations

import numpy as np
import pytest

from app.emulator.latency import LatencyModel
from app.localization.adaptive.costs import Costs
from app.localization.errors import SettingsError
from app.localization.faults import parse_fault, parse_faults
from app.localization.physics import DRIFT, OwnNoise, PhysicsReplica, UnknownNoise, make_noise
from app.localization.probes import Probe
from app.localization.shapes import Bipartite, Clique, Exchange, Shape, Shift

COSTS = Costs(fixed_ms=10.0, compute_ms=0.5, path_ms=0.25)
RING = (0, 1, 2, 3, 4, 5)
LOOPS = Exchange(RING, (), 8)
SHIFT = Shift((RING,), (1, 2), 4)  # 8 tokens a rank: 4 to each of two others
ONE_SHIFT = Shift((RING,), (1,), 8)
PAIRS = Exchange(RING, ((0, 1), (2, 3)), 8)  # two pairs exchange 8 tokens each, the others keep theirs
HEALTHY_LOOPS = 10 + 8 * 0.5
HEALTHY = 10 + 8 * 0.5 + 8 * 0.25


def step_ms(shape: Shape, *faults: str, transport: str = "serial", gpus: int = 6, **more: int) -> float:
    given = parse_faults(faults, gpus)
    return PhysicsReplica(gpus, given, COSTS, transport, **more).step_ms(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("transport", ["serial", "shared"])
@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (LOOPS, HEALTHY_LOOPS),
        (SHIFT, HEALTHY),
        (ONE_SHIFT, HEALTHY),
        (PAIRS, HEALTHY),
        (Clique((0, 1, 2, 3), 2), 10 + 8 * 0.5 + 6 * 0.25),  # one of four sends stays
        (Bipartite((0, 1), (2,), 3), 10 + 6 * 0.5 + 6 * 0.25),  # the one receiver is the busiest link
    ],
)
def test_healthy_steps(shape: Shape, expected: float, transport: str) -> None:
    assert step_ms(shape, transport=transport) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shape", "fault", "transport", "added"),
    [
        (LOOPS, "gpu:5*1.5", "serial", 4 * 0.5),
        (LOOPS, "gpu:5+7ms", "serial", 7),
        (LOOPS, "path:0-1*9", "serial", 0),
        # A path slow both ways: the factor on both halves, one of two sends ...
        (SHIFT, "path:0-1*3", "serial", 2 * 4 * 0.25),
        # ... which flow side by side: max(8, 3 x 4) tokens, where a factor of 2 just does not show.
        (SHIFT, "path:0-1*3", "shared", 4 * 0.25),
        (SHIFT, "path:0-1*2", "shared", 0),
        # One way: dispatch u > v, or combine of what v > u was sent; the shift sends one way only, so half.
        (SHIFT, "path:0>1*3", "serial", 2 * 4 * 0.25 / 2),
        (SHIFT, "path:1>0*3", "serial", 2 * 4 * 0.25 / 2),
        (SHIFT, "path:0>1*3", "shared", 4 * 0.25 / 2),
        # The ends of a pair send to each other, so one way is whole.
        (PAIRS, "path:0-1*3", "serial", 2 * 8 * 0.25),
        (PAIRS, "path:0>1*3", "serial", 2 * 8 * 0.25),
        (PAIRS, "path:0>1*3", "shared", 2 * 8 * 0.25),
        (PAIRS, "path:0-2*3", "serial", 0),
        # A delay counts once for each message that crosses: dispatched, and combined.
        (ONE_SHIFT, "path:0-1+5ms", "serial", 10),
        (ONE_SHIFT, "path:0-1+5ms", "shared", 10),
        (ONE_SHIFT, "path:0>1+5ms", "serial", 5),
        (PAIRS, "path:0>1+5ms", "serial", 10),
        (PAIRS, "path:0-1+5ms", "serial", 10),
        (SHIFT, "path:0-1+5ms", "shared", 10),
        (SHIFT, "all*1.5", "serial", 0.5 * HEALTHY),
        (SHIFT, "all+5ms", "serial", 5),
    ],
)
def test_what_a_fault_adds(shape: Shape, fault: str, transport: str, added: float) -> None:
    healthy = step_ms(shape, transport=transport)
    assert step_ms(shape, fault, transport=transport) == pytest.approx(healthy + added)


@pytest.mark.parametrize("transport", ["serial", "shared"])
@pytest.mark.parametrize("shape", [LOOPS, SHIFT, PAIRS, Clique((0, 1, 2, 3), 2), Bipartite((0, 1), (1, 2), 3)])
def test_faults_both_ways_cost_what_they_cost_in_the_emulator(shape: Shape, transport: str) -> None:
    """It has one barrier a step, which makes a difference for faults one way only."""
    same = {"same_host": 0.25, "cross_host": 0.25}
    emulated = LatencyModel(6, fixed_ms=10.0, compute_ms=0.5, path_ms=same, transport=transport)  # type: ignore[arg-type]
    for texts in (
        ["path:0-1*3", "path:1-2+5ms"],
        ["path:0-1+5ms", "path:0-1*2"],
        ["gpu:1*3", "gpu:2+4ms", "all*2"],
    ):
        expected = emulated.work_ms(shape.sends, parse_faults(texts))
        assert step_ms(shape, *texts, transport=transport) == pytest.approx(expected)


def test_delays_of_one_rank_add_up_where_its_sends_take_turns() -> None:
    both = ("path:0-1+5ms", "path:0-2+3ms")
    assert step_ms(SHIFT, *both) == pytest.approx(HEALTHY + 2 * (5 + 3))
    assert step_ms(SHIFT, *both, transport="shared") == pytest.approx(HEALTHY + 2 * 5)


def test_each_barrier_waits_for_its_own_worst_link() -> None:
    """0 > 1 is slow in dispatch, 3 > 2 in combine: other links, so both show; GPUs and paths add, too."""
    assert step_ms(SHIFT, "path:0>1*3", "path:3>2*3") == pytest.approx(HEALTHY + 2 * 4 * 0.25)
    assert step_ms(SHIFT, "path:0>1*3", "path:2>3*3") == pytest.approx(HEALTHY + 2 * 4 * 0.25 / 2)
    assert step_ms(SHIFT, "gpu:5*1.5", "path:0-1*3", "all*2") == pytest.approx(2 * (HEALTHY + 2 + 2))


def test_faults_on_one_component_combine_in_any_order() -> None:
    for faults in (["path:0-1*2", "path:0>1*3", "path:0-1+1ms"], ["path:0-1+1ms", "path:0>1*3", "path:0-1*2"]):
        assert step_ms(ONE_SHIFT, *faults) == pytest.approx(HEALTHY + (6 - 1) * 1 + (2 - 1) * 1 + 2)
    assert step_ms(LOOPS, "gpu:1*2", "gpu:1*2") == pytest.approx(HEALTHY_LOOPS + 3 * 4)


def test_a_faster_part_makes_nothing_faster_that_others_do_at_normal_speed() -> None:
    assert step_ms(LOOPS, "gpu:1*0.5") == HEALTHY_LOOPS
    assert step_ms(Exchange((1,), (), 8), "gpu:1*0.5") == pytest.approx(10 + 2)
    assert step_ms(Bipartite((0,), (1,), 8), "path:0-1*0.5") == pytest.approx(10 + 4 + 1)


def test_an_idle_gpu_is_not_slow() -> None:
    assert (
        step_ms(Exchange((0, 1), (), 8), "gpu:5*3")
        == step_ms(Exchange((0, 1), (), 8), "gpu:5+9ms")
        == HEALTHY_LOOPS
    )


def test_a_delay_needs_a_message_not_a_cost() -> None:
    free = Costs(fixed_ms=10.0, compute_ms=0.0, path_ms=0.0)
    replica = PhysicsReplica(6, [parse_fault("path:0-1+5ms")], free, "serial")
    assert (replica.step_ms(SHIFT), replica.step_ms(LOOPS)) == (20, 10)


def test_sequences_may_bring_more_than_a_token() -> None:
    assert step_ms(Clique((0, 1, 2, 3)), sequence_tokens=2) == step_ms(Clique((0, 1, 2, 3), 2))
    assert step_ms(SHIFT, "path:0-1*3", sequence_tokens=3) == pytest.approx(10 + 3 * (4 + 2 + 2))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("gpu:1!hang", "steady slowdowns"),
        ("gpu:1*2@0.3", "steady slowdowns"),
        ("path:0-1*2/60s", "steady slowdowns"),
        ("nic:host-a/0*3", "needs a topology"),
        ("gpu:6*2", "ranks go from 0 to 5"),
        ("path:0-6*2", "ranks go from 0 to 5"),
    ],
)
def test_faults_it_does_not_know_are_refused(fault: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        PhysicsReplica(6, [parse_fault(fault)], COSTS, "serial")
    assert caught.value.field == "fault"
    assert fault in str(caught.value)


def test_transport_must_be_physical() -> None:
    with pytest.raises(SettingsError, match="serial or shared") as caught:
        PhysicsReplica(6, [], COSTS, "undiluted")
    assert caught.value.field == "transport"


def test_a_reading_is_one_step_with_the_noise_of_its_turn() -> None:
    noise = OwnNoise(0.05, np.random.default_rng(3))
    drawn = [noise.draw() for _ in range(5)]
    replica = PhysicsReplica(6, [], COSTS, "serial", OwnNoise(0.05, np.random.default_rng(3)))
    events = [replica.answer(Probe(1, SHIFT, 1, "cover"), 0).data for _ in drawn]
    assert [event["tbt_ms"] for event in events] == pytest.approx(HEALTHY * np.exp(drawn))
    assert all(event["tbt_ms"] == event["ttft_ms"] == event["wall_ms"] for event in events)
    exact = PhysicsReplica(6, parse_faults(["all*2"]), COSTS, "serial").answer(Probe(1, SHIFT, 1, "cover"), 0)
    assert exact.data["tbt_ms"] == 2 * HEALTHY


@pytest.mark.parametrize("family", ["own", "unknown"])
def test_without_sigma_there_is_no_noise(family: str) -> None:
    noise = make_noise(family, 0.0, np.random.default_rng(1))  # type: ignore[arg-type]
    assert [noise.draw() for _ in range(200)] == [0.0] * 200


def residuals(family: type[OwnNoise | UnknownNoise], sigma: float, jobs: int) -> np.ndarray:
    """What 50 readings of many jobs show beside the level they began at, shape (jobs, 50)."""
    noises = [family(sigma, np.random.default_rng((7, job))) for job in range(jobs)]
    return np.array([[noise.draw() for _ in range(50)] for noise in noises])


def test_own_noise() -> None:
    drawn = residuals(OwnNoise, 0.05, 400)
    early = drawn[:, :4].ravel()
    burst = early > np.log(2) / 2
    assert burst.mean() == pytest.approx(0.05, abs=0.02)
    assert np.median(early[burst]) == pytest.approx(np.log(2), abs=0.02)
    assert early[~burst].std() == pytest.approx(0.05, rel=0.1)
    assert early[~burst].mean() == pytest.approx(0, abs=0.01)
    # The level walks: after 50 readings it is 0.5 % x sqrt(50) off.
    late = np.median(drawn[:, 40:], axis=1)
    assert late.std() == pytest.approx(DRIFT * np.sqrt(45), rel=0.35)


def test_unknown_noise_has_other_bursts_and_remembers() -> None:
    drawn = residuals(UnknownNoise, 0.02, 400)
    burst = drawn > np.log(1.2)
    assert 0.035 < burst.mean() < 0.065
    assert burst[:, 1:][burst[:, :-1]].mean() > 0.25, "bursts last"
    sizes = drawn[burst]
    assert np.percentile(sizes, 10) < 0.4
    assert np.percentile(sizes, 90) > 1.1
    quiet = ~(burst[:, 1:] | burst[:, :-1])
    steps = drawn - np.median(drawn, axis=1, keepdims=True)
    before, after = steps[:, :-1][quiet], steps[:, 1:][quiet]
    own = residuals(OwnNoise, 0.02, 400)
    calm = ~((own[:, 1:] > 0.3) | (own[:, :-1] > 0.3))
    white = own - np.median(own, axis=1, keepdims=True)
    ordinary = np.corrcoef(white[:, :-1][calm], white[:, 1:][calm])[0, 1]
    assert np.corrcoef(before, after)[0, 1] > ordinary + 0.1
    assert 0.015 < before.std() < 0.04


def test_noise_comes_from_its_generator_alone() -> None:
    for family in (OwnNoise, UnknownNoise):
        first, again, other = (family(0.05, np.random.default_rng(seed)) for seed in (1, 1, 2))
        drawn = [[noise.draw() for _ in range(20)] for noise in (first, again, other)]
        assert drawn[0] == drawn[1]
        assert drawn[0] != drawn[2]
