"""What can go wrong with a probe, each as a code that a verdict can state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FailureCode = Literal[
    "load_too_high",  # more than the server takes in a step: never sent
    "overloaded",  # the engine's queue is full (503, also inside a 200 stream)
    "connection_lost",  # the stream broke off
    "no_common_window",  # the senders did not decode together long enough
    "parking_timed_out",  # an idle rank's request to its own GPU found no answer, and others did
    "engine_failed",  # 500: a worker died
    "rank_refused",  # a rank's own URL refuses connections
    "endpoint_unreachable",  # a URL shared by several ranks refuses connections
    "model_not_found",  # 404: not the probe model's server
    "request_rejected",  # 400 and others: the server does not take the probe
    "rank_out_of_range",  # fewer data-parallel ranks than declared
    "echo_broken",  # other tokens came back than the probe model echoes
    "stream_cut",  # fewer tokens than asked for
    "response_too_large",
    "bad_response",  # no HTTP, or no JSON where JSON is due
    "address_refused",  # the outbound guard
]
#: Nothing could be sent.
UNREACHABLE: frozenset[FailureCode] = frozenset({"rank_refused", "endpoint_unreachable"})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request gave no latency.

    Parameters
    ----------
    code : str
        One of `FailureCode`.
    detail : str
        For a person; never holds a response body.
    rank : int or None
        The sender whose request failed.
    """

    code: FailureCode
    detail: str
    rank: int | None = None


class PreflightError(Exception):
    """A replica that must not be probed as it is.

    Parameters
    ----------
    code : str
        Stable, for programs.
    detail : str
        What is wrong, at which endpoint, and what to do.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
