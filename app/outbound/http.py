"""An httpx client that connects only where the guard allows."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from functools import lru_cache
from typing import Any

import httpx

from app.outbound.guard import Guard, GuardError, Target, parse_url

MAX_RESPONSE_BYTES = 1 << 20
MAX_RESPONSE_S = 20.0


class ResponseTooLargeError(GuardError):
    """An answer longer than what control traffic needs."""


class _GuardedTransport(httpx.AsyncBaseTransport):
    """Resolves, checks, and sends the request to a checked address, keeping Host and SNI."""

    def __init__(self, guard: Guard, verify: ssl.SSLContext) -> None:
        self._guard = guard
        self._verify = verify
        # A pool a host, since a pool sees addresses only: a connection whose certificate was checked for one
        # name must not carry the requests of another name at the same address.
        self._pools: dict[str, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        target = parse_url(str(url.copy_with(query=None)))
        *others, last = await self._guard.resolve(target)
        pool = self._pool(target)
        request.headers["Host"] = target.host_header
        request.extensions = {**request.extensions, "sni_hostname": target.host}
        for address in others:
            request.url = url.copy_with(host=address)
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await pool.handle_async_request(request)
        request.url = url.copy_with(host=last)
        return await pool.handle_async_request(request)

    def _pool(self, target: Target) -> httpx.AsyncHTTPTransport:
        if target.host not in self._pools:
            # A replica may have hundreds of URLs; waiting for a pool's slot would look like a silent server.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._pools[target.host] = httpx.AsyncHTTPTransport(
                verify=self._verify, trust_env=False, retries=0, limits=limits
            )
        return self._pools[target.host]

    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()


@lru_cache(maxsize=16)
def tls_context(ca_pem: str | None) -> ssl.SSLContext:
    """System trust, or the given CA bundle alone; made once, since reading the system's takes 60 ms.

    Raises
    ------
    GuardError
        When the bundle holds no certificate.
    """
    # An empty bundle would silently mean the system's trust.
    if ca_pem is not None and (not ca_pem or not ca_pem.isascii()):
        raise GuardError("ca_pem holds no readable PEM certificate")
    try:
        return ssl.create_default_context(cadata=ca_pem)
    except (ssl.SSLError, ValueError):
        raise GuardError("ca_pem holds no readable PEM certificate") from None


def tls_reason(error: BaseException) -> str | None:
    """What TLS has against a server, when that is behind an error; None when it is not."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    return f"TLS: {getattr(cause, 'verify_message', None) or cause.reason or 'handshake failed'}"


def tls_failure(error: BaseException) -> str | None:
    """`tls_reason` of a replica's server, with what to look at."""
    reason = tls_reason(error)
    return None if reason is None else f"{reason}; check the URL's scheme and host, and ca_pem"


def guarded_client(
    guard: Guard, *, ca_pem: str | None = None, bearer: str | None = None, timeout_s: float = 10.0
) -> httpx.AsyncClient:
    """A client without redirects, proxies from the environment, or long waits.

    Parameters
    ----------
    guard : Guard
        Decides by address.
    ca_pem : str, optional
        CA bundle of the replica.
    bearer : str, optional
        Token sent as ``Authorization: Bearer``.
    timeout_s : float
        For connecting and for every read, in seconds.
    """
    # What is not unpacked cannot grow beyond the size that was read.
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {bearer}"} if bearer else {})
    return httpx.AsyncClient(
        transport=_GuardedTransport(guard, tls_context(ca_pem)),
        headers=headers,
        timeout=timeout_s,
        follow_redirects=False,
        trust_env=False,
    )


async def get_capped(client: httpx.AsyncClient, url: str) -> tuple[int, bytes]:
    """GET with a bounded body in bounded time.

    Returns
    -------
    tuple of (int, bytes)
        Status and body.

    Raises
    ------
    GuardError
        When the address is refused.
    ResponseTooLargeError
        When the body exceeds 1 MiB.
    httpx.HTTPError
        When the server cannot be reached, or has not sent all of its answer in 20 s.
    """
    return await _capped(client, make_request(client, "GET", url))


async def post_capped(
    client: httpx.AsyncClient, url: str, document: object, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """POST a JSON document; see `get_capped`."""
    return await _capped(client, make_request(client, "POST", url, json=document, headers=headers))


def make_request(client: httpx.AsyncClient, method: str, url: str, **content: Any) -> httpx.Request:
    """Build a request.

    Raises
    ------
    GuardError
        When the URL cannot be called: its host is not a valid internationalised name, or a malformed address.
    """
    try:
        return client.build_request(method, url, **content)
    except (httpx.InvalidURL, UnicodeError):
        raise GuardError("the URL cannot be called: its host is malformed") from None


async def _capped(client: httpx.AsyncClient, request: httpx.Request) -> tuple[int, bytes]:
    try:
        async with asyncio.timeout(MAX_RESPONSE_S):
            response = await client.send(request, stream=True)
            try:
                return response.status_code, await _body(response)
            finally:
                await response.aclose()
    except TimeoutError:
        raise httpx.ReadTimeout(f"no whole answer in {MAX_RESPONSE_S:g} s", request=request) from None


async def _body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise ResponseTooLargeError("the answer is larger than 1 MiB")
    return bytes(body)
