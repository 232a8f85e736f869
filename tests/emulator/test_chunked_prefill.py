"""max_num_batched_tokens: prompts are cut into chunks, and decoding goes on beside them."""

from collections import Counter

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.emulator.replica import EmulatedReplica
from app.emulator.requests import Rank, Request, make_sequences

from .support import Lab, completion, in_lab


def sequences(lengths, limit=3):
    request = Request(0, 0, None, 0.0, len(lengths))
    prompts = [[i % 7 for i in range(length)] for length in lengths]
    return make_sequences(request, prompts, [limit] * len(lengths), lambda token: (token,))


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 6), st.integers(0, 20))
def test_no_step_exceeds_the_limit_no_running_sequence_starves_and_no_token_is_lost(lengths, seqs, extra):
    batched = seqs + extra
    rank = Rank(stale=(0,))
    waiting = sequences(lengths)
    rank.waiting.extend(waiting)
    sent = {sequence.index: Counter() for sequence in waiting}
    while True:
        rank.schedule(seqs, batched)
        if not rank.running:
            break
        tokens = [sequence.chunk or 1 for sequence in rank.running]
        assert sum(tokens) <= batched
        assert len(tokens) <= seqs
        for sequence in rank.running:
            if sequence.prompt_left:
                assert sequence.chunk > 0
                sent[sequence.index].update(sequence.step_row())
            sequence.advance()
        rank.running = [sequence for sequence in rank.running if not sequence.finished]
    assert not rank.waiting
    for sequence in waiting:
        assert sent[sequence.index] == Counter(sequence.prompt)
        assert sequence.produced == sequence.limit


def test_a_long_prompt_takes_several_steps_before_its_first_token():
    async def scenario(lab: Lab):
        reply = lab.submit(0, [[1] * 4 + [2] * 6], tokens=2)
        await lab.settle()
        idle = {u: {u: 1} for u in (1, 2, 3)}
        chunks = [{1: 4}, {2: 4}, {2: 2}]
        prefill = sum(lab.model.work_ms({**idle, 0: row}) for row in chunks)
        decode = lab.model.work_ms({**idle, 0: {2: 1}})
        assert reply.times[0] == pytest.approx([prefill / 1e3, (prefill + decode) / 1e3])

    in_lab(scenario, max_num_batched_tokens=4, max_num_seqs=4)


def test_decoding_goes_on_beside_a_prompt_in_chunks():
    async def scenario(lab: Lab):
        first = lab.submit(0, [[0]], tokens=8)
        lab.clock.at(0.005, lambda: lab.submit(0, [[1] * 9], tokens=2))
        await lab.settle()
        decode = 3 + 1.25 + 0.0
        beside = 3 + 4 * 1.25 + 3 * 0.5  # three prompt tokens to GPU 1, and its own dummy
        # what comes during the second step joins the third; the fourth token of a step is the decoding one's
        assert first.gaps_ms[:4] == [pytest.approx(decode), *[pytest.approx(beside)] * 3]

    in_lab(scenario, max_num_batched_tokens=4, max_num_seqs=4)


def test_a_stale_token_is_the_first_of_the_last_chunk():
    async def scenario(lab: Lab):
        lab.submit(2, [[1] * 4 + [3] * 2], tokens=1)
        await lab.settle()
        assert lab.engine.ranks[2].stale == (3,)

    in_lab(scenario, max_num_batched_tokens=4, max_num_seqs=4)


def test_the_manifest_s_limit_holds_over_http():
    with EmulatedReplica(gpus=2, noise_sigma=0.0, max_num_seqs=8, max_num_batched_tokens=16) as replica:
        token = replica.manifest["gpu_tokens"][1]
        with httpx.Client(base_url=replica.control_url, trust_env=False, timeout=20.0) as client:
            assert completion([token] * 100, rank=0, max_tokens=2, client=client).status_code == 200
        assert replica.stats()["steps"] == 7 + 1  # ceil(100 / 16) chunks, and a decode step


def test_with_fewer_tokens_than_sequences_as_many_run_as_get_one_each():
    async def scenario(lab: Lab):
        reply = lab.submit(0, [[0]] * 5, tokens=3)
        await lab.settle()
        assert [len(times) for times in reply.times.values()] == [3] * 5
        first, second, third = reply.times[0], reply.times[2], reply.times[4]
        assert (reply.times[1], reply.times[3]) == (first, second)
        assert second[0] > first[-1]
        assert third[0] > second[-1]

    in_lab(scenario, max_num_batched_tokens=2)


def test_sequences_of_one_request_that_begin_in_different_steps_are_counted_each():
    async def scenario(lab: Lab):
        lab.submit(0, [[1], [2] * 6], tokens=3)
        await lab.settle()
        counters = lab.engine.observer.ranks[0]
        assert (counters.prompt_tokens, counters.generation_tokens, counters.finished) == (7, 6, 2)
        assert sum(counters.ttft.counts) == 2
        assert sum(counters.tbt.counts) == 4

    in_lab(scenario, max_num_batched_tokens=4, max_num_seqs=4)
