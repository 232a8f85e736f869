"""Runs a ``faultsense`` command that must not outlive the process that started it.

``python -m app.cli.guarded PARENT_PID COMMAND ...``; the parent may be killed without a chance to clean up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

CHECK_S = 0.5


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_S)
    os.killpg(0, signal.SIGTERM)
    time.sleep(5 * CHECK_S)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Start the command and follow the parent."""
    parent = int(sys.argv.pop(1))
    pid = os.fork()
    if pid == 0:
        from app.cli import main as run

        run()
        return
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
