"""Requests without an answer: what is censored, what is under test, and who is not to blame."""

import asyncio

import pytest

from app.localization.events import dump_log, load_log
from app.localization.session import MAX_FAILURES_IN_A_ROW, Session
from tests.outbound.servers import silent

from .support import echo, is_parking, on_server, park_then, probe, settings

DEADLINE = {"probe_timeout_s": 0.4}


def hung(*ranks, once=False):
    """Ranks whose probes (not their parking) find no answer, once or for ever."""
    left = set(ranks)

    async def answer(received, writer):
        if received.rank in left:
            if once:
                left.discard(received.rank)
            await silent(received, writer)
        await echo(received, writer)

    return answer


def test_a_probe_without_an_answer_is_censored_and_another_rank_tells_that_the_engine_lives():
    late, server = on_server(park_then(hung(1)), probe(0, 1), gpus=4, signal="ttft", access=DEADLINE)
    assert (late.type, late.data["engine_alive"], late.data["in_flight"]) == ("timed_out", True, [0, 1])
    assert 400 <= late.data["waited_ms"] <= late.data["wall_ms"]
    assert server.received[-1].rank == 2
    assert is_parking(server.received[-1])
    assert load_log(dump_log([late])) == [late]


def test_a_probe_of_every_rank_asks_one_of_its_own():
    late, server = on_server(park_then(hung(1)), probe(0, 1), signal="ttft", access=DEADLINE)
    assert late.data["engine_alive"] is True
    assert server.received[-1].rank == 0


def test_when_nobody_answers_the_engine_is_not_alive():
    frozen = False

    async def answer(received, writer):
        nonlocal frozen
        frozen = frozen or not is_parking(received)
        await (silent if frozen else echo)(received, writer)

    late, _ = on_server(answer, probe(0, 1), gpus=4, signal="ttft", access=DEADLINE)
    assert (late.type, late.data["engine_alive"], late.data["in_flight"]) == ("timed_out", False, [0, 1])


def test_the_waited_time_is_the_probe_s_own():
    async def answer(received, writer):
        if is_parking(received):
            await asyncio.sleep(0.05)
            await echo(received, writer)
        else:
            await silent(received, writer)

    late, _ = on_server(answer, probe(0, 1), gpus=5, signal="ttft", access=DEADLINE)
    assert late.data["wall_ms"] - late.data["waited_ms"] >= 250  # five ranks were warmed up before


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_rank_that_hangs_while_it_is_parked_does_not_make_the_probe_slow(rank):
    """The engine lives and the probe was never sent: its GPUs must not be accused."""

    async def answer(received, writer):
        await (silent if received.rank == rank else echo)(received, writer)

    failed, server = on_server(answer, probe(0, 1), gpus=4, signal="ttft", access=DEADLINE)
    assert (failed.type, failed.data["code"]) == ("failed", "parking_timed_out")
    assert (failed.data["rank"], failed.data["in_flight"]) == (rank, [rank])
    assert server.received[-1].rank != rank
    session = Session(settings(4, strategy="pairwise", signal="ttft"))
    pending = session.next()
    event = type(failed)("failed", {**failed.data, **{k: getattr(pending, k) for k in ("number", "purpose")}})
    for _ in range(MAX_FAILURES_IN_A_ROW):
        assert session.next() == pending
        session.observe(event)
    verdict = session.next()
    assert verdict.outcome == "inconclusive"
    assert f"GPU {rank} was under test" in verdict.to_dict()["reasons"][0]["text"]


def test_a_hang_while_parking_that_freezes_everybody_is_an_engine_that_hung():
    frozen = False

    async def answer(received, writer):
        nonlocal frozen
        frozen = frozen or received.rank == 2
        await (silent if frozen else echo)(received, writer)

    late, _ = on_server(answer, probe(0, 1), gpus=4, signal="ttft", access=DEADLINE)
    assert (late.type, late.data["engine_alive"], late.data["in_flight"]) == ("timed_out", False, [2])


def test_a_censored_probe_leaves_nothing_behind():
    (late, measured), server = on_server(
        park_then(hung(1, once=True)), probe(0, 1), probe(0, 1), gpus=4, signal="ttft", access=DEADLINE
    )
    assert late.type == "timed_out"
    assert measured.type == "measured"
    assert server.connections == 4 + 2  # the two whose requests were dropped
