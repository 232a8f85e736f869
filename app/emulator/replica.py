"""An emulated replica in a process of its own, for the demo and for tests."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from app.emulator.config import EmulatorConfig
from app.emulator.runner import Sockets, manifest_for, url_of
from app.localization.faults import parse_faults
from app.probe_model.manifest import Manifest

READY = b"ready\n"
_START_TIMEOUT_S = 60.0  # 0.5 s on an idle machine; a busy one must not fail here
_STOP_TIMEOUT_S = 5.0


class EmulatorStartError(RuntimeError):
    """The emulator's process did not become ready; its own output, on standard error, says why."""


class EmulatedReplica:
    """A running emulated replica; it ends with `stop`, with the ``with`` block, or with this process.

    Parameters
    ----------
    gpus : int
        Number of ranks, 2 to 512.
    manifest : Manifest, optional
        Of the probe model to imitate; by default a synthetic one.
    **settings
        Fields of `app.emulator.config.EmulatorConfig`: ``hosts``, ``faults``, ``rank_choice``, ``transport``,
        ``mode``, ``noise_sigma``, ``seed``, ``fixed_ms``, ``production`` and so on.

    Raises
    ------
    pydantic.ValidationError
        A setting out of range.
    ValueError
        The manifest is for another number of GPUs.
    EmulatorStartError
        The process did not become ready.

    Examples
    --------
    >>> with EmulatedReplica(gpus=4, hosts=2, faults=("gpu:1*2.0",)) as replica:
    ...     replica.endpoints[0]["ranks"]
    '0-3'
    """

    def __init__(self, gpus: int, *, manifest: Manifest | None = None, **settings: Any) -> None:
        self.config = EmulatorConfig(gpus=gpus, **settings)
        self._manifest = manifest_for(self.config, manifest)
        sockets = Sockets.bind(self.config)
        try:
            self.control_url = url_of(sockets.control)
            self.endpoints: list[dict[str, str]] = sockets.endpoints(self.config)
            self.production_endpoints = sockets.production_endpoints()
            self._process = _spawn(self.config, self._manifest, sockets)
        finally:
            for sock in sockets.all():
                sock.close()  # the child has its own copies
        try:
            _await_ready(self._process)
        except BaseException:
            self.stop()
            raise

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest document of the probe model."""
        return self._manifest.model_dump(mode="json")

    @property
    def topology(self) -> dict[str, Any]:
        """The topology document: per GPU its rank, host, device, NIC, rail and leaf."""
        return self.config.topology()

    @property
    def pid(self) -> int:
        """The process id of the emulator."""
        return self._process.pid

    def set_faults(self, faults: Sequence[str]) -> None:
        """Replace the active faults; they hold from the next engine step on.

        Raises
        ------
        FaultError
            A string that is not a fault, or a rank or shared part that this replica does not have.
        """
        self._check(faults)
        self._control("PUT", "/emulator/faults", {"faults": list(faults)})

    def schedule_faults(self, schedule: Mapping[float, Sequence[str]]) -> None:
        """Replace the active faults at times to come.

        Parameters
        ----------
        schedule : mapping of float to sequence of str
            Seconds from now -> the faults from then on.

        Raises
        ------
        FaultError
            See `set_faults`.
        """
        for faults in schedule.values():
            self._check(faults)
        entries = [{"after_s": after, "faults": list(faults)} for after, faults in sorted(schedule.items())]
        self._control("PUT", "/emulator/faults", {"schedule": entries})

    def stats(self) -> dict[str, Any]:
        """Return the emulator's counters: requests per rank, steps, step error, CPU seconds."""
        document: dict[str, Any] = self._control("GET", "/emulator/stats")
        return document

    def stop(self) -> None:
        """End the process; harmless when it has ended."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _check(self, faults: Sequence[str]) -> None:
        parse_faults(faults, self.config.gpus, self.config.placement)

    def _control(self, method: str, path: str, document: object = None) -> Any:
        with httpx.Client(base_url=self.control_url, trust_env=False, timeout=10.0) as client:
            response = client.request(method, path, json=document)
        response.raise_for_status()
        return response.json()


def _spawn(config: EmulatorConfig, manifest: Manifest, sockets: Sockets) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[2])
    search_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "app.emulator"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[sock.fileno() for sock in sockets.all()],
        env={**os.environ, "PYTHONPATH": search_path},
        start_new_session=True,  # Ctrl-C reaches the parent, which stops this process
    )
    document = {
        "config": config.model_dump(mode="json"),
        "manifest": manifest.model_dump(mode="json"),
        "control": sockets.control.fileno(),
        "ranks": [sock.fileno() for sock in sockets.ranks],
        "production": None if sockets.production is None else sockets.production.fileno(),
        "parent": os.getpid(),
    }
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(document).encode())
        process.stdin.close()
    except BrokenPipeError:  # it ended at once; waiting for readiness reports that
        pass
    return process


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT_S)
    if not readable:
        raise EmulatorStartError(f"the emulator was not ready within {_START_TIMEOUT_S:g} s")
    if process.stdout.readline() != READY:
        raise EmulatorStartError(f"the emulator ended with status {process.wait(_STOP_TIMEOUT_S)}")
