"""One round of requests to several ranks: written at once on open connections, read to their ends, checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from app.probing.access import ReplicaAccess
from app.probing.connection import RankConnection
from app.probing.errors import UNREACHABLE, Failure
from app.probing.rails import Lane
from app.probing.requests import completion_body, prepare
from app.probing.stream import Exchange, Tokens, read_tokens

# Which failure decides when several requests of a probe fail: the one that says most.
SEVERITY = (
    "load_too_high",
    "rank_refused",
    "address_refused",
    "endpoint_unreachable",
    "parking_timed_out",
    "engine_failed",
    "model_not_found",
    "rank_out_of_range",
    "request_rejected",
    "response_too_large",
    "bad_response",
    "echo_broken",
    "stream_cut",
    "overloaded",
    "connection_lost",
    "no_common_window",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What each of some ranks sends.

    Parameters
    ----------
    prompts : dict of Lane to list of list of int
        Prompts of each request.
    max_tokens : int
        Tokens to decode a sequence.
    """

    prompts: dict[Lane, list[list[int]]]
    max_tokens: int


class HungError(Exception):
    """Requests found no answer before their deadline.

    Parameters
    ----------
    waited_ms : float
        How long they were waited for.
    late : list of Lane
        Those without an answer.
    """

    def __init__(self, waited_ms: float, late: list[Lane]) -> None:
        super().__init__(f"no answer in {waited_ms:.0f} ms")
        self.waited_ms = waited_ms
        self.late = late


class RankRequests:
    """Sends to the ranks of one replica and reads their answers.

    Parameters
    ----------
    access : ReplicaAccess
        The replica.
    """

    def __init__(self, access: ReplicaAccess) -> None:
        self._access = access
        self._connections = {
            Lane(rank, rail): RankConnection(access, rank, endpoint)
            for rail, endpoint in enumerate(access.endpoints)
            for rank in endpoint.ranks
        }
        # Ranks whose requests were sent last: the set under test when they fail or hang.
        self.in_flight: list[int] = []
        # Rails on which the last requests found no connection.
        self.refused: set[int] = set()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    async def ask(self, plan: Plan) -> tuple[float, dict[Lane, Tokens]] | Failure:
        """Send all requests at once and read all answers.

        Raises
        ------
        HungError
            When an answer is missing at the deadline; the requests are dropped.
        """
        self.in_flight = sorted({lane.rank for lane in plan.prompts})
        requests = {lane: self._prepare(lane, prompts, plan.max_tokens) for lane, prompts in plan.prompts.items()}
        failure = await self._open(requests)
        if failure is not None:
            return failure
        sent_at = time.perf_counter()
        futures = {lane: self._connections[lane].send(request) for lane, request in requests.items()}
        await asyncio.wait(futures.values(), timeout=self._access.probe_timeout_s)
        late = [lane for lane, future in futures.items() if not future.done()]
        if late:
            for lane in requests:
                self._connections[lane].close()
            raise HungError(round(1000 * (time.perf_counter() - sent_at), 3), late)
        results = {lane: self._read(lane, plan) for lane in requests}
        failures = [r for r in results.values() if isinstance(r, Failure)]
        if failures:
            return min(failures, key=lambda f: SEVERITY.index(f.code))
        return sent_at, {lane: r for lane, r in results.items() if isinstance(r, Tokens)}

    def _prepare(self, lane: Lane, prompts: list[list[int]], max_tokens: int) -> bytes:
        body = completion_body(self._access, prompts, max_tokens=max_tokens)
        return prepare(self._access, lane.rank, body, self._access.endpoints[lane.rail])

    async def _open(self, lanes: Collection[Lane]) -> Failure | None:
        """Open what is not open; a refused rank is only to blame when another one answers."""
        opened = await asyncio.gather(*(self._connections[lane].open() for lane in lanes))
        failures = [f for f in opened if f is not None]
        self.refused = {
            lane.rail for lane, f in zip(lanes, opened, strict=True) if f is not None and f.code in UNREACHABLE
        }
        if not failures:
            return None
        worst = min(failures, key=lambda f: SEVERITY.index(f.code))
        if worst.code != "rank_refused" or await self._someone_answers({f.rank for f in failures}):
            return worst
        return Failure("endpoint_unreachable", f"{worst.detail}, and so does every other rank", worst.rank)

    async def _someone_answers(self, refused: set[int | None]) -> bool:
        others = [c for lane, c in self._connections.items() if lane.rank not in refused]
        return None in await asyncio.gather(*(c.open() for c in others))

    def _read(self, lane: Lane, plan: Plan) -> Tokens | Failure:
        exchange = self._connections[lane].answer()
        outcome = read_tokens(exchange) if isinstance(exchange, Exchange) else exchange
        if isinstance(outcome, Failure):
            return Failure(outcome.code, f"rank {lane.rank}: {outcome.detail}", lane.rank)
        return _check_echo(lane.rank, outcome, plan.prompts[lane], plan.max_tokens) or outcome


def _check_echo(rank: int, tokens: Tokens, prompts: Sequence[Sequence[int]], max_tokens: int) -> Failure | None:
    """Decode steps hit the experts under test only while every token is echoed."""
    if any(index >= len(prompts) for index in tokens.ids):
        return Failure("bad_response", f"rank {rank}: a sequence came back that was not asked for", rank)
    for index, prompt in enumerate(prompts):
        ids = tokens.ids.get(index, [])
        if any(i != prompt[0] for i in ids):
            return Failure(
                "echo_broken",
                f"rank {rank}: token {prompt[0]} was not answered by itself; is this the manifest's probe model?",
                rank,
            )
        if len(ids) != max_tokens:
            return Failure(
                "stream_cut",
                f"rank {rank}: {len(ids)} of {max_tokens} tokens came back; do prompt and decode tokens fit the"
                " model's length?",
                rank,
            )
    return None
