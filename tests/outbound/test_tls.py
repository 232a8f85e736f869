"""TLS with a CA bundle of one's own, for both clients: httpx and the probes' lean one."""

import asyncio
import ssl

import httpx
import pytest

from app.outbound import Guard, GuardError, guarded_client, parse_url
from app.outbound.http import get_capped, tls_context
from app.probing import connection
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.probing.connection import RankConnection
from app.probing.errors import Failure
from app.probing.stream import Exchange

from .servers import BOUND_S, Authority, FakeServer, always, answer_names, whole

GUARD = Guard(["127.0.0.0/8"])
NAME = "replica.test"
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: replica\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(scope="module")
def authority():
    return Authority()


def through_httpx(url, ca_pem):
    async def run():
        async with guarded_client(GUARD, ca_pem=ca_pem) as client:
            return (await get_capped(client, url))[0]

    return run()


def through_rank_connection(url, ca_pem):
    async def run():
        endpoint = ProbeEndpoint(parse_url(url), (0,), "url")
        opened = RankConnection(ReplicaAccess("probe", [7], [endpoint], GUARD, ca_pem=ca_pem), 0)
        failure = await opened.open()
        if failure is not None:
            return failure
        await opened.send(REQUEST)
        exchange = opened.answer()
        opened.close()
        assert isinstance(exchange, Exchange)
        return exchange.status

    return run()


def call(client, context, host, ca_pem):
    """Call a TLS server under a host name; return the outcome and the server names it was asked for."""
    names = []
    context.sni_callback = lambda _, name, __: names.append(name)

    async def run():
        async with asyncio.timeout(BOUND_S), FakeServer(always(whole(200)), context) as server:
            return await client(f"https://{host}:{server.port}", ca_pem), len(server.received)

    return *asyncio.run(run()), names


@pytest.mark.parametrize("client", [through_httpx, through_rank_connection])
@pytest.mark.parametrize("host", ["127.0.0.1", NAME])
def test_a_server_of_the_bundle_s_authority_is_trusted(client, host, authority, tmp_path, monkeypatch):
    if host == NAME:
        answer_names(monkeypatch, ["127.0.0.1"])
    outcome, received, names = call(client, authority.server(tmp_path, host), host, authority.pem)
    assert (outcome, received) == (200, 1)
    assert names == [NAME if host == NAME else None]


@pytest.mark.parametrize("certified", ["other.test", "127.0.0.2"])
def test_httpx_refuses_a_certificate_of_another_host(certified, authority, tmp_path, monkeypatch):
    answer_names(monkeypatch, ["127.0.0.1"])
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        call(through_httpx, authority.server(tmp_path, certified), NAME, authority.pem)


@pytest.mark.parametrize("certified", ["other.test", "127.0.0.2"])
def test_a_probe_refuses_a_certificate_of_another_host(certified, authority, tmp_path, monkeypatch):
    answer_names(monkeypatch, ["127.0.0.1"])
    failure, received, _ = call(
        through_rank_connection, authority.server(tmp_path, certified), NAME, authority.pem
    )
    assert isinstance(failure, Failure)
    assert "replica.test" in failure.detail
    assert received == 0


@pytest.mark.parametrize("ca_pem", ["another authority", None])
def test_an_unknown_authority_is_refused_and_no_rank_is_blamed(ca_pem, authority, tmp_path):
    bundle = Authority().pem if ca_pem else None
    context = authority.server(tmp_path, "127.0.0.1")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        call(through_httpx, context, "127.0.0.1", bundle)
    failure, received, _ = call(through_rank_connection, context, "127.0.0.1", bundle)
    assert (failure.code, failure.rank, received) == ("endpoint_unreachable", 0, 0)
    assert "TLS" in failure.detail
    assert "ca_pem" in failure.detail


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "waits for the rest"])
def test_plain_http_behind_https_is_a_tls_failure_and_no_rank_is_blamed(answers, monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.5)

    async def run():
        ended = asyncio.Event()

        async def plain(reader, writer):
            await reader.read(1)
            if answers:
                writer.write(whole(400))
            else:
                await ended.wait()
            writer.close()

        async with asyncio.timeout(BOUND_S), await asyncio.start_server(plain, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            failure = await through_rank_connection(f"https://127.0.0.1:{port}", None)
            ended.set()
        return failure

    failure = asyncio.run(run())
    assert failure.code == "endpoint_unreachable"
    assert "TLS" in failure.detail or "SSL" in failure.detail


def test_a_bundle_alone_is_trusted(authority):
    context = tls_context(authority.pem)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert [dict(x[0] for x in c["subject"])["commonName"] for c in context.get_ca_certs()] == ["Test CA"]


def test_contexts_are_made_once(authority):
    # Reading the system's trust takes tens of milliseconds: not once a rank.
    assert tls_context(None) is tls_context(None)
    assert tls_context(authority.pem) is tls_context(authority.pem)
    assert tls_context(authority.pem) is not tls_context(None)


@pytest.mark.parametrize(
    "ca_pem",
    [
        "",
        " \n",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMü\n-----END CERTIFICATE-----\n",
        "\ud800",
        "\x00",
    ],
)
def test_a_bundle_without_a_certificate_is_refused(ca_pem):
    with pytest.raises(GuardError, match="ca_pem"):
        tls_context(ca_pem)
