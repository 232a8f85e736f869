"""/emulator/*: faults, now or on a schedule, and counters."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.emulator.endpoint import ClientGoneError, read_body
from app.emulator.engine import Engine
from app.emulator.errors import ApiError
from app.emulator.production import Traffic
from app.localization.faults import Fault, FaultError, parse_faults
from app.localization.placement import Placement

MAX_FAULTS = 1024
MAX_ENTRIES = 1024
MAX_AFTER_S = 86_400.0
PROBLEM_TYPE = "application/problem+json"

ApplyFaults = Callable[[tuple[Fault, ...]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Faults that replace all others ``after_s`` seconds after the schedule was set."""

    after_s: float
    faults: tuple[Fault, ...]

    def document(self) -> dict[str, object]:
        """As it is sent."""
        return {"after_s": self.after_s, "faults": [str(fault) for fault in self.faults]}


class FaultControl:
    """Sets faults at once or in time; whatever is set last ends what was scheduled before.

    Parameters
    ----------
    apply : callable
        Makes faults active.
    """

    def __init__(self, apply: ApplyFaults) -> None:
        self._apply = apply
        self._task: asyncio.Task[None] | None = None
        self.ahead: tuple[Entry, ...] = ()

    async def set(self, faults: tuple[Fault, ...]) -> None:
        """Make faults active now."""
        self.stop()
        await self._apply(faults)

    def follow(self, schedule: tuple[Entry, ...]) -> None:
        """Make faults active one entry after the other; until the first, what is active stays."""
        self.stop()
        self.ahead = schedule
        self._task = asyncio.create_task(self._run(schedule))

    def stop(self) -> None:
        """Forget what was scheduled."""
        if self._task is not None:
            self._task.cancel()
        self._task, self.ahead = None, ()

    async def _run(self, schedule: tuple[Entry, ...]) -> None:
        started = asyncio.get_running_loop().time()
        for number, entry in enumerate(schedule, start=1):
            await asyncio.sleep(started + entry.after_s - asyncio.get_running_loop().time())
            self.ahead = schedule[number:]
            await self._apply(entry.faults)


class ControlHandlers:
    """The /emulator endpoints.

    Parameters
    ----------
    engine : Engine
        Of the probe server.
    placement : Placement
        Where the ranks sit.
    control : FaultControl
        Sets the faults.
    traffic : Traffic, optional
        Of the production server.
    """

    def __init__(
        self, engine: Engine, placement: Placement, control: FaultControl, traffic: Traffic | None = None
    ) -> None:
        self._engine = engine
        self._placement = placement
        self._control = control
        self._traffic = traffic

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            Route("/emulator/faults", self.get_faults, methods=["GET"]),
            Route("/emulator/faults", self.put_faults, methods=["PUT"]),
            Route("/emulator/topology", self.topology),
            Route("/emulator/stats", self.stats),
        ]

    async def get_faults(self, _: Request) -> Response:
        """The active faults, and what is scheduled, if anything is."""
        document: dict[str, object] = {"faults": [str(fault) for fault in self._engine.faults]}
        if self._control.ahead:
            document["schedule"] = [entry.document() for entry in self._control.ahead]
        return JSONResponse(document)

    async def put_faults(self, request: Request) -> Response:
        """Set ``{"faults": [...]}`` now, or ``{"schedule": [{"after_s": 5, "faults": [...]}, ...]}``."""
        try:
            wanted = self._read(await read_body(request.receive))
        except (ApiError, FaultError) as error:
            return _problem(getattr(error, "status", 422), str(error))
        except ClientGoneError:
            return Response(status_code=499)
        if isinstance(wanted, list):
            self._control.follow(tuple(wanted))
        else:
            await self._control.set(wanted)
        return await self.get_faults(request)

    async def topology(self, _: Request) -> Response:
        """The topology document, as ``PUT /replicas/{id}/topology`` takes it."""
        return JSONResponse(self._placement.document())

    async def stats(self, _: Request) -> Response:
        """Counters."""
        observer = self._engine.observer
        document: dict[str, object] = {
            "requests": [rank.requests for rank in self._engine.ranks],
            "steps": observer.steps,
            "step_error_ms": observer.step_error_ms(),
            "cpu_s": round(time.process_time(), 4),
        }
        if self._traffic is not None:
            document["production"] = self._traffic.document()
        return JSONResponse(document)

    def _read(self, body: bytes) -> tuple[Fault, ...] | list[Entry]:
        document: Any = None
        with suppress(ValueError, RecursionError):
            document = json.loads(body)
        if isinstance(document, dict) and set(document) == {"schedule"}:
            return self._schedule(document["schedule"])
        return self._faults(document.get("faults") if isinstance(document, dict) else None)

    def _faults(self, texts: object) -> tuple[Fault, ...]:
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ApiError(422, 'faults: send {"faults": [...]} with a list of strings, such as "gpu:5*2.0"')
        if len(texts) > MAX_FAULTS:
            raise ApiError(422, f"faults: at most {MAX_FAULTS}, got {len(texts)}")
        return parse_faults(texts, len(self._engine.ranks), self._placement)

    def _schedule(self, entries: object) -> list[Entry]:
        if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_ENTRIES:
            raise ApiError(422, f"schedule: send a list of 1 to {MAX_ENTRIES} entries")
        schedule = [self._entry(entry) for entry in entries]
        times: Sequence[float] = [entry.after_s for entry in schedule]
        if list(times) != sorted(set(times)):
            raise ApiError(422, "schedule: after_s must rise from entry to entry")
        return schedule

    def _entry(self, entry: object) -> Entry:
        if not isinstance(entry, dict) or set(entry) != {"after_s", "faults"}:
            raise ApiError(422, 'schedule: an entry is {"after_s": 5, "faults": [...]}')
        after_s = entry["after_s"]
        if type(after_s) not in (int, float) or not 0 <= after_s <= MAX_AFTER_S:
            raise ApiError(422, f"schedule: after_s must be a number of seconds from 0 to {MAX_AFTER_S:g}")
        return Entry(float(after_s), self._faults(entry["faults"]))


def _problem(status: int, detail: str) -> Response:
    document = {"type": "about:blank", "title": "Invalid faults", "status": status, "detail": detail}
    return JSONResponse(document, status_code=status, media_type=PROBLEM_TYPE)
