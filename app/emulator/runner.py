"""Run an emulated replica in this process: sockets, engine and server put together."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from app.emulator.config import EmulatorConfig, ProductionConfig
from app.emulator.control import ControlHandlers, FaultControl
from app.emulator.engine import Engine
from app.emulator.listeners import LOOPBACK, Listeners, bind_loopback
from app.emulator.production import (
    Traffic,
    capacity_rps,
    make_production_engine,
    production_manifest,
    production_model,
)
from app.emulator.requests import EngineDeadError
from app.emulator.server import make_app, make_engine
from app.emulator.sharing import SharedGpus
from app.localization.faults import Fault
from app.probe_model.manifest import Manifest
from app.probe_model.synthetic import synthetic_manifest

_PARENT_CHECK_S = 0.2


@dataclass(frozen=True, slots=True)
class Sockets:
    """The listening sockets of a replica: for control, for each rank where ranks have ports, for production."""

    control: socket.socket
    ranks: tuple[socket.socket, ...] = ()
    production: socket.socket | None = None

    @classmethod
    def bind(cls, config: EmulatorConfig, port: int = 0) -> Sockets:
        """Bind loopback ports: ``port`` (0: free ones), and after it the ranks' and the production server's.

        Raises
        ------
        OSError
            A port is taken.
        """
        count = config.gpus if config.rank_choice == "url" else 0
        bound: list[socket.socket] = []
        try:
            for offset in range(count + 1 + (config.production is not None)):
                bound.append(bind_loopback(port + offset if port else 0))
        except OSError:
            for sock in bound:
                sock.close()
            raise
        production = bound.pop() if config.production is not None else None
        return cls(bound[0], tuple(bound[1:]), production)

    def all(self) -> tuple[socket.socket, ...]:
        """Return every socket, control first, production last."""
        return (*self.probe(), *([self.production] if self.production else []))

    def probe(self) -> tuple[socket.socket, ...]:
        """Return the probe server's sockets."""
        return (self.control, *self.ranks)

    def endpoints(self, config: EmulatorConfig) -> list[dict[str, str]]:
        """Return the probe endpoints as a replica document lists them."""
        if self.ranks:
            return [
                {"url": url_of(sock), "ranks": str(rank), "rank_choice": "url"}
                for rank, sock in enumerate(self.ranks)
            ]
        return [{"url": url_of(self.control), "ranks": f"0-{config.gpus - 1}", "rank_choice": "header"}]

    def production_endpoints(self) -> list[dict[str, str]]:
        """Return the production endpoints as a replica document lists them."""
        return [] if self.production is None else [{"url": url_of(self.production)}]


def manifest_for(config: EmulatorConfig, manifest: Manifest | None) -> Manifest:
    """Return the manifest to serve: the one given, or a synthetic one.

    Raises
    ------
    ValueError
        It is for another number of GPUs.
    """
    served = manifest or synthetic_manifest(config.gpus)
    if served.gpus != config.gpus:
        raise ValueError(f"manifest: is for {served.gpus} GPUs, but the replica has {config.gpus}")
    return served


def url_of(sock: socket.socket) -> str:
    """Return the base URL of a loopback socket."""
    return f"http://{LOOPBACK}:{sock.getsockname()[1]}"


async def serve(
    config: EmulatorConfig,
    manifest: Manifest,
    sockets: Sockets,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    """Serve until ``stop`` is set.

    Parameters
    ----------
    config, manifest : EmulatorConfig, Manifest
        What is emulated.
    sockets : Sockets
        Where; owned from now on.
    stop : asyncio.Event
        Ends the service.
    on_ready : callable
        Called once requests are answered.
    """
    gpus = SharedGpus(config.production.contention if config.production else 0.0)
    engine = make_engine(config, manifest, gpus)
    production = _Production.of(config, config.production, gpus) if config.production else None
    ports: dict[int, int | None] = {sock.getsockname()[1]: rank for rank, sock in enumerate(sockets.ranks)}

    async def apply(faults: tuple[Fault, ...]) -> None:
        engine.set_faults(faults)
        if production is not None:
            production.engine.set_faults(faults)
        await close_failed()

    async def close_failed() -> None:
        failed = engine.failed_ranks("error")
        for rank in failed if sockets.ranks else ():
            engine.abort_rank(rank, EngineDeadError())
        await listeners.set_closed(port for port, rank in ports.items() if rank in failed)

    control = FaultControl(apply)
    handlers = ControlHandlers(engine, config.placement, control, production.traffic if production else None)
    listeners = Listeners(make_app(engine, manifest, ports, handlers.routes()), sockets.probe())
    servers = [listeners, *(production.listeners(sockets) if production else [])]
    tasks = [engine.run(), *(production.tasks() if production else [])]
    running = [asyncio.create_task(task) for task in tasks]
    for server in servers:
        await server.start()
    await close_failed()
    on_ready()
    ended = asyncio.create_task(stop.wait())
    await asyncio.wait((ended, *running), return_when=asyncio.FIRST_COMPLETED)
    control.stop()
    await _end(ended, running, servers)


@dataclass(frozen=True, slots=True)
class _Production:
    """The parts of a production server."""

    engine: Engine
    manifest: Manifest
    traffic: Traffic

    @classmethod
    def of(cls, config: EmulatorConfig, production: ProductionConfig, gpus: SharedGpus) -> _Production:
        engine = make_production_engine(config, production, gpus)
        capacity = capacity_rps(production_model(config, production), production, config.seed)
        traffic = Traffic(engine, production, capacity, config.seed)
        return cls(engine, production_manifest(config, production), traffic)

    def listeners(self, sockets: Sockets) -> list[Listeners]:
        """Its port."""
        app = make_app(self.engine, self.manifest, {})
        return [] if sockets.production is None else [Listeners(app, [sockets.production])]

    def tasks(self) -> list[Coroutine[None, None, None]]:
        """What runs until cancelled."""
        return [self.engine.run(), *([self.traffic.run()] if self.traffic.offers else [])]


async def _end(ended: asyncio.Task[bool], running: list[asyncio.Task[None]], servers: list[Listeners]) -> None:
    """Stop everything; raise what a task failed with, which must not end in silence."""
    for task in (ended, *running):
        task.cancel()
    for server in servers:
        await server.stop()
    for task in running:
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def serve_until_signalled(
    config: EmulatorConfig,
    manifest: Manifest,
    sockets: Sockets,
    on_ready: Callable[[], None],
    parent: int | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or, when ``parent`` is given, the end of that process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    watcher = asyncio.create_task(_stop_without(parent, stop)) if parent is not None else None
    gc.collect()
    gc.freeze()  # a full collection in the middle of a step would show as latency
    try:
        await serve(config, manifest, sockets, stop, on_ready)
    finally:
        if watcher is not None:
            watcher.cancel()


async def _stop_without(parent: int, stop: asyncio.Event) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing tells a process that it was orphaned
        await asyncio.sleep(_PARENT_CHECK_S)
    stop.set()


def run_emulator(
    config: EmulatorConfig,
    *,
    port: int = 0,
    manifest: Manifest | None = None,
    on_ready: Callable[[str, list[dict[str, str]], list[dict[str, str]]], None] | None = None,
) -> None:
    """Run an emulated replica in the foreground, until SIGINT or SIGTERM (for ``faultsense emulate``).

    Parameters
    ----------
    config : EmulatorConfig
        What is emulated.
    port : int
        Loopback port, 0 for a free one; with one port per rank, ranks take the ports after it.
    manifest : Manifest, optional
        Of the probe model to imitate; by default a synthetic one.
    on_ready : callable, optional
        Called with the control URL, the probe and the production endpoints once requests are answered.

    Raises
    ------
    OSError
        A port is taken.
    ValueError
        The manifest is for another number of GPUs.
    """
    served = manifest_for(config, manifest)
    sockets = Sockets.bind(config, port)
    control, endpoints = url_of(sockets.control), sockets.endpoints(config)
    production = sockets.production_endpoints()

    def ready() -> None:
        if on_ready is not None:
            on_ready(control, endpoints, production)

    asyncio.run(serve_until_signalled(config, served, sockets, ready))
