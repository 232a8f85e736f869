"""The guarded httpx client against real servers on loopback."""

import asyncio
import gzip

import httpx
import pytest

from app.outbound import Guard, GuardError, guarded_client, http
from app.outbound.http import MAX_RESPONSE_BYTES, get_capped, post_capped

from .servers import BOUND_S, FakeServer, always, answer_names, closed_port, silent, whole

GUARD = Guard(["127.0.0.0/8", "::1/128"])


def talk(answer, conversation, guard=GUARD, **options):
    """Run a conversation with a server; return its result and the server."""

    async def run():
        async with (
            asyncio.timeout(BOUND_S),
            FakeServer(answer) as server,
            guarded_client(guard, **options) as client,
        ):
            return await conversation(client, server), server

    return asyncio.run(run())


def test_get_and_post_reach_the_server_with_host_and_bearer():
    async def conversation(client, server):
        found = await get_capped(client, f"{server.url}/v1/models")
        return found, await post_capped(client, f"{server.url}/v1/completions", {"a": 1}, {"X-Rank": "3"})

    (got, posted), server = talk(always(whole(200, {"ok": True})), conversation, bearer="secret")
    assert got == posted == (200, b'{"ok": true}')
    get, post = server.received
    assert (get.method, get.target) == ("GET", "/v1/models")
    assert (post.method, post.document, post.headers["x-rank"]) == ("POST", {"a": 1}, "3")
    for request in (get, post):
        assert request.headers["host"] == f"127.0.0.1:{server.port}"
        assert request.headers["authorization"] == "Bearer secret"
    assert server.connections == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_answers_and_not_followed(status):
    async def conversation(client, server):
        async with FakeServer(always(whole(200))) as other:
            location = {"location": f"{other.url}/latest/meta-data"}
            server.answer = always(whole(status, **location))
            return await get_capped(client, server.url), len(other.received)

    (answer, followed), _ = talk(silent, conversation)
    assert answer == (status, b"")
    assert followed == 0


def test_proxies_of_the_environment_are_ignored(monkeypatch):
    async def conversation(client, server):
        return await get_capped(client, f"{server.url}/direct"), len(server.received)

    async def run():
        async with (
            asyncio.timeout(BOUND_S),
            FakeServer(always(whole(418))) as proxy,
            FakeServer(always(whole(200))) as server,
        ):
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
                monkeypatch.setenv(name, proxy.url)
            for name in ("NO_PROXY", "no_proxy"):
                monkeypatch.delenv(name, raising=False)
            async with guarded_client(GUARD) as client:
                assert (await get_capped(client, server.url))[0] == 200
            assert (len(server.received), len(proxy.received)) == (1, 0)

    asyncio.run(run())


def test_a_name_whose_answer_changes_is_called_where_it_was_checked(monkeypatch):
    asked = answer_names(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])

    async def conversation(client, server):
        url = f"http://replica.test:{server.port}/v1/models"
        first = await get_capped(client, url)
        with pytest.raises(GuardError, match="metadata"):
            await get_capped(client, url)
        return first

    answer, server = talk(always(whole(200)), conversation)
    assert answer[0] == 200
    assert asked == ["replica.test"] * 2
    assert [r.headers["host"] for r in server.received] == [f"replica.test:{server.port}"]


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "http://10.0.0.1:8000", "http://[::ffff:a00:1]"])
def test_a_forbidden_address_is_not_connected_to(url):
    async def conversation(client, _):
        with pytest.raises(GuardError, match=r"never called|not in the networks"):
            await get_capped(client, url)

    talk(silent, conversation)


@pytest.mark.parametrize("first", ["127.0.0.2", "::1"])
def test_the_next_address_of_a_name_is_tried_when_one_refuses(first, monkeypatch):
    answer_names(monkeypatch, [first, "127.0.0.1"])

    async def conversation(client, server):
        return await get_capped(client, f"http://replica.test:{server.port}")

    assert talk(always(whole(200)), conversation)[0][0] == 200


def test_a_closed_port_is_a_connect_error():
    async def conversation(client, _):
        with pytest.raises(httpx.ConnectError):
            await get_capped(client, f"http://127.0.0.1:{closed_port()}")

    talk(silent, conversation)


def test_an_answer_of_exactly_the_limit_is_taken_and_a_longer_one_is_not():
    async def conversation(client, server):
        size = MAX_RESPONSE_BYTES
        server.answer = always(whole(200, b"a" * size))
        assert len((await get_capped(client, server.url))[1]) == size
        server.answer = always(whole(200, b"a" * (size + 1)))
        with pytest.raises(GuardError, match="larger than 1 MiB"):
            await get_capped(client, server.url)

    talk(silent, conversation)


def test_an_endless_answer_is_cut_off():
    written = 0

    async def endless(_, writer):
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"8000\r\n" + b"a" * 0x8000 + b"\r\n")
            await writer.drain()
            written += 0x8000

    async def conversation(client, server):
        with pytest.raises(GuardError, match="larger than 1 MiB"):
            await get_capped(client, server.url)

    talk(endless, conversation)
    assert written < 16 * MAX_RESPONSE_BYTES  # what fits into socket buffers, not what the server would send


def test_a_compressed_answer_is_not_unpacked():
    bomb = gzip.compress(b"a" * (8 * MAX_RESPONSE_BYTES))

    async def conversation(client, server):
        return await get_capped(client, server.url)

    (_, body), server = talk(always(whole(200, bomb, content_encoding="gzip")), conversation)
    assert body == bomb
    assert server.received[0].headers["accept-encoding"] == "identity"


def test_an_answer_that_drips_is_cut_off_in_time(monkeypatch):
    monkeypatch.setattr(http, "MAX_RESPONSE_S", 0.2)

    async def drip(_, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while True:  # every read of it is quick
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def conversation(client, server):
        with pytest.raises(httpx.ReadTimeout, match=r"0\.2 s"):
            await get_capped(client, server.url)

    talk(drip, conversation)


def test_a_silent_server_is_a_read_timeout():
    async def conversation(client, server):
        with pytest.raises(httpx.ReadTimeout):
            await get_capped(client, server.url)

    talk(silent, conversation, timeout_s=0.1)


def test_more_requests_than_a_usual_pool_holds_do_not_wait_for_each_other(monkeypatch):
    monkeypatch.setattr(http, "MAX_RESPONSE_S", BOUND_S)
    together = 110

    async def conversation(client, server):
        everybody = asyncio.Event()

        async def answer(_, writer):
            if len(server.received) == together:
                everybody.set()
            await everybody.wait()
            writer.write(whole(200))

        server.answer = answer
        found = await asyncio.gather(*(get_capped(client, server.url) for _ in range(together)))
        return {status for status, _ in found}

    assert talk(silent, conversation, timeout_s=BOUND_S)[0] == {200}
