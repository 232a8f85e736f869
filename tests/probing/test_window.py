"""TBT and TTFT from token times."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.probing.window import MIN_SHARE, common_window, flatten

times = st.lists(st.integers(0, 10_000), min_size=1, max_size=12).map(lambda t: [x / 64 for x in sorted(t)])
streams = st.lists(times, min_size=1, max_size=5)


def test_one_stream_is_its_own_window():
    window = common_window([[1.0, 1.5, 2.5]], 0.25)
    assert (window.tbt_ms, window.ttft_ms, window.skew_ms, window.share) == (750.0, 750.0, 0.0, 1.0)
    assert window.usable


def test_only_the_common_part_counts():
    early = [0.0, 9.0, 10.0, 11.0, 12.0]  # a long gap before the other one begins
    late = [9.5, 10.5, 11.5, 12.5]
    window = common_window([early, late], 0.0)
    assert window.tbt_ms == 1000.0
    assert window.ttft_ms == window.skew_ms == 9500.0
    assert window.share == pytest.approx(2.5 / 3)


def test_streams_that_never_decode_together_have_no_tbt():
    window = common_window([[0.0, 1.0], [2.0, 3.0]], 0.0)
    assert window.tbt_ms is None
    assert window.share == 0.0
    assert not window.usable


def test_one_stream_without_two_tokens_in_the_window_leaves_no_tbt():
    assert common_window([[0.0, 1.0, 2.0, 3.0], [0.0, 3.0], [0.5, 3.0]], 0.0).tbt_ms is None


@pytest.mark.parametrize("sequences", [[[1.0]], [[1.0, 1.0, 1.0]], [[1.0], [1.0, 2.0]]])
def test_a_single_instant_has_no_tbt_worth_judging(sequences):
    window = common_window(sequences, 0.0)
    assert not window.usable
    assert window.ttft_ms == 1000.0


def test_a_window_just_long_enough_is_usable():
    def shifted(by):
        return common_window(
            [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [x + by for x in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)]], 0.0
        )

    assert shifted(1.0).share == MIN_SHARE
    assert shifted(1.0).usable
    assert not shifted(1.25).usable


@settings(deadline=None, max_examples=40)
@given(streams, st.randoms(use_true_random=False))
def test_the_order_of_sequences_does_not_matter(sequences, random):
    shuffled = list(sequences)
    random.shuffle(shuffled)
    a, b = common_window(sequences, 0.0), common_window(shuffled, 0.0)
    assert a.tbt_ms == (None if b.tbt_ms is None else pytest.approx(b.tbt_ms))
    assert (a.ttft_ms, a.skew_ms, a.share) == (b.ttft_ms, b.skew_ms, b.share)


@settings(deadline=None, max_examples=40)
@given(streams, st.integers(-1000, 1000))
def test_the_clock_s_origin_does_not_matter(sequences, by):
    # Times are multiples of 1/64 s, so that shifting them is exact.
    shifted = [[x + by for x in sequence] for sequence in sequences]
    assert common_window(sequences, 0.0) == common_window(shifted, float(by))


@settings(deadline=None, max_examples=40)
@given(streams)
def test_values_are_in_range(sequences):
    window = common_window(sequences, 0.0)
    assert 0.0 <= window.share <= 1.0
    assert 0.0 <= window.skew_ms <= window.ttft_ms
    assert window.tbt_ms is None or window.tbt_ms >= 0.0
    assert not window.usable or window.share >= MIN_SHARE


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 64), st.integers(2, 40), st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_lock_step_streams_have_the_step_time_whenever_they_began(step, tokens, starts):
    sequences = [[(first + i) * step / 64 for i in range(tokens)] for first in starts]
    assume(max(starts) - min(starts) + 2 <= tokens)
    assert common_window(sequences, 0.0).tbt_ms == pytest.approx(1000 * step / 64)


@settings(deadline=None, max_examples=40)
@given(streams, st.integers(2, 8))
def test_time_scales(sequences, factor):
    a = common_window(sequences, 0.0)
    b = common_window([[factor * x for x in sequence] for sequence in sequences], 0.0)
    assert b.tbt_ms == (None if a.tbt_ms is None else pytest.approx(factor * a.tbt_ms))
    assert b.share == pytest.approx(a.share)


def tokens_with_a_burst(before, together, after):
    """A token a second, but those of the burst come with its last one."""
    end = before + together
    return [float(i if not before <= i < end else end - 1) for i in range(end + after)]


@pytest.mark.parametrize(("before", "together", "after"), [(0, 4, 6), (0, 6, 6), (3, 4, 3), (5, 5, 0)])
def test_a_burst_does_not_make_a_stream_faster(before, together, after):
    assert common_window([tokens_with_a_burst(before, together, after)], 0.0).tbt_ms == pytest.approx(1000)


def test_a_stream_that_mostly_came_in_its_first_burst_is_no_measurement():
    """Seen on a starved server: 12 of 16 tokens at once, then a few, at a fifth of the real time between them."""
    window = common_window([tokens_with_a_burst(0, 12, 4)], 0.0)
    assert window.tbt_ms is None
    assert not window.usable


def test_steps_that_are_slow_at_times_are_no_bursts():
    # Steps of 5 and of 35 ms: what a fault that comes and goes does.
    times = [0.0, 0.005, 0.01, 0.015, 0.05, 0.055, 0.06, 0.095, 0.1]
    assert common_window([times], 0.0).tbt_ms == pytest.approx(12.5)


def test_all_sequences_of_all_senders_are_compared():
    assert flatten([{0: [1.0], 1: [2.0]}, {0: [3.0]}]) == [[1.0], [2.0], [3.0]]


def test_a_stream_that_came_in_one_burst_is_no_measurement():
    """Seen on a starved machine: the whole stream within microseconds, which as a baseline accuses everything."""
    spread = common_window([[1.0, 1.01, 1.02], [1.0, 1.01, 1.02]], 0.0)
    burst = common_window([[1.0, 1.00001, 1.00002], [1.0, 1.00001, 1.00002]], 0.0)
    assert spread.share == burst.share == 1.0
    assert spread.usable
    assert not burst.usable
