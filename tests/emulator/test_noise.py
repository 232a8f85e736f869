import math
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.emulator.noise import Noise, uniform

KEYS = st.lists(st.tuples(st.integers(0, 127), st.integers(0, 10**6), st.integers(0, 4096)), min_size=1)


@given(KEYS, st.randoms(use_true_random=False))
def test_the_order_of_the_requests_does_not_matter(keys, random):
    noise = Noise(sigma=0.3, burst_rate=0.3, seed=7)
    shuffled = random.sample(keys, len(keys))
    assert noise.factor(keys) == noise.factor(shuffled)


def test_a_step_waits_for_its_slowest_request():
    noise = Noise(sigma=0.1, seed=3)
    single = [noise.factor([(rank, 0, 0)]) for rank in range(8)]
    assert noise.factor([(rank, 0, 0) for rank in range(8)]) == max(single)


def test_uniform_is_uniform_and_depends_on_every_part():
    values = sorted(uniform(1, rank, token) for rank in range(40) for token in range(50))
    assert len(set(values)) == 2000
    assert max(abs(value - (i + 0.5) / 2000) for i, value in enumerate(values)) < 0.04  # Kolmogorov, 0.1 %


def test_sigma_is_the_deviation_of_the_logarithm():
    noise = Noise(sigma=0.05, seed=1)
    logs = [math.log(noise.factor([(0, number, token)])) for number in range(40) for token in range(50)]
    assert abs(fmean(logs)) < 0.005
    assert 0.045 < stdev(logs) < 0.055


def test_a_burst_hits_whole_requests_at_its_rate_whatever_the_number_of_ranks():
    noise = Noise(sigma=0.0, burst_rate=0.1, burst_factor=4.0, seed=2)
    for ranks in (1, 16):
        steps = [noise.factor([(rank, number, 0) for rank in range(ranks)]) for number in range(1000)]
        assert set(steps) == {1.0, 4.0}
        assert 60 < steps.count(4.0) < 140
    hit = next(number for number in range(1000) if noise.factor([(0, number, 0)]) == 4.0)
    assert {noise.factor([(0, hit, token)]) for token in range(32)} == {4.0}


def test_seeds_differ_and_no_request_or_no_noise_gives_one():
    assert Noise(seed=1).factor([(0, 0, 0)]) != Noise(seed=2).factor([(0, 0, 0)])
    assert Noise(seed=1).factor([]) == 1.0
    assert Noise(sigma=0.0).factor([(0, 0, 0)]) == 1.0


@pytest.mark.parametrize("bad", [{"sigma": -0.1}, {"burst_rate": 1.1}, {"burst_factor": 0.5}])
def test_out_of_range(bad):
    with pytest.raises(ValueError, match=next(iter(bad)).split("_")[0]):
        Noise(**bad)
