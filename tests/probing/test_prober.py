"""The prober against a server whose every byte the test decides."""

import asyncio
from typing import get_args

import pytest

from app.localization.events import dump_log, load_log
from app.localization.session import Session
from app.probing import recorder
from app.probing.budget import Budget
from app.probing.errors import FailureCode
from app.probing.prober import MAX_DISCARDS, Prober
from app.probing.ranks import SEVERITY
from tests.outbound.servers import FakeServer, Hangup, closed_port, whole

from .support import (
    BOUND_S,
    STREAM_HEAD,
    access_to,
    chunk,
    echo,
    echoed,
    event,
    is_parking,
    lock_step,
    measure,
    no_limits,
    on_server,
    park_then,
    probe,
    settings,
    stream,
    token,
)


def test_every_failure_has_its_place_in_the_order_of_severity():
    assert sorted(SEVERITY) == sorted(get_args(FailureCode))


def test_a_measured_event_tells_latencies_window_and_tries():
    measured, server = on_server(park_then(lock_step(2)), probe(0, 1), decode_tokens=8)
    assert measured.type == "measured"
    assert measured.data["tbt_ms"] > 0
    assert measured.data["ttft_ms"] > 0
    assert measured.data["wall_ms"] > 7 * measured.data["tbt_ms"]
    assert 0.8 <= measured.data["window"] <= 1
    assert measured.data["discarded"] >= 0
    probes = [r for r in server.received if not is_parking(r)]
    assert sorted(r.rank for r in probes[-2:]) == [0, 1]
    for request in probes:
        assert request.document["prompt"] == [[7, 7], [8, 8]]
        assert request.document["max_tokens"] == 8


def test_a_smaller_probe_sends_its_sequences_to_every_receiver():
    _, server = on_server(echo, probe(0, 1, sequences=3), gpus=4, signal="ttft")
    assert server.received[-1].document["prompt"] == [[7, 7]] * 3 + [[8, 8]] * 3


def test_an_event_is_an_answer_that_the_log_and_the_session_take():
    session = Session(settings(2, signal="ttft", strategy="pairwise", repeats=1))

    async def run():
        async with FakeServer(echo) as server:
            return await measure(access_to(server.url, gpus=2), session.next(), signal="ttft")

    found = asyncio.run(run())
    assert load_log(dump_log([found])) == [found]
    session.observe(found)


# One wrong stream for each way in which the echo can be missing.
BROKEN_ECHOES = {
    "another token": (stream(*[token(i, [9] * 4) for i in range(2)]), "echo_broken"),
    "the other sequence's token": (stream(token(0, [8] * 4), token(1, [7] * 4)), "echo_broken"),
    "zeros, as vLLM answers NaN": (stream(*[token(i, [0] * 4) for i in range(2)]), "echo_broken"),
    "a huge token": (stream(*[token(i, [10**30] * 4) for i in range(2)]), "echo_broken"),
    "the last one wrong": (stream(token(0, [7, 7, 7, 8]), token(1, [8] * 4)), "echo_broken"),
    "too few": (stream(token(0, [7] * 4), token(1, [8] * 3)), "stream_cut"),
    "too many": (stream(token(0, [7] * 4), token(1, [8] * 5)), "stream_cut"),
    "one sequence only": (stream(token(0, [7] * 4)), "stream_cut"),
    "none": (stream(), "stream_cut"),
    "no token ids": (stream(*[token(i, None) for i in range(2)]), "stream_cut"),
    "a sequence nobody sent": (stream(token(0, [7] * 4), token(1, [8] * 4), token(2, [9])), "bad_response"),
    "a far sequence": (stream(token(0, [7] * 4), token(1, [8] * 4), token(10**30, [9])), "bad_response"),
    "token ids as text": (stream(token(0, "7777"), token(1, [8] * 4)), "bad_response"),
    "negative": (stream(token(0, [-7] * 4), token(1, [8] * 4)), "bad_response"),
    "true": (stream(token(0, [True] * 4), token(1, [8] * 4)), "bad_response"),
    "choices no list": (stream(event({"choices": 7})), "bad_response"),
    "nested garbage": (stream(event(b"[" * 50_000)), "bad_response"),
    "no JSON": (stream(event(b"}")), "bad_response"),
    "plain JSON": (whole(200, {"choices": [{"index": 0, "token_ids": [7] * 4}]}), "bad_response"),
    "no HTTP": (b"220 mail.test ESMTP\r\n\r\n", "bad_response"),
    "busy, in the stream": (stream(event({"error": {"code": 503}})), "overloaded"),
    "dead, in the stream": (stream(token(0, [7]), event({"error": {"code": 500}})), "engine_failed"),
    "too few ranks": (whole(400, b"data_parallel_rank 1 is out of range [0, 1)."), "rank_out_of_range"),
    "redirected": (whole(307, location="http://127.0.0.1:1/"), "request_rejected"),
}


@pytest.mark.parametrize(("answer", "code"), BROKEN_ECHOES.values(), ids=BROKEN_ECHOES)
def test_a_wrong_answer_of_one_rank_fails_the_probe_and_names_the_rank(answer, code):
    async def second_is_wrong(received, writer):
        writer.write(answer if received.rank == 1 else echoed(received))

    failed, _ = on_server(park_then(second_is_wrong), probe(0, 1), signal="ttft")
    assert (failed.type, failed.data["code"], failed.data["rank"]) == ("failed", code, 1)
    assert failed.data["in_flight"] == [0, 1]
    assert failed.data["detail"].startswith("rank 1: ")
    assert load_log(dump_log([failed])) == [failed]


def test_the_failure_that_says_most_decides():
    async def answer(received, writer):
        writer.write(stream(event({"error": {"code": [503, 500, 404][received.rank]}})))

    failed, _ = on_server(park_then(answer), probe(0, 1, 2), gpus=3)
    assert (failed.data["code"], failed.data["rank"]) == ("engine_failed", 1)


def test_a_hang_up_in_the_middle_is_a_lost_connection():
    async def answer(received, writer):
        writer.write(STREAM_HEAD + token(0, [7]))
        await writer.drain()
        raise Hangup

    failed, _ = on_server(park_then(answer), probe(0, 1))
    assert failed.data["code"] == "connection_lost"


def test_a_large_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(recorder, "MAX_BYTES", 1 << 18)

    async def endless(_, writer):
        writer.write(STREAM_HEAD)
        while True:
            writer.write(chunk(b": " + b"a" * 0x8000 + b"\n"))
            await writer.drain()

    (failed, after), server = on_server(park_then(endless), probe(0, 1), probe(0, 1))
    assert [e.data["code"] for e in (failed, after)] == ["response_too_large"] * 2
    assert server.connections == 4  # both were cut off, and both were opened again


def test_connections_closed_between_probes_are_opened_again_without_a_failure():
    async def echo_then_close(received, writer):
        await echo(received, writer)
        raise Hangup

    async def run():
        async with asyncio.timeout(BOUND_S), FakeServer(echo_then_close) as server:
            access, s = access_to(server.url, gpus=2), settings(2, signal="ttft")
            async with Prober(access, s, no_limits()) as prober:
                # No pause: the client has not read the end of the last connections when it needs them again.
                return [(await prober.measure(probe(0, 1))).type for _ in range(4)], server.connections

    types, connections = asyncio.run(run())
    assert types == ["measured"] * 4
    assert connections == 2 + 4 * 2


def test_connections_are_kept_between_probes():
    _, server = on_server(echo, *[probe(0, 1)] * 3, gpus=3, signal="ttft")
    assert server.connections == 3


def test_windows_that_are_too_short_are_taken_again_and_counted():
    measured, server = on_server(park_then(lock_step(2, apart=2)), probe(0, 1), decode_tokens=8)
    assert measured.type == "measured"
    assert measured.data["discarded"] >= 2
    assert measured.data["wall_ms"] > 2 * 8 * 4
    assert len([r for r in server.received if not is_parking(r)]) == 2 * (1 + measured.data["discarded"])


def test_a_window_that_stays_too_short_fails_the_probe():
    failed, server = on_server(park_then(lock_step(2, apart=99)), probe(0, 1))
    assert (failed.type, failed.data["code"]) == ("failed", "no_common_window")
    assert failed.data["discarded"] == MAX_DISCARDS
    assert failed.data["rank"] is None
    assert f"in {MAX_DISCARDS + 1} tries" in failed.data["detail"]
    assert len([r for r in server.received if not is_parking(r)]) == 2 * (MAX_DISCARDS + 1)


def test_the_window_does_not_matter_to_ttft():
    measured, _ = on_server(park_then(lock_step(2, apart=99)), probe(0, 1), signal="ttft")
    assert measured.type == "measured"
    assert measured.data["tbt_ms"] is None
    assert measured.data["discarded"] == 0


def test_one_token_a_sequence_is_enough_for_ttft():
    measured, _ = on_server(echo, probe(0, 1), signal="ttft", decode_tokens=1)
    assert measured.data["tbt_ms"] is None
    assert measured.data["ttft_ms"] >= 0


def test_idle_ranks_are_parked_once_and_senders_again_when_they_are_idle():
    async def run():
        async with asyncio.timeout(BOUND_S), FakeServer(echo) as server:
            s = settings(4, signal="ttft")
            async with Prober(access_to(server.url, gpus=4), s, no_limits()) as prober:
                found = []
                for members in ((0, 1), (0, 1), (2,), (3,), (2, 3), (0, 2)):
                    before = len(server.received)
                    await prober.measure(probe(*members))
                    new = server.received[before:]
                    found.append([(r.rank, r.document["prompt"]) for r in new if is_parking(r)])
                return found

    own = [[[7 + rank]] for rank in range(4)]
    assert asyncio.run(run()) == [
        [(rank, own[rank]) for rank in range(4)],  # warm-up, in order, every rank
        [],
        [(0, own[0]), (1, own[1])],
        [],  # rank 2 sent to itself only: it was parked all the while
        [],
        [(3, own[3])],
    ]


def test_warm_up_asks_one_rank_at_a_time():
    under_way = most = 0

    async def answer(received, writer):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        await echo(received, writer)
        under_way -= 1

    _, server = on_server(answer, probe(0), gpus=4, signal="ttft")
    assert [r.rank for r in server.received if is_parking(r)] == [0, 1, 2, 3]
    assert most == 1


def test_a_failed_warm_up_names_its_rank_and_is_taken_up_again():
    async def answer(received, writer):
        first = received.rank == 2 and len(server_received) == 0
        if first:
            server_received.append(received)
        writer.write(whole(503) if first else echoed(received))

    server_received = []
    (failed, measured), _ = on_server(answer, probe(0, 1), probe(0, 1), gpus=4, signal="ttft")
    assert (failed.data["code"], failed.data["rank"], failed.data["in_flight"]) == ("overloaded", 2, [2])
    assert measured.type == "measured"


def test_a_rank_refused_on_its_own_url_is_named_when_another_one_answers():
    async def run():
        async with FakeServer(echo) as a, FakeServer(echo) as b:
            access = access_to(a.url, f"http://127.0.0.1:{closed_port()}", b.url)
            return await measure(access, probe(0, 2), signal="ttft")

    failed = asyncio.run(run())
    assert (failed.data["code"], failed.data["rank"], failed.data["in_flight"]) == ("rank_refused", 1, [1])


def test_when_every_url_refuses_no_rank_is_named_for_it():
    access = access_to(*(f"http://127.0.0.1:{closed_port()}" for _ in range(3)))
    failed = asyncio.run(measure(access, probe(0, 1)))
    assert failed.data["code"] == "endpoint_unreachable"
    assert "every other rank" in failed.data["detail"]


class Counting(Budget):
    """Notes what was reserved, and never waits."""

    def __init__(self):
        super().__init__(None, None, now=lambda: 0.0)
        self.reserved = []

    def reserve(self, *, probes, tokens):
        self.reserved.append((probes, tokens))
        return 0.0


def test_the_budget_counts_every_try_and_the_tokens_of_parking():
    budget = Counting()

    async def run():
        async with asyncio.timeout(BOUND_S), FakeServer(echo) as server:
            s = settings(4, signal="ttft", prompt_tokens=3, decode_tokens=5)
            async with Prober(access_to(server.url, gpus=4), s, budget) as prober:
                for members in ((0, 1), (2, 3), (2, 3)):
                    await prober.measure(probe(*members))

    asyncio.run(run())
    tokens = 2 * 2 * (3 + 5)
    parked = 2  # one prompt token and one answered
    assert budget.reserved == [(1, tokens + 4 * parked), (1, tokens + 2 * parked), (1, tokens)]


def test_the_wait_for_the_budget_is_not_in_the_wall_time(monkeypatch):
    monkeypatch.setattr(Counting, "reserve", lambda self, **_: 0.5)

    async def run():
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(BOUND_S), FakeServer(echo) as server:
            prober = Prober(access_to(server.url, gpus=2), settings(2, signal="ttft"), Counting())
            started = loop.time()
            measured = await prober.measure(probe(0, 1))
            elapsed_s = loop.time() - started
            prober.close()
        return measured.data["wall_ms"], 1000 * elapsed_s

    wall_ms, elapsed_ms = asyncio.run(run())
    assert elapsed_ms - wall_ms >= 499


def test_leaving_drops_what_is_under_way():
    async def run():
        reached, gone = asyncio.Event(), asyncio.Event()

        async def watch(received, _):
            reached.set()
            assert await received.reader.read() == b""
            gone.set()

        async with asyncio.timeout(BOUND_S), FakeServer(park_then(watch)) as server:
            async with Prober(access_to(server.url, gpus=2), settings(2), no_limits()) as prober:
                measuring = asyncio.create_task(prober.measure(probe(0)))
                await reached.wait()
                measuring.cancel()
            await gone.wait()
            with pytest.raises(asyncio.CancelledError):
                await measuring

    asyncio.run(run())


def test_every_request_names_the_model_and_carries_the_bearer():
    _, server = on_server(echo, probe(0), signal="ttft", access={"bearer": "s3cret"})
    for request in server.received:
        assert request.document["model"] == "probe"
        assert request.headers["authorization"] == "Bearer s3cret"
