"""Nothing outlives the parent, however it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from app.embedded import EmbeddedServiceError, EmbeddedServices

# They start servers and kill who started them.
pytestmark = pytest.mark.slow

RUN = """
import json, signal
from pathlib import Path
from app.embedded import EmbeddedServices
with EmbeddedServices(ROOT) as services:
    print(json.dumps({"root": str(services.root), "url": services.database_url}), flush=True)
    signal.pause()
"""


def script(root: Path | None) -> str:
    return RUN.replace("ROOT", "None" if root is None else f"Path({str(root)!r})")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_and_no_temporary_folder_remains(start_child, processes_of, wait_until, number):
    child = start_child(script(None))
    root = Path(child.read()["root"])
    assert len(processes_of(root)) >= 3
    child.process.send_signal(number)
    child.process.wait(90)
    wait_until(lambda: not processes_of(root) and not root.exists())


WRITER = """
from pathlib import Path
root = Path(ROOT)
print("{}", flush=True)
for number in range(10**9):
    try:
        (root / f"written-{number % 50}").write_text("")
    except FileNotFoundError:
        break
"""


def test_a_folder_in_which_another_process_still_writes_is_removed(start_child, wait_until, processes_of):
    child = start_child(script(None))
    root = Path(child.read()["root"])
    writer = start_child(WRITER.replace("ROOT", repr(str(root))))
    writer.read()
    child.process.kill()
    wait_until(lambda: not (root / "postgres").exists())
    writer.process.kill()  # until here it may win every race
    wait_until(lambda: not root.exists())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_given_root_is_shut_down_in_order_and_kept(start_child, processes_of, wait_until, tmp_path, number):
    root = tmp_path / "root"
    child = start_child(script(root))
    child.read()
    child.process.send_signal(number)
    child.process.wait(90)
    wait_until(lambda: not processes_of(root))
    assert "database system is shut down" in (root / "postgres/server.log").read_text()
    assert not (root / "postgres/data/postmaster.pid").exists()


def test_a_new_start_waits_for_the_watchdog_of_a_killed_parent(start_child, query, tmp_path):
    root = tmp_path / "root"
    child = start_child(script(root))
    query(child.read()["url"], "CREATE TABLE kept AS SELECT 1 AS number")
    child.process.kill()
    with EmbeddedServices(root) as services:
        assert query(services.database_url, "SELECT number FROM kept") == [(1,)]


def test_a_parent_killed_during_initdb_leaves_nothing(start_child, processes_of, wait_until, tmp_path):
    child = start_child(script(None), environment={"TMPDIR": str(tmp_path)})
    wait_until(lambda: list(tmp_path.glob("*/postgres/data.new")))
    child.process.kill()
    wait_until(lambda: not processes_of(tmp_path) and not list(tmp_path.iterdir()))


def test_ctrl_c_in_the_terminal_reaches_the_parent_only(start_child, processes_of, wait_until):
    waits = (
        script(None).partition("    print")[0]
        + """\
    try:
        print(json.dumps({"root": str(services.root)}), flush=True)
        signal.pause()
    except KeyboardInterrupt:
        services.create_database("after_ctrl_c")
        print(json.dumps({"alive": services.postgres.running and services.redis.running}), flush=True)
"""
    )
    child = start_child(waits)
    root = Path(child.read()["root"])
    os.killpg(child.process.pid, signal.SIGINT)
    assert child.read() == {"alive": True}
    child.process.wait(90)
    assert child.process.returncode == 0
    wait_until(lambda: not processes_of(root) and not root.exists())


def test_a_forked_copy_neither_stops_nor_keeps_the_servers(start_child, processes_of, wait_until):
    forks = """
    import os
    ready, done = os.pipe()
    if (forked := os.fork()) == 0:
        services.close()
        os.write(done, b"x")
        signal.pause()
    os.read(ready, 1)
    services.create_database("after_fork")
    print(json.dumps({"forked": forked}), flush=True)
    signal.pause()
"""
    # The second fork keeps its copy of the socket open: only the parent's process id tells that it is gone.
    keeps = "\n    import os\n    if os.fork() == 0:\n        signal.pause()\n"
    child = start_child(script(None).replace("\n    signal.pause()\n", keeps + forks))
    root = Path(child.read()["root"])
    forked = child.read()["forked"]
    child.process.kill()
    child.process.wait(90)
    try:
        wait_until(lambda: not processes_of(root) and not root.exists())
    finally:
        os.killpg(child.process.pid, signal.SIGKILL)
    assert forked > 0


def test_a_killed_watchdog_is_reported_and_its_servers_are_ended(processes_of, wait_until):
    services = EmbeddedServices().start()
    root = services.root
    watchdog = int(
        Path(f"/proc/{services.redis.pid}/stat").read_text().rpartition(")")[2].split()[1]
    )  # its parent
    os.kill(watchdog, signal.SIGKILL)
    with pytest.raises(EmbeddedServiceError, match="watchdog: does not answer"):
        services.postgres.stop()
    with pytest.raises(EmbeddedServiceError, match="watchdog: ended with status -9"):
        services.close()
    wait_until(lambda: not processes_of(root))
    assert not root.exists()
