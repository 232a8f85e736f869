"""One request to a receiver, and what its answer means."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx

from app.outbound import GuardError
from app.outbound.http import make_request, tls_reason

ASKS_TO_WAIT = {429, 503}
GONE = 410
# Longest wait that a receiver may ask for.
MAX_WAIT = dt.timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt went; nothing of it is the receiver's own words.

    Parameters
    ----------
    status : int, optional
        Of the answer; None without one.
    error : str, optional
        Why it does not count as delivered; None when it does.
    duration_ms : float
        From the look-up of the name to the answer's head.
    wait : timedelta or datetime, optional
        What ``Retry-After`` asked for, as an interval or as a moment.
    """

    status: int | None
    error: str | None
    duration_ms: float = 0.0
    wait: dt.timedelta | dt.datetime | None = None

    @property
    def gone(self) -> bool:
        """Whether the receiver wants no more events, ever."""
        return self.status == GONE


async def send(
    client: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str], *, timeout_s: float
) -> Outcome:
    """POST an event; the answer's body is never read.

    Parameters
    ----------
    client : httpx.AsyncClient
        A guarded one.
    url : str
        As registered.
    body : bytes
        JSON.
    headers : dict
        Id, time and signatures.
    timeout_s : float
        For everything, from the look-up of the name to the answer's head, in seconds.
    """
    started = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            request = make_request(
                client, "POST", url, content=body, headers={**headers, "Content-Type": "application/json"}
            )
            response = await client.send(request, stream=True)
    except (TimeoutError, httpx.TimeoutException):
        found = Outcome(None, f"no answer within {timeout_s:g} s")
    except GuardError as error:
        found = Outcome(None, f"not called: {error}"[:300])
    except (httpx.HTTPError, ssl.SSLError) as error:
        found = Outcome(None, _failure(error))
    else:
        found = judge(response)
        with suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(1.0):
                await response.aclose()
    return Outcome(found.status, found.error, round((time.monotonic() - started) * 1000, 1), found.wait)


def judge(response: httpx.Response) -> Outcome:
    """Only 2xx is a success: a redirect may lead anywhere, so it is never followed."""
    status = response.status_code
    if response.is_success:
        return Outcome(status, None)
    if response.is_redirect or 300 <= status < 400:
        return Outcome(status, "answered with a redirect; register the URL that it leads to")
    if status == GONE:
        return Outcome(status, "answered 410 Gone: wants no more events")
    wait = retry_after(response.headers.get("Retry-After", "")) if status in ASKS_TO_WAIT else None
    return Outcome(status, f"answered {status}", wait=wait)


def retry_after(text: str) -> dt.timedelta | dt.datetime | None:
    """Read a ``Retry-After``: seconds, or a date in the future or past; None when it is neither."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(dt.timedelta(seconds=int(text.lstrip("0")[:9] or 0)), MAX_WAIT)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def _failure(error: Exception) -> str:
    if (tls := tls_reason(error)) is not None:
        return tls[:300]
    if isinstance(error, httpx.ConnectError):
        return "cannot be connected to; is the receiver up?"
    return "the connection broke, or the answer is not HTTP"
