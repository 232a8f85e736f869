"""What can go wrong with a private server, as one typed error."""

from __future__ import annotations

from pathlib import Path

TAIL_BYTES = 4096
TAIL_LINES = 15


class EmbeddedServiceError(RuntimeError):
    """A private server cannot be found, started, reached or stopped.

    Parameters
    ----------
    service : str
        Which one: ``"PostgreSQL"``, ``"Redis"``, ``"watchdog"``, ``"root folder"`` or the name of a program.
    problem : str
        What happened, one sentence.
    advice : str
        What to do about it.
    log : str
        The last lines of the server's log, if it wrote any.
    """

    def __init__(self, service: str, problem: str, *, advice: str = "", log: str = "") -> None:
        self.service, self.problem, self.advice, self.log = service, problem, advice, log
        parts = [f"{service}: {problem}"]
        if advice:
            parts.append(f"What to do: {advice}")
        if log:
            parts.append(f"Last log lines:\n{log}")
        super().__init__("\n".join(parts))


def log_tail(path: Path) -> str:
    """Return the last lines of a log file; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-TAIL_LINES:])
