"""Probes of every shape against an emulated replica: what arrives is what the latency model says of a step."""

import asyncio
import time
from statistics import median

import pytest

from app.emulator.replica import EmulatedReplica
from app.localization.probes import Probe
from app.localization.shapes import Bipartite, Clique, Exchange, Shift
from app.probing.budget import Budget
from app.probing.prober import Prober
from app.probing.requests import probe_tokens

from . import support
from .support import BOUND_S, access_of, access_to, echo, is_parking, no_limits, on_server, settings
from .test_prober import Counting

ALL = (0, 1, 2, 3)
T0, A, B = 4.0, 2.0, 3.0
# Long enough for requests that arrive a step apart.
TOKENS = {"prompt_tokens": 1, "decode_tokens": 12}


def emulated(transport):
    path_ms = {"same_host": B, "cross_host": B}
    return EmulatedReplica(
        gpus=4, noise_sigma=0.0, fixed_ms=T0, compute_ms=A, path_ms=path_ms, transport=transport, recovery_s=0.0
    )


class Bench:
    """One prober that stays: it warms up once."""

    def __init__(self, replica, runner):
        self.replica, self.runner = replica, runner
        self.prober = Prober(access_of(replica), settings(4, **TOKENS), Budget(None, None, now=time.monotonic))

    def takes(self, step_ms, shape, *faults):
        """Whether a probe of a shape measures that step; a busy machine gets three tries."""
        self.replica.set_faults(faults)
        tried = []
        while len(tried) < 3:
            event = self.runner.run(self.prober.measure(Probe(1, shape, 1, "cover", len(tried))))
            assert event.type == "measured", event
            assert event.data["window"] >= 0.8
            tried.append(event.data["tbt_ms"])
            if tried[-1] == pytest.approx(step_ms, rel=0.1):
                return True
        raise AssertionError(f"{tried} ms instead of {step_ms}")


def bench(transport):
    with emulated(transport) as replica, asyncio.Runner() as runner:
        running = Bench(replica, runner)
        yield running
        running.prober.close()
        runner.run(asyncio.sleep(0))  # the connections end


@pytest.fixture(scope="module")
def serial():
    yield from bench("serial")


@pytest.fixture(scope="module")
def shared():
    yield from bench("shared")


def ring(*shifts, sequences=1):
    return Shift((ALL,), shifts, sequences)


# A step waits for the fullest GPU and for the slowest sender or receiver.
HEALTHY = {
    "a shift": (ring(2), T0 + A + B),
    "a heavier shift": (ring(2, sequences=3), T0 + 3 * A + 3 * B),
    "two shifts": (ring(1, 2), T0 + 2 * A + 2 * B),
    "the full digraph": (ring(1, 2, 3), T0 + 3 * A + 3 * B),
    "two rings": (Shift(((0, 1), (2, 3)), (1,), 2), T0 + 2 * A + 2 * B),
    "self-loops": (Exchange(ALL, width=3), T0 + 3 * A),
    "a self-loop alone": (Exchange((2,), width=3), T0 + 3 * A),
    "a matching beside self-loops": (Exchange(ALL, ((1, 3),), 2), T0 + 2 * A + 2 * B),
    "a chain of pairs": (Exchange(ALL, ((0, 1), (1, 2)), 2), T0 + 2 * A + 2 * B),
    "senders and receivers": (Bipartite((0, 1), (0, 1)), T0 + 2 * A + B),
    # A receiver that sends nothing itself runs its dummy token beside what it gets.
    "senders apart": (Bipartite((0, 1), (2, 3)), T0 + 3 * A + 2 * B),
    "many to one": (Bipartite((0, 1, 2), (3,)), T0 + 4 * A + 3 * B),
    "the paper's": (Clique((0, 1, 2)), T0 + 3 * A + 2 * B),
}


@pytest.mark.parametrize(("shape", "step_ms"), HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_probe_takes_what_the_model_says(serial, shape, step_ms):
    assert serial.takes(step_ms, shape)


def test_a_slow_path_is_diluted_by_the_others_and_not_by_the_number_of_gpus(serial, shared):
    fault = "path:1-3*5"
    assert serial.takes(T0 + A + 5 * B, ring(2), fault)
    assert serial.takes(T0 + 3 * A + 7 * B, ring(1, 2, 3), fault)
    assert serial.takes(T0 + A + 5 * B, Exchange(ALL, ((1, 3),), 1), fault)
    # Flows that share a NIC hide a path until it alone outlasts the rest.
    assert shared.takes(T0 + A + 5 * B, ring(2), fault)
    assert shared.takes(T0 + 3 * A + 5 * B, ring(1, 2, 3), fault)
    assert shared.takes(T0 + 3 * A + 3 * B, ring(1, 2, 3), "path:1-3*3")


@pytest.mark.parametrize("sequences", [1, 3])
def test_an_added_delay_counts_once_a_message_however_much_it_carries(serial, sequences):
    shape, healthy = ring(2, sequences=sequences), T0 + sequences * (A + B)
    assert serial.takes(healthy + 30, shape, "path:1-3+15ms")  # there and back
    assert serial.takes(healthy + 30, shape, "path:1>3+15ms")  # 3 sends to 1 too: its results come that way
    assert serial.takes(healthy + 15, ring(1, sequences=sequences), "path:0>1+15ms")  # 1 does not send to 0
    full = ring(1, 2, 3, sequences=sequences)
    healthy = T0 + 3 * sequences * (A + B)
    assert serial.takes(healthy + 30, full, "path:1-3+15ms")


def test_a_slow_gpu_shows_where_it_works_and_not_where_it_is_parked(serial):
    fault = "gpu:2+25ms"
    assert serial.takes(T0 + A + B + 25, ring(1), fault)
    assert serial.takes(T0 + A + 25, Exchange(ALL), fault)
    assert serial.takes(T0 + 2 * A + B + 25, Bipartite((0,), (2,)), fault)
    assert serial.takes(T0 + A + B, Exchange((1, 3), ((1, 3),)), fault)


def parked_before(*shapes):
    """Ranks that are parked before each of some probes."""

    async def run():
        async with asyncio.timeout(BOUND_S), support.FakeServer(echo) as server:
            access, s = access_to(server.url, gpus=4), settings(4, signal="ttft")
            async with Prober(access, s, no_limits()) as prober:
                found = []
                for shape in shapes:
                    before = len(server.received)
                    assert (await prober.measure(Probe(1, shape, 1, "cover"))).type == "measured"
                    found.append([r.rank for r in server.received[before:] if is_parking(r)])
                return found[1:]

    return asyncio.run(run())


def test_ranks_that_send_nothing_are_parked_and_self_loops_leave_them_so():
    assert parked_before(
        Exchange((0,)),  # warms up
        ring(1),
        ring(2),  # all send: nobody is idle
        Exchange(ALL, ((1, 3),)),  # 0 and 2 send to themselves
        Exchange((1,)),  # 3 sent to 1; 0 and 2 need no parking
        Bipartite((0,), (1, 2)),  # 1 was left on itself
        Bipartite((3,), (0,)),  # 0 was not
    ) == [[], [], [], [3], [], [0]]


def test_every_sender_gets_one_request_with_all_its_prompts():
    shape = Exchange(ALL, ((0, 1), (1, 2)), 2)
    _, server = on_server(echo, Probe(1, shape, 1, "cover"), gpus=4, signal="ttft")
    requests = {r.rank: r.document["prompt"] for r in server.received if not is_parking(r)}
    assert len([r for r in server.received if not is_parking(r)]) == 4
    token = {rank: [7 + rank] * 2 for rank in ALL}
    assert {rank: sorted(prompts) for rank, prompts in requests.items()} == {
        0: [token[0], token[1]],
        1: [token[0], token[2]],
        2: [token[1], token[2]],
        3: [token[3], token[3]],
    }


@pytest.mark.parametrize(
    ("shape", "limits", "names"),
    [
        (
            ring(1, 2, sequences=3),
            {"max_num_seqs": 5},
            "6 sequences, and the server runs 5 at once",
        ),
        (Exchange((1,), width=6), {"max_num_seqs": 5}, "max_num_seqs"),
        (Clique((0, 1, 3), 2), {"max_num_seqs": 5}, "max_num_seqs"),
        # Nobody sends that much, but one receives it.
        (Bipartite((0, 1, 2), (3,), 2), {"max_num_seqs": 5}, "max_num_seqs"),
        (
            ring(1, 2, sequences=3),
            {"max_num_batched_tokens": 11},
            "send fewer prompt_tokens",
        ),
    ],
)
def test_a_load_that_the_server_does_not_take_is_refused_and_nothing_is_sent(shape, limits, names):
    budget = Counting()

    async def run():
        async with asyncio.timeout(BOUND_S), support.FakeServer(echo) as server:
            access = access_to(server.url, gpus=4, **limits)
            async with Prober(access, settings(4), budget) as prober:
                return await prober.measure(Probe(1, shape, 1, "cover")), server

    refused, server = asyncio.run(run())
    assert (refused.type, refused.data["code"]) == ("failed", "load_too_high")
    assert names in refused.data["detail"]
    assert server.received == []
    assert budget.reserved == []


def test_a_load_at_the_limit_is_taken():
    shape = ring(1, 2, sequences=3)
    limits = {"max_num_seqs": 6, "max_num_batched_tokens": 12}
    event, _ = on_server(echo, Probe(1, shape, 1, "cover"), gpus=4, access=limits, signal="ttft")
    assert event.type == "measured"


def test_the_tokens_of_any_shape_are_counted():
    assert probe_tokens(Probe(1, ring(1, 2, sequences=3), 1, "cover"), 10) == 4 * 2 * 3 * 10
    assert probe_tokens(Probe(1, Exchange(ALL, ((1, 3),), 5), 1, "cover"), 10) == 4 * 5 * 10


def test_many_ranks_decode_together():
    """64 requests at once: nearly all of the probe is common to all."""
    everyone = tuple(range(64))
    with EmulatedReplica(gpus=64, noise_sigma=0.0, fixed_ms=15.0) as replica:
        shape = Shift((everyone,), (1, 5), 2)
        probes = [Probe(1, shape, 1, "cover", repeat) for repeat in range(3)]
        events = asyncio.run(support.measure(access_of(replica), *probes, prompt_tokens=2, decode_tokens=16))
    assert {e.type for e in events} == {"measured"}, events
    assert max(e.data["window"] for e in events) >= 0.9
    assert median(e.data["tbt_ms"] for e in events) == pytest.approx(15 + 4 * 1.75, rel=0.15)
