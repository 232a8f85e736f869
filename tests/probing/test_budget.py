"""Token buckets on a made-up clock."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.probing.budget import Bucket, Budget


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def spend(bucket, clock, amount):
    """Take, wait as told, and return the wait."""
    wait = bucket.take(amount)
    clock.now += wait
    return wait


def test_a_steady_stream_is_spaced_at_the_rate():
    clock = Clock()
    bucket = Bucket(10.0, clock)
    assert [round(spend(bucket, clock, 1), 6) for _ in range(5)] == [0.0, 0.1, 0.1, 0.1, 0.1]


def test_what_was_not_used_is_kept_for_one_second_only():
    clock = Clock()
    bucket = Bucket(10.0, clock)
    clock.now += 3600
    assert [spend(bucket, clock, 1) for _ in range(10)] == [0.0] * 10
    assert spend(bucket, clock, 1) == pytest.approx(0.1)


def test_a_new_bucket_gives_at_most_one():
    assert Bucket(1000.0, Clock()).take(1) == 0.0
    assert Bucket(1000.0, Clock()).take(1000) == pytest.approx(0.999)


def test_a_slow_rate_waits_from_the_start():
    assert Bucket(0.1, Clock()).take(1) == pytest.approx(9.0)


def test_an_amount_above_the_rate_goes_through_and_is_paid_back():
    clock = Clock()
    bucket = Bucket(100.0, clock)
    assert spend(bucket, clock, 1000) == pytest.approx(0.99)  # a full bucket must do, it never holds more
    assert spend(bucket, clock, 100) == pytest.approx(10.0)


@settings(deadline=None, max_examples=40)
@given(
    st.floats(0.05, 1000),
    st.lists(st.tuples(st.floats(0.01, 5000), st.floats(0, 30)), min_size=1, max_size=40),
)
def test_the_long_run_rate_is_never_above_the_limit(rate, steps):
    clock = Clock()
    bucket, started, taken = Bucket(rate, clock), clock.now, 0.0
    largest_hold = max(rate, 1.0)
    for amount, pause in steps:
        spend(bucket, clock, amount)
        taken += amount
        overdrawn = max(0.0, amount - largest_hold)
        assert taken <= min(1.0, rate) + rate * (clock.now - started) + overdrawn + 1e-6 * taken
        clock.now += pause


@settings(deadline=None, max_examples=40)
@given(st.floats(0.5, 1000), st.lists(st.floats(0.01, 3000), min_size=2, max_size=30))
def test_a_user_without_pauses_is_not_held_below_the_limit(rate, amounts):
    clock = Clock()
    bucket, started = Bucket(rate, clock), clock.now
    for amount in amounts:
        spend(bucket, clock, amount)
    hold = max(rate, 1.0)
    assert clock.now - started <= sum(amounts) / rate + hold / rate + 1e-6


def test_the_longer_wait_of_both_buckets_counts():
    clock = Clock()
    budget = Budget(10.0, 100.0, now=clock)
    assert budget.reserve(probes=1, tokens=50) == pytest.approx(0.49)
    clock.now += 0.49
    assert budget.reserve(probes=1, tokens=0) == 0.0
    assert budget.reserve(probes=0, tokens=1) == pytest.approx(0.01)
    assert budget.reserve(probes=5, tokens=0) == pytest.approx(0.11)


def test_tokens_of_parking_alone_use_no_probe():
    clock = Clock()
    budget = Budget(1.0, None, now=clock)
    assert budget.reserve(probes=0, tokens=10**9) == 0.0
    assert budget.reserve(probes=1, tokens=10**9) == 0.0
    assert budget.reserve(probes=1, tokens=0) == pytest.approx(1.0)


def test_without_limits_nothing_waits():
    async def run():
        budget = Budget(None, None)
        return [budget.reserve(probes=1000, tokens=10**9) for _ in range(3)]

    assert asyncio.run(run()) == [0.0] * 3


def test_the_event_loop_s_clock_is_the_default():
    async def run():
        return Budget(2.0, None).reserve(probes=2, tokens=0)

    assert 0.0 < asyncio.run(run()) <= 0.5
