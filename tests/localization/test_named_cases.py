"""The cases that the design names: each went wrong in some other way of doing it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from app.localization.settings import Settings
from app.localization.shapes import Clique
from tests.localization.conftest import Run, binary, drive


def test_the_papers_example(localize) -> None:
    """n = 8, k = 4, path 3-4: six cover probes, then at most ten."""
    run = localize(["path:3-4"], gpus=8, k=4)
    assert run.verdict.names == ["path:3-4"]
    assert len(run.phase(1)) == 6
    assert 1 <= len(run.phase(2)) <= 10


def test_two_unrelated_faults_that_share_an_innocent(localize) -> None:
    """Intersecting the suspicious probes would blame GPU 0, which is in both."""
    run = localize(["path:0-1", "path:0-9"], gpus=16, k=4)
    assert run.verdict.names == ["path:0-1", "path:0-9"]
    run = localize(["gpu:3", "path:7-11"], gpus=16, k=4)
    assert run.verdict.names == ["gpu:3", "path:7-11"]


def test_two_faults_in_one_probe(localize) -> None:
    first = Settings(gpus=16, k=4)
    a, b, c, d = localize([], gpus=16, k=4).phase(1)[0].members
    assert first.k == 4
    assert localize([f"path:{a}-{b}", f"path:{c}-{d}"], gpus=16, k=4).verdict.names == [
        f"path:{a}-{b}",
        f"path:{c}-{d}",
    ]
    assert localize([f"gpu:{a}", f"path:{c}-{d}"], gpus=16, k=4).verdict.names == [f"gpu:{a}", f"path:{c}-{d}"]
    assert localize([f"gpu:{a}", f"gpu:{b}"], gpus=16, k=4).verdict.names == [f"gpu:{a}", f"gpu:{b}"]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_n_of_at_most_k_has_nothing_to_compare(localize, n: int) -> None:
    run = localize(["gpu:1"], gpus=n, k=n)
    assert run.verdict.outcome == "inconclusive"
    assert run.codes == {"nothing_to_compare"}
    assert not run.verdict.suspects


def test_n_of_k_plus_one(localize) -> None:
    """One fault is identifiable (d <= n - k); two slow GPUs are not, and the verdict says so."""
    for fault in ["gpu:0", "gpu:4", "path:0-1", "path:3-4"]:
        run = localize([fault], gpus=5, k=4)
        assert run.verdict.names == [fault]
    hidden = localize(["gpu:0", "gpu:1"], gpus=5, k=4)
    assert "two_faults_could_hide" in hidden.codes


def test_k_of_two(localize) -> None:
    for fault in ["gpu:2", "path:1-3"]:
        assert localize([fault], gpus=4, k=2).verdict.names == [fault]
    assert localize(["path:0-1", "path:0-2"], gpus=4, k=2).verdict.names == ["path:0-1", "path:0-2"]


def test_no_healthy_padding_left_takes_a_smaller_probe(localize) -> None:
    """n = 6, k = 3, two slow GPUs: no full probe of known healthy GPUs and paths is left for some suspects."""
    run = localize(["gpu:0", "gpu:2"], gpus=6, k=3)
    assert run.verdict.names == ["gpu:0", "gpu:2"]
    smaller = [probe for probe in run.phase(2) if len(probe.members) < 3]
    assert smaller
    assert all(isinstance(p.shape, Clique) and p.shape.sequences > 1 for p in smaller), (
        "a smaller probe keeps the load of a GPU"
    )
    assert any(probe.purpose == "reference" for probe in run.probes), "and is compared with its own kind"


def test_no_healthy_padding_and_no_smaller_probe_names_the_class_of_equals(localize) -> None:
    """Nothing is accused that was not isolated: every name is a fault, or has its equals beside it."""
    unsure = 0
    for pair in combinations([f"gpu:{r}" for r in range(6)], 2):
        run = localize(pair, gpus=6, k=3, any_size=False)
        named = {s.name for s in run.verdict.suspects if not s.alternatives}
        assert named <= set(pair)
        if named != set(pair):
            unsure += 1
            assert (
                run.verdict.outcome == "inconclusive"
                or any(s.alternatives for s in run.verdict.suspects)
                or ("cannot_be_separated" in run.codes)
            )
    assert unsure, "no case here needs the class of equals"


def test_every_probe_slow_is_no_verdict_about_a_part() -> None:
    run = drive(Settings(gpus=8, k=4, repeats=1), lambda _: 9000.0, deadline_ms=1000.0)
    assert run.verdict.outcome == "inconclusive"
    assert run.codes == {"every_probe_slow"}
    assert not run.verdict.suspects


def test_every_probe_slow_against_history_is_uniform() -> None:
    settings = Settings(gpus=8, k=4, repeats=1, history_ms=20.0)
    assert drive(settings, binary(healthy_ms=60.0)).verdict.outcome == "uniform_slowdown"
    assert drive(settings, binary(healthy_ms=21.0)).verdict.outcome == "healthy"
    # History never moves the threshold: a fault is found all the same, and named.
    assert drive(settings, binary("gpu:3", healthy_ms=60.0)).verdict.names == ["gpu:3"]


def test_right_censored_measurements_accuse_with_a_lower_bound() -> None:
    settings = Settings(gpus=16, k=4, repeats=3, decode_tokens=10)
    run = drive(settings, binary("gpu:6", slowdown=500.0), deadline_ms=1000.0)
    (suspect,) = run.verdict.suspects
    assert suspect.name == "gpu:6"
    assert suspect.slowdown == pytest.approx(1000 / 10 / 20)
    assert suspect.slowdown_is_lower_bound
    assert "at least 5.0x" in run.verdict.summary


def test_paths_at_a_slow_gpu_are_masked_and_never_healthy(localize) -> None:
    run = localize(["gpu:5", "path:5-9"], gpus=16, k=4)
    assert run.verdict.names == ["gpu:5"]
    assert run.verdict.masked == ["path:5-*"]
    healthy = run.session.strategy.evidence.healthy_paths[5]
    assert healthy.sum() == 1, "only the diagonal"


def test_one_lucky_probe_of_a_slow_gpu_does_not_blame_its_paths() -> None:
    """One false negative among the probes of a slow GPU: hard sets then blamed its paths, 18.7 a run."""
    slow = binary("gpu:5")
    lucky: list[int] = []

    def latency(probe) -> float:
        if 5 in probe.members and probe.phase == 1 and (not lucky or probe.number in lucky):
            lucky.append(probe.number)
            return 20.0
        return slow(probe)

    run: Run = drive(Settings(gpus=64, k=8, repeats=1), latency)
    assert lucky
    assert run.verdict.names == ["gpu:5"]


def test_allgather_names_gpus_only(localize) -> None:
    assert localize(["gpu:5"], gpus=16, k=4, paths_selectable=False).verdict.names == ["gpu:5"]
    blind = localize(["path:1-2"], gpus=16, k=4, paths_selectable=False, slowdown=1.0)
    assert blind.verdict.outcome == "inconclusive"
    assert "paths_not_selectable" in blind.codes
    assert blind.verdict.untested == ["path:*-*"]


def test_pairwise_is_the_same_at_k_of_two(localize) -> None:
    run = localize(["gpu:2", "path:4-7"], gpus=8, strategy="pairwise")
    assert run.verdict.names == ["gpu:2", "path:4-7"]
    assert len(run.phase(1)) == 28


def test_what_is_not_reproduced_is_not_accused() -> None:
    """A burst in the sweep: nothing in that probe is slow on its own, and neither is the probe again."""

    def latency(probe) -> float:
        return 60.0 if probe.number == 1 and probe.phase == 1 else 20.0

    run = drive(Settings(gpus=16, k=4, repeats=1), latency)
    assert run.verdict.outcome == "healthy"
    assert run.codes == {"not_reproduced"}


def test_a_probe_that_stays_slow_without_a_culprit_is_open() -> None:
    """Two things that are only slow together: honest answer, no accusation."""

    def latency(probe) -> float:
        return 60.0 if {0, 1, 2}.issubset(probe.members) else 20.0

    run = drive(Settings(gpus=16, k=4, repeats=1), latency)
    assert run.verdict.outcome == "inconclusive"
    assert "slow_but_unexplained" in run.codes
    assert not run.verdict.suspects


def test_hop_classes_are_compared_with_their_own_kind() -> None:
    """Probes within a host are three times as fast: without classes every cross-host probe looks slow."""
    hosts = tuple(r // 8 for r in range(16))

    def latency(probe) -> float:
        inside = len({hosts[r] for r in probe.members}) == 1
        return (10.0 if inside else 30.0) * (1.8 if {1, 2}.issubset(probe.members) else 1.0)

    for k in (2, 4):
        run = drive(Settings(gpus=16, k=k, repeats=1, hosts=hosts, baseline="low_decile"), latency)
        assert run.verdict.names == ["path:1-2"], k


@pytest.mark.parametrize(("n", "k", "per_host"), [(16, 4, 8), (16, 8, 8), (16, 8, 4), (32, 4, 8)])
@pytest.mark.parametrize("fault", [None, "gpu:5", "path:1-14"])
def test_without_a_topology_no_path_is_accused_for_its_length(
    n: int, k: int, per_host: int, fault: str | None
) -> None:
    """Seen on the emulator: few probes stay inside a host, they set the low baseline, and the rest looked slow."""
    slow = binary(*([fault] if fault else []), slowdown=4.0, healthy_ms=1.0)

    def latency(probe) -> float:
        inside = len({rank // per_host for rank in probe.members}) == 1
        return (4.5 if inside else 6.0) * slow(probe)

    run = drive(Settings(gpus=n, k=k, repeats=1, baseline="low_decile"), latency)
    if (n, k, per_host, fault) == (16, 8, 8, "path:1-14"):
        # One fast probe in six: two slow GPUs would look the same. No answer, and it says what is needed.
        assert (run.verdict.outcome, run.codes) == ("inconclusive", {"topology_needed"})
    else:
        assert run.verdict.names == ([fault] if fault else []), run.verdict


@pytest.mark.parametrize("seed", range(6))
def test_probes_of_mixed_paths_do_not_accuse_without_a_topology(seed: int) -> None:
    """As on the emulator: a probe's time grows with the paths between hosts at its busiest GPU, 1.33x at most."""
    rng = np.random.default_rng(seed)
    faults = binary("gpu:5", slowdown=2.0, healthy_ms=1.0)

    def latency(probe) -> float:
        away = max(sum(a // 8 != b // 8 for b in probe.members) for a in probe.members)
        slow_path = 40.0 if {1, 14}.issubset(probe.members) else 0.0
        return ((4.5 + 0.5 * away) * faults(probe) + slow_path) * float(np.exp(0.01 * rng.standard_normal()))

    run = drive(Settings(gpus=16, k=4, repeats=3, baseline="low_decile"), latency)
    assert run.verdict.names == ["gpu:5", "path:1-14"], run.verdict


def test_many_slow_paths_without_a_topology_are_not_accused() -> None:
    def latency(probe) -> float:
        return 60.0 if len({rank // 3 for rank in probe.members}) < len(probe.members) else 20.0

    blind = drive(Settings(gpus=12, k=2, repeats=1), latency)
    assert (blind.verdict.outcome, blind.codes) == ("inconclusive", {"topology_needed"})
    assert not blind.verdict.suspects
