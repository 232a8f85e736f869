"""A sender that several URLs reach: what goes which way, what is counted, and a way that fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.outbound import parse_url
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.probing.prober import Prober
from app.probing.rails import Measured
from app.selection.record import Selection, SelectionRecord
from tests.outbound.servers import Answer, FakeServer, closed_port

from .support import BOUND_S, GUARD, echo, echoed, is_parking, no_limits, park_then, probe, settings

RANKS = (0, 1)
# A hidden state of 3 bytes, 6 tokens a sequence.
BYTES = 3 * (2 + 4)


def two_ways(*urls: str, **more: Any) -> ReplicaAccess:
    """Ranks 0 and 1 behind every URL."""
    endpoints = [ProbeEndpoint(parse_url(url), RANKS, "header", f"way-{i}") for i, url in enumerate(urls)]
    return ReplicaAccess("probe", [7, 8], endpoints, GUARD, token_bytes=3, **more)


async def run(access: ReplicaAccess, *probes: Any, **options: Any) -> tuple[list[Any], Measured]:
    async with (
        asyncio.timeout(BOUND_S),
        Prober(access, settings(2, signal="ttft"), no_limits(), **options) as running,
    ):
        return [await running.measure(p) for p in probes], running.selection()


def recorded(measured: Measured) -> SelectionRecord:
    assert measured.record is not None, measured.failure
    return measured.record


def slices(selection: Selection) -> list[int]:
    return [device.selected_slices for device in selection.devices]


def sent(server: FakeServer) -> int:
    """Sequences of probes that a server got."""
    return sum(len(r.document["prompt"]) for r in server.received if not is_parking(r))


def test_what_is_counted_is_what_was_sent_and_no_warm_up() -> None:
    async def both() -> tuple[list[Any], Measured, list[int]]:
        async with FakeServer(echo) as a, FakeServer(echo) as b:
            events, measured = await run(two_ways(a.url, b.url), *[probe(0, 1, sequences=2)] * 3)
            assert [sum(map(is_parking, server.received)) for server in (a, b)] == [2, 2]  # every way is warm
            return events, measured, [sent(a), sent(b)]

    events, measured, carried = asyncio.run(both())
    record = recorded(measured)
    assert slices(record.selection) == carried
    assert sum(carried) == 3 * 2 * 4  # 3 probes of 2 senders with 2 sequences to each of 2 receivers
    assert [d.selected_bytes for d in record.selection.devices] == [n * BYTES for n in carried]
    assert [(d.dev_id, d.device_name) for d in record.selection.devices] == [(0, "way-0"), (1, "way-1")]
    assert record.selection.multi_path_allocations == record.selection.allocations == 6
    assert record.workload == ("faultsense", BYTES, 4, 2)
    assert [event.data["rails"] for event in events] == [[0, 1]] * 3
    assert measured.target is not None
    assert measured.target.aggregate_transferred_bytes == record.selection.selected_bytes
    assert measured.target.aggregate_operations == sum(t["operations"] for t in measured.target.targets)


def test_endpoints_that_state_the_same_rail_are_told_apart() -> None:
    async def named() -> list[str]:
        async with FakeServer(echo) as a, FakeServer(echo) as b:
            access = two_ways(a.url, b.url)
            same = [replace(endpoint, rail="nic") for endpoint in access.endpoints]
            _, measured = await run(replace(access, endpoints=same), probe(0, 1))
            return [device.device_name for device in recorded(measured).selection.devices]

    assert asyncio.run(named()) == ["nic#0", "nic#1"]


def test_a_way_that_answers_late_gets_less_and_going_round_does_not_care() -> None:
    async def late(received: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(echoed(received))

    async def shares(rails: Any) -> list[int]:
        async with FakeServer(echo) as quick, FakeServer(park_then(late)) as slow:
            access = two_ways(quick.url, slow.url)
            _, measured = await run(access, *[probe(0, 1, sequences=4)] * 6, rails=rails)
            return slices(recorded(measured).selection)

    quick, slow = asyncio.run(shares("smart"))
    assert quick > 2 * slow
    assert asyncio.run(shares("baseline")) == [48, 48]


def test_one_way_only_is_counted_and_not_told_with_every_probe() -> None:
    async def one() -> tuple[list[Any], Measured]:
        async with FakeServer(echo) as server:
            return await run(two_ways(server.url), probe(0, 1))

    (event,), measured = asyncio.run(one())
    assert "rails" not in event.data
    assert recorded(measured).selection.single_path_allocations == 2
    assert slices(recorded(measured).selection) == [4]


def test_a_way_that_is_closed_from_the_start_is_given_up() -> None:
    async def half() -> tuple[list[Any], Measured]:
        async with FakeServer(echo) as server:
            return await run(two_ways(server.url, f"http://127.0.0.1:{closed_port()}"), probe(0, 1))

    (event,), measured = asyncio.run(half())
    assert (event.type, event.data["rails"]) == ("measured", [0])
    assert [(d.available, d.selected_slices) for d in recorded(measured).selection.devices] == [
        (True, 4),
        (False, 0),
    ]


def test_ranks_with_no_other_way_are_refused_as_before() -> None:
    async def neither() -> tuple[list[Any], Measured]:
        return await run(two_ways(*(f"http://127.0.0.1:{closed_port()}" for _ in range(2))), probe(0, 1))

    (event,), measured = asyncio.run(neither())
    assert (event.type, event.data["code"]) == ("failed", "endpoint_unreachable")
    assert measured.record is None
    assert measured.failure == "the window failed: probe 1 failed: endpoint_unreachable"


def silent_after(answered: int) -> Answer:
    """The first few probe requests are answered; then comes nothing, not even to parking."""
    probes = 0

    async def answer(received: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal probes
        probes += probes >= answered or not is_parking(received)
        if probes > answered:
            await asyncio.Event().wait()
        await echo(received, writer)

    return answer


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "silent"])
def test_a_way_that_fails_in_the_middle_is_given_up_and_leaves_no_record(closes: bool) -> None:
    async def middle() -> tuple[list[Any], Measured]:
        async with FakeServer(echo) as a, FakeServer(silent_after(len(RANKS))) as b:
            access = two_ways(a.url, b.url, probe_timeout_s=0.3)
            one = probe(0, 1, sequences=2)
            async with Prober(access, settings(2, signal="ttft"), no_limits(), rails="baseline") as running:
                events = [await running.measure(one)]
                if closes:
                    await b.__aexit__()
                events += [await running.measure(one) for _ in range(2)]
                return events, running.selection()

    (first, failed, after), measured = asyncio.run(middle())
    assert (first.type, first.data["rails"]) == ("measured", [0, 1])
    assert (failed.type, failed.data["code"]) == ("failed", "connection_lost"), failed
    assert "another way" in failed.data["detail"]
    assert (after.type, after.data["rails"]) == ("measured", [0])
    assert measured == Measured(failure="the window failed: probe 1 failed: connection_lost")


def test_a_silent_rank_is_not_its_ways_fault() -> None:
    """Rank 1 answers nothing, whichever way: it stays the one under test."""

    async def only_the_other(received: Any, writer: asyncio.StreamWriter) -> None:
        if received.rank == 1 and not is_parking(received):
            await asyncio.Event().wait()
        await echo(received, writer)

    async def both() -> tuple[list[Any], Measured]:
        async with FakeServer(only_the_other) as a, FakeServer(only_the_other) as b:
            return await run(two_ways(a.url, b.url, probe_timeout_s=0.3), probe(1, sequences=2))

    (event,), measured = asyncio.run(both())
    assert (event.type, event.data["engine_alive"], event.data["in_flight"]) == ("timed_out", True, [1])
    assert "found no answer" in str(measured.failure)


def test_a_warm_up_lasts_as_long_as_is_wanted() -> None:
    async def warm(seconds: float) -> int:
        async with FakeServer(echo) as server:
            _, measured = await run(two_ways(server.url), probe(0, 1), warm_up_s=seconds)
            assert slices(recorded(measured).selection) == [4]
            return sum(map(is_parking, server.received))

    assert asyncio.run(warm(0.0)) == 2
    assert asyncio.run(warm(0.1)) > 4
