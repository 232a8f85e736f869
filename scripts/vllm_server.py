"""Start and stop a real vLLM server on the CPU that serves a probe model with expert parallelism.

Needs an environment made by ``install_vllm_cpu.sh``; this module itself needs neither torch nor vLLM. By hand::

    python -m scripts.vllm_server VENV MODEL_FOLDER --port 8000 --faults faults.json
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from app.probe_model.manifest import load_manifest
from app.probe_model.serve import serve_command
from scripts.vllm_cpu_ep.vllm_cpu_ep.faults import parse_faults

HOST = "127.0.0.1"
KV_CACHE_BYTES = 64 * 2**20
STOP_SECONDS = 20.0
WORKER_NICENESS = 15
_LOG_TAIL_BYTES = 8000

# Asks Linux to send SIGTERM when the parent dies, even killed, and becomes the server; vLLM ends its workers then.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""


def run_where_torch_is(venv: Path, code: str, *arguments: object, timeout_s: float = 300.0) -> None:
    """Run Python code that needs torch, such as building a probe model, in the environment that has it.

    The project is on its path, and no model hub is asked.
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    command = [venv / "bin/python", "-c", code, *map(str, arguments)]
    subprocess.run(command, check=True, env=environment, timeout=timeout_s)


class VllmServerError(RuntimeError):
    """The server did not start or did not stop; the message ends with the end of its log."""


class VllmServer:
    """A vLLM server in a process group of its own, which ends with the thread that started it.

    Parameters
    ----------
    venv : Path
        Environment made by ``install_vllm_cpu.sh``.
    model : Path
        Probe model folder; it decides the number of ranks and the server's limits.
    all2all : {"sparse", "allgather"}
        The plugin's all-to-all. Path faults need ``sparse``.
    port : int, optional
        By default a free one.
    faults_file, log, routing_log : Path, optional
        Where faults are written, the server's output goes, and, as a prefix, the plugin logs routed rows (not at
        all by default). The first two are by default temporary files, removed by `stop`.
    start_seconds : float
        How long `start` waits for the server to be healthy.
    extra : sequence of str
        More options of vLLM, for example ``--enable-prompt-embeds``.
    """

    def __init__(
        self,
        venv: Path,
        model: Path,
        *,
        all2all: Literal["sparse", "allgather"] = "sparse",
        port: int | None = None,
        faults_file: Path | None = None,
        log: Path | None = None,
        routing_log: Path | None = None,
        start_seconds: float = 300.0,
        extra: Sequence[str] = (),
    ) -> None:
        self.venv = venv
        self.model = model
        self.port = port or _free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="faultsense-vllm-")
        self.faults_file = faults_file or Path(self._folder.name, "faults.json")
        self.log = log or Path(self._folder.name, "server.log")
        self._all2all = all2all
        self._routing_log = routing_log
        self._start_seconds = start_seconds
        self._extra = tuple(extra)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://{HOST}:{self.port}"

    @property
    def process_group(self) -> int:
        """Id of the process group of the server and all its workers."""
        if self._process is None:
            raise VllmServerError("the server was not started")
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it is healthy.

        Raises
        ------
        VllmServerError
            It ended, or was not healthy in time; it is stopped then.
        """
        python = self.venv / "bin" / "python"
        if not python.exists():
            raise VllmServerError(f"{python} does not exist; run scripts/install_vllm_cpu.sh {self.venv}")
        self.set_faults({})
        command = serve_command(
            self.model.absolute(),
            host=HOST,
            port=self.port,
            kv_cache_memory_bytes=KV_CACHE_BYTES,
            enforce_eager=True,
            program=(str(python), "-m", "vllm.entrypoints.openai.api_server"),
            extra=self._extra,
        )
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _DIE_WITH_PARENT, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )
        try:
            self._wait_until_healthy(self._process)
            _favour_front_end(self._process.pid)
        except BaseException:
            self.stop()
            raise

    def set_faults(self, faults: Mapping[str, Mapping[str, float]]) -> None:
        """Put faults in force from the next step on, in place of all earlier ones; `{}` removes them.

        Parameters
        ----------
        faults : mapping
            For example ``{"path:1-3": {"ms": 30}, "gpu:2": {"ms": 200, "above_rows": 2}}``; see the plugin's
            ``faults`` module.

        Raises
        ------
        ValueError
            A component or delay that the plugin would refuse.
        """
        document = {name: dict(delay) for name, delay in faults.items()}
        parse_faults(document)
        # Renamed into place: a rank must never read half a file.
        fresh = self.faults_file.with_name(self.faults_file.name + ".new")
        fresh.write_text(json.dumps(document), encoding="utf-8")
        fresh.replace(self.faults_file)

    def stop(self) -> None:
        """End the server and every worker: SIGTERM, then SIGKILL to its process group.

        Raises
        ------
        VllmServerError
            A process of the group is still there.
        """
        process, self._process = self._process, None
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                if _group_ended(process, STOP_SECONDS):
                    break
            else:
                raise VllmServerError(f"process group {process.pid} is still there after SIGKILL")
        self._folder.cleanup()

    def log_tail(self) -> str:
        """The end of the server's log."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")
        return "(no log)"

    @staticmethod
    def cores(ranks: int) -> list[int]:
        """The processor that each rank runs on: they share them in turn."""
        cpus = sorted(os.sched_getaffinity(0))
        return [cpus[rank % len(cpus)] for rank in range(ranks)]

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ranks = load_manifest(self.model).gpus
        return inherited | {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_HOST_IP": HOST,
            "VLLM_LOOPBACK_IP": HOST,
            # One thread a rank.
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, self.cores(ranks))),
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_EP_ALL2ALL": self._all2all,
            "VLLM_CPU_EP_FAULTS": str(self.faults_file.absolute()),
            "VLLM_CPU_EP_LOG": str(self._routing_log.absolute()) if self._routing_log else "",
        }

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + self._start_seconds
        while time.monotonic() < end:
            if process.poll() is not None:
                raise VllmServerError(f"the server ended with status {process.returncode}\n{self.log_tail()}")
            if _healthy(self.port):
                return
            time.sleep(0.25)
        raise VllmServerError(f"the server was not healthy after {self._start_seconds:g} s\n{self.log_tail()}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _favour_front_end(group: int) -> None:
    """Lower the priority of the ranks' workers, which keep all processors busy.

    Otherwise the API server of this crowded machine hands tokens on late and in bursts, and the time between them
    says nothing about the engine's steps.
    """
    for pid in group_members(group):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if (Path("/proc") / str(pid) / "comm").read_text().startswith("VLLM::Worker"):
                os.setpriority(os.PRIO_PROCESS, pid, WORKER_NICENESS)


def group_members(group: int) -> list[int]:
    """Ids of the living processes of a process group.

    Zombies do not count: a worker that outlives the server waits for the system to reap it, and signals alone
    cannot tell it from a living one.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            # The name before the last parenthesis may hold anything; state, parent and group follow it.
            state, _, of_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                found.append(int(entry.name))
    return found


def _group_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        process.poll()  # reaps the leader
        if not group_members(process.pid):
            return True
        time.sleep(0.05)
    return False


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="Serve a probe model with vLLM on the CPU.")
    parser.add_argument("venv", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--all2all", choices=["sparse", "allgather"], default="sparse")
    parser.add_argument("--faults", type=Path, help="fault file; emptied at the start")
    parser.add_argument("--log", type=Path)
    given: Any = parser.parse_args(arguments)
    server = VllmServer(
        given.venv,
        given.model,
        all2all=given.all2all,
        port=given.port,
        faults_file=given.faults,
        log=given.log,
    )
    # SIGTERM like Ctrl-C: an exception that the context manager turns into a clean stop, also while starting.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), server:
        print(f"serving on {server.url}, faults from {server.faults_file}, log in {server.log}", flush=True)
        while True:
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
