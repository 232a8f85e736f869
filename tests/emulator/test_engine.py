"""The lock-step engine on a made-up clock: exact times, no waiting."""

import pytest

from app.emulator.noise import Noise
from app.emulator.requests import EngineBusyError, EngineDeadError

from .support import FakeClock, Lab, in_lab


def dummies(gpus, **rows):
    return {**{u: {u: 1} for u in range(gpus)}, **{int(k[1:]): v for k, v in rows.items()}}


def test_prefill_is_one_step_with_all_prompt_tokens_then_one_step_per_token():
    async def scenario(lab: Lab):
        reply = lab.submit(0, [[1] * 10, [2] * 4], tokens=3)
        await lab.settle()
        prefill = lab.model.work_ms(dummies(4, r0={1: 10, 2: 4}))
        decode = lab.model.work_ms(dummies(4, r0={1: 1, 2: 1}))
        expected = [prefill, prefill + decode, prefill + 2 * decode]
        assert reply.times[0] == reply.times[1] == pytest.approx([t / 1e3 for t in expected])

    in_lab(scenario)


def test_requests_that_arrive_during_a_step_join_the_next_one():
    async def scenario(lab: Lab):
        replies = {}
        first = lab.submit(0, [[0] * 8], tokens=3)
        lab.clock.at(0.001, lambda: replies.update(late=lab.submit(1, [[1]], tokens=2)))
        await lab.settle()
        prefill = (3 + 8 * 1.25) / 1e3
        assert first.times[0][0] == pytest.approx(prefill)
        assert replies["late"].times[0] == first.times[0][1:]  # both later steps are shared

    in_lab(scenario)


def test_all_ranks_wait_for_the_slowest():
    async def scenario(lab: Lab):
        fast, slow = lab.submit(0, [[0]]), lab.submit(1, [[3]])
        await lab.settle()
        assert fast.times == slow.times
        assert fast.gaps_ms == [pytest.approx(3 + 10 * 1.25 * 2 + 0.5)] * 4  # rank 3's own dummy too

    in_lab(scenario, faults=["gpu:3*10"])


def test_an_idle_rank_keeps_sending_its_stale_token_until_it_is_parked():
    async def probe(lab: Lab):
        reply = lab.submit(0, [[1]])
        await lab.settle()
        return reply.gaps_ms[0]

    async def scenario(lab: Lab):
        clean = await probe(lab)
        lab.submit(2, [[3]], tokens=1)  # leaves token 3 on rank 2: the slow path 2-3
        await lab.settle()
        assert await probe(lab) == pytest.approx(clean + 100)
        lab.submit(2, [[2]], tokens=1)  # parked
        await lab.settle()
        assert await probe(lab) == pytest.approx(clean)

    in_lab(scenario, faults=["path:2-3+50ms"])


@pytest.mark.parametrize(
    ("fault", "excess_ms"),
    [
        ("gpu:1*5", 4 * 5 * 1.25),
        ("gpu:1+30ms", 30),
        ("path:0-1*5", 4 * 4 * 0.5),
        ("path:0>1*5", 2 * 4 * 0.5),
        ("path:1>0*5", 2 * 4 * 0.5),
        ("path:0-1+30ms", 60),
        ("path:0>1+30ms", 30),
        ("gpu:2*5", 0),
        ("path:1-2+30ms", 0),
    ],
)
def test_what_each_fault_adds_to_the_inter_token_time(fault, excess_ms):
    async def scenario(lab: Lab):
        healthy = lab.submit(0, [[1]] * 4)
        await lab.settle()
        lab.set_faults(fault)
        faulty = lab.submit(0, [[1]] * 4)
        await lab.settle()
        assert faulty.gaps_ms[0] - healthy.gaps_ms[0] == pytest.approx(excess_ms)

    # GPU 1 receives four tokens and its own dummy; GPU 2's dummy, slowed five times, hides behind them.
    in_lab(scenario)


def test_faults_change_from_the_next_step_on():
    async def scenario(lab: Lab):
        reply = lab.submit(0, [[1]], tokens=4)
        lab.clock.at(0.010, lambda: lab.set_faults("path:0-1+20ms"))
        await lab.settle()
        healthy = 3 + 2 * 1.25 + 0.5
        assert reply.gaps_ms == [healthy, pytest.approx(healthy + 40), pytest.approx(healthy + 40)]

    in_lab(scenario)


def test_sequences_beyond_max_num_seqs_wait_their_turn():
    async def scenario(lab: Lab):
        reply = lab.submit(0, [[0]] * 3, tokens=2)
        after = lab.submit(0, [[0]], tokens=2)
        await lab.settle()
        assert reply.times[0] == reply.times[1]
        assert reply.times[2][0] > reply.times[0][1]
        assert after.times[0] == reply.times[2]

    in_lab(scenario, max_num_seqs=2)


def test_noise_does_not_depend_on_the_order_of_arrival():
    def gaps(order):
        seen = {}

        async def scenario(lab: Lab):
            replies = {rank: lab.submit(rank, [[(rank + 1) % 4]], tokens=8) for rank in order}
            await lab.settle()
            seen.update({rank: reply.gaps_ms for rank, reply in replies.items()})

        in_lab(scenario, noise=Noise(sigma=0.3, burst_rate=0.2, seed=5))
        return seen

    assert gaps([0, 1, 2, 3]) == gaps([3, 1, 0, 2])
    assert len(set(gaps([0, 1, 2, 3])[0])) > 1


def test_a_hang_freezes_every_rank_until_it_is_removed():
    async def scenario(lab: Lab):
        bystander = lab.submit(0, [[1]], tokens=3)
        stuck = lab.submit(3, [[2]], tokens=3)
        await lab.settle()
        assert (bystander.times, stuck.times) == ({}, {})
        assert lab.engine.healthy
        lab.set_faults("gpu:2!hang", "gpu:0*2")  # another fault, the same hang
        await lab.settle()
        assert bystander.times == {}
        lab.set_faults()
        await lab.settle()
        assert len(bystander.times[0]) == len(stuck.times[0]) == 3

    in_lab(scenario, faults=["gpu:2!hang"])


def test_a_hang_strikes_only_steps_that_involve_its_gpu():
    async def scenario(lab: Lab):
        elsewhere = lab.submit(0, [[1]])
        await lab.settle()
        assert len(elsewhere.times[0]) == 5
        sending = lab.submit(2, [[0]])
        await lab.settle()
        assert sending.times == {}

    in_lab(scenario, faults=["gpu:2!hang"])


def test_an_aborted_request_does_not_free_a_hung_engine():
    async def scenario(lab: Lab):
        reply = lab.submit(0, [[2]])
        await lab.settle()
        lab.engine.abort(lab.engine.ranks[0].running[0].request)
        other = lab.submit(1, [[1]])
        await lab.settle()
        assert other.times == {}
        lab.set_faults()
        await lab.settle()
        assert reply.times == {}
        assert len(other.times[0]) == 5

    in_lab(scenario, faults=["gpu:2!hang"])


def test_an_error_ends_all_requests_and_the_engine_recovers():
    async def scenario(lab: Lab):
        lab.submit(3, [[1]], tokens=1)  # leaves a stale token
        await lab.settle()
        lab.set_faults("gpu:2!error")
        broken, bystander = lab.submit(0, [[2]]), lab.submit(1, [[1]])
        await lab.settle()
        assert isinstance(broken.error, EngineDeadError)
        assert isinstance(bystander.error, EngineDeadError)
        assert not lab.engine.healthy
        with pytest.raises(EngineDeadError):
            lab.submit(0, [[0]])
        lab.clock.time += 0.5
        assert lab.engine.healthy
        assert lab.engine.ranks[3].stale == (3,)
        after = lab.submit(0, [[1]])
        await lab.settle()
        assert len(after.times[0]) == 5

    in_lab(scenario)


def test_where_ranks_have_ports_an_error_does_not_break_the_step():
    async def scenario(lab: Lab):
        reply = lab.submit(0, [[2]])
        await lab.settle()
        assert len(reply.times[0]) == 5

    in_lab(scenario, faults=["gpu:2!error"], errors_in_step=False)


def test_too_many_waiting_requests_are_refused():
    async def scenario(lab: Lab):
        for rank in (0, 1):
            lab.submit(rank, [[rank]] * 8)
        with pytest.raises(EngineBusyError):
            lab.submit(2, [[2]])
        await lab.settle()
        lab.submit(2, [[2]])

    in_lab(scenario, max_num_queued=2)


def test_requests_without_a_rank_take_turns():
    async def scenario(lab: Lab):
        for _ in range(6):
            lab.submit(None, [[0]])
        await lab.settle()
        assert [rank.requests for rank in lab.engine.ranks] == [2, 2, 1, 1]

    in_lab(scenario)


def test_an_aborted_request_leaves_the_batch():
    async def scenario(lab: Lab):
        gone, stays = lab.submit(0, [[1]], tokens=50), lab.submit(1, [[2]], tokens=6)
        lab.clock.at(0.020, lambda: lab.engine.abort(lab.engine.ranks[0].running[0].request))
        await lab.settle()
        assert len(gone.times[0]) < 6
        assert len(stays.times[0]) == 6
        assert lab.engine.unfinished == 0

    in_lab(scenario)


def test_late_wake_ups_do_not_add_up():
    async def scenario(lab: Lab):
        reply = lab.submit(0, [[0]], tokens=41)
        await lab.settle()
        assert reply.times[0][-1] - reply.times[0][0] == pytest.approx(40 * 4.25e-3)

    in_lab(scenario, clock=FakeClock(late_s=0.002))


def test_a_long_pause_is_not_caught_up():
    async def scenario(lab: Lab):
        reply = lab.submit(0, [[0]], tokens=4)
        lab.clock.at(0.001, lambda: setattr(lab.clock, "time", 5.0))
        await lab.settle()
        assert reply.times[0][0] == 5.0
        assert reply.gaps_ms == [pytest.approx(4.25)] * 3

    in_lab(scenario)


def test_the_engine_sleeps_when_nothing_is_active():
    async def scenario(lab: Lab):
        lab.submit(0, [[0]], tokens=2)
        await lab.settle()
        assert lab.engine.observer.steps == 2
        assert lab.engine.unfinished == 0

    in_lab(scenario)


def test_counters_follow_the_tokens():
    lab = in_lab(_two_sequences)
    counters = lab.engine.observer.ranks[0]
    assert (counters.prompt_tokens, counters.generation_tokens, counters.finished) == (6, 8, 2)
    assert sum(counters.ttft.counts) == 2
    assert sum(counters.tbt.counts) == 6
    assert counters.tbt.sum == pytest.approx(6 * (3 + 2 * 1.25 + 0.5) / 1e3)


async def _two_sequences(lab: Lab):
    lab.submit(0, [[0] * 3, [1] * 3], tokens=4)
    await lab.settle()
