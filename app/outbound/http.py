"""An httpx client that connects only where the guard allows."""

from __future__ import annotations

import ssl

import httpx

from app.outbound.guard import Guard, GuardError, parse_url

MAX_RESPONSE_BYTES = 1 << 20


class _GuardedTransport(httpx.AsyncBaseTransport):
    """Resolves, checks, and sends the request to the checked address, keeping Host and SNI."""

    def __init__(self, guard: Guard, verify: ssl.SSLContext) -> None:
        self._guard = guard
        self._inner = httpx.AsyncHTTPTransport(verify=verify, trust_env=False, retries=0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        target = parse_url(str(request.url.copy_with(query=None)))
        address = await self._guard.resolve(target)
        request.headers["Host"] = target.authority
        request.extensions = {**request.extensions, "sni_hostname": target.host}
        request.url = request.url.copy_with(host=address)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def tls_context(ca_pem: str | None) -> ssl.SSLContext:
    """System trust, or the given CA bundle alone.

    Raises
    ------
    GuardError
        When the bundle holds no certificate.
    """
    try:
        return ssl.create_default_context(cadata=ca_pem)
    except (ssl.SSLError, ValueError):
        raise GuardError("ca_pem holds no readable PEM certificate") from None


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
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    return httpx.AsyncClient(
        transport=_GuardedTransport(guard, tls_context(ca_pem)),
        headers=headers,
        timeout=timeout_s,
        follow_redirects=False,
        trust_env=False,
    )


async def get_capped(client: httpx.AsyncClient, url: str) -> tuple[int, bytes]:
    """GET with a bounded body.

    Returns
    -------
    tuple of (int, bytes)
        Status and body.

    Raises
    ------
    GuardError
        When the address is refused or the body exceeds 1 MiB.
    httpx.HTTPError
        When the server cannot be reached.
    """
    return await _capped(client, client.build_request("GET", url))


async def post_capped(
    client: httpx.AsyncClient, url: str, document: object, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """POST a JSON document; see `get_capped`."""
    return await _capped(client, client.build_request("POST", url, json=document, headers=headers))


async def _capped(client: httpx.AsyncClient, request: httpx.Request) -> tuple[int, bytes]:
    response = await client.send(request, stream=True)
    try:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_RESPONSE_BYTES:
                raise GuardError("the answer is larger than 1 MiB")
        return response.status_code, bytes(body)
    finally:
        await response.aclose()
