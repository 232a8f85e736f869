"""One rank's connection: how it opens, whom it blames, and when it is used again."""

import asyncio
import errno
import socket
from statistics import median

import pytest

from app.outbound import Guard, parse_url
from app.probing import connection as module
from app.probing import recorder
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.probing.connection import RankConnection
from app.probing.errors import Failure
from app.probing.requests import prepare
from app.probing.stream import Tokens, read_tokens
from tests.outbound.servers import FakeServer, Hangup, always, answer_names, closed_port, full_port, silent, whole

from .support import BOUND_S, STREAM_END, STREAM_HEAD, access_to, echo, event, stream, token

BODY = {"prompt": [[7]], "max_tokens": 1}


def on_server(answer, conversation, **more):
    """Run a conversation over a connection to rank 0 of a server."""

    async def run():
        async with asyncio.timeout(BOUND_S), FakeServer(answer) as server:
            access = access_to(server.url, **more)
            opened = RankConnection(access, 0)
            try:
                return await conversation(opened, prepare(access, 0, BODY), server)
            finally:
                opened.close()

    return asyncio.run(run())


async def ask(opened, request):
    """Open where needed, send, and read the outcome."""
    failure = await opened.open()
    if failure is not None:
        return failure
    await opened.send(request)
    answer = opened.answer()
    return answer if isinstance(answer, Failure) else read_tokens(answer)


async def until_useless(opened):
    """Let the client notice that its connection is gone."""
    while opened._recorder is not None and opened._recorder.usable:  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0)


def opening(access):
    async def run():
        async with asyncio.timeout(BOUND_S):
            opened = RankConnection(access, 0)
            failure = await opened.open()
            opened.close()
            return failure

    return asyncio.run(run())


def test_one_connection_carries_request_after_request():
    async def conversation(opened, request, server):
        outcomes = [await ask(opened, request) for _ in range(3)]
        assert server.connections == 1
        assert [r.headers["host"] for r in server.received] == [f"127.0.0.1:{server.port}"] * 3
        return outcomes

    assert [outcome.ids for outcome in on_server(echo, conversation)] == [{0: [7]}] * 3


@pytest.mark.parametrize(
    "answer", [whole(503, connection="close"), whole(503) + b"left over", b"HTTP/1.0 503 -\r\n\r\n"]
)
def test_a_connection_that_cannot_go_on_is_opened_again(answer):
    hangs_up = answer.startswith(b"HTTP/1.0")

    async def reply(_, writer):
        writer.write(answer)
        if hangs_up:
            raise Hangup

    async def conversation(opened, request, server):
        assert [(await ask(opened, request)).code for _ in range(2)] == ["overloaded"] * 2
        return server.connections

    assert on_server(reply, conversation) == 2


def test_a_word_in_an_error_s_text_does_not_make_it_a_stream():
    text = b"max_num_batched_tokens is too small: enable chunked prefill. Transfer-Encoding: chunked"

    async def conversation(opened, request, _):
        return await ask(opened, request)

    assert on_server(always(whole(400, text)), conversation).code == "request_rejected"


def test_a_connection_that_was_lost_before_sending_ends_its_request_at_once():
    async def hang_up(*_):
        raise Hangup

    async def conversation(opened, request, server):
        await ask(opened, request)
        server.answer = echo
        assert await opened.open() is None
        opened._recorder.connection_lost(None)  # while other ranks were still connecting
        await opened.send(request)
        return read_tokens(opened.answer())

    assert on_server(hang_up, conversation).code == "connection_lost"


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again():
    closed = asyncio.Event()

    async def answer_and_close(received, writer):
        await echo(received, writer)
        if received.connection == 0:
            closed.set()
            raise Hangup

    async def conversation(opened, request, server):
        first = await ask(opened, request)
        await closed.wait()
        await until_useless(opened)
        return first, await ask(opened, request), server.connections

    first, second, connections = on_server(answer_and_close, conversation)
    assert isinstance(first, Tokens)
    assert isinstance(second, Tokens)
    assert connections == 2


def test_a_connection_that_the_server_closed_while_nobody_looked_is_opened_again():
    """As when a server's keep-alive ends while the worker writes to its database."""

    async def run(listening):
        access = access_to(f"http://127.0.0.1:{listening.getsockname()[1]}")
        opened = RankConnection(access, 0)
        assert await opened.open() is None
        listening.accept()[0].close()  # blocks the event loop: the client has not seen the end yet
        await asyncio.sleep(0)  # as before each probe's budget,
        await asyncio.sleep(0)  # and for each of its connections
        assert await opened.open() is None
        done = opened.send(prepare(access, 0, BODY))
        with listening.accept()[0] as peer:
            peer.sendall(stream(token(0, [7])))
            await asyncio.wait_for(done, BOUND_S)
        return read_tokens(opened.answer())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(BOUND_S)
        assert asyncio.run(run(listening)).ids == {0: [7]}


def test_what_nobody_asked_for_is_not_taken_for_an_answer():
    async def conversation(opened, request, server):
        writers = []

        async def answer(received, writer):
            writers.append(writer)
            await echo(received, writer)

        server.answer = answer
        await ask(opened, request)
        writers[0].write(stream(token(0, [666])))
        await until_useless(opened)
        return await ask(opened, request), server.connections

    tokens, connections = on_server(silent, conversation)
    assert tokens.ids == {0: [7]}
    assert connections == 2


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "bad_response"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000, "bad_response"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n", "bad_response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "bad_response"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "bad_response"),
        (b"", "connection_lost"),
        (b"HTTP/1.1 200 OK\r\n", "connection_lost"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ndata: ", "connection_lost"),
        (STREAM_HEAD + token(0, [7]), "connection_lost"),
        (STREAM_HEAD + event({"error": {"code": 500}}), "engine_failed"),
    ],
)
def test_a_broken_answer_is_a_typed_failure_and_the_next_one_is_read(answer, code):
    async def reply(received, writer):
        if received.connection > 0:
            await echo(received, writer)
        else:
            writer.write(answer)
            raise Hangup

    async def conversation(opened, request, _):
        return await ask(opened, request), await ask(opened, request)

    failure, then = on_server(reply, conversation)
    assert failure.code == code
    assert then.ids == {0: [7]}


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux lets a client acknowledge at once")
def test_a_server_that_waits_for_acknowledgements_is_not_kept_waiting():
    """Without TCP_NODELAY a server's second small write leaves when the first one is acknowledged."""

    async def answer(_, writer):
        writer.write(STREAM_HEAD + token(0, [7]))
        writer.write(token(0, [7]))
        writer.write(STREAM_END)

    async def conversation(opened, request, server):
        medians = []
        for nodelay in (1, 0):

            async def set_and_answer(received, writer, nodelay=nodelay):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, nodelay)
                await answer(received, writer)

            server.answer = set_and_answer
            spreads = []
            for _ in range(15):
                await opened.open()
                await opened.send(request)
                times = read_tokens(opened.answer()).times[0]
                spreads.append(1000 * (times[-1] - times[0]))
            medians.append(median(spreads))
        return medians

    nodelay_ms, nagle_ms = on_server(silent, conversation)
    assert nagle_ms < nodelay_ms + 20


@pytest.mark.parametrize("head", [STREAM_HEAD, b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"])
def test_an_endless_answer_is_cut_off(head, monkeypatch):
    monkeypatch.setattr(recorder, "MAX_BYTES", 1 << 18)

    async def reply(_, writer):
        writer.write(head)
        while True:
            writer.write(b"8000\r\n" + b"a" * 0x8000 + b"\r\n")
            await writer.drain()

    async def conversation(opened, request, server):
        failure = await ask(opened, request)
        server.answer = echo
        return failure, await ask(opened, request)

    failure, then = on_server(reply, conversation)
    assert failure.code == "response_too_large"
    assert then.ids == {0: [7]}


def shared(url):
    return access_to(url, gpus=2)


def test_a_refusal_is_blamed_on_a_rank_only_on_its_own_url():
    url = f"http://127.0.0.1:{closed_port()}"
    own, together = opening(access_to(url)), opening(shared(url))
    assert (own.code, own.rank) == ("rank_refused", 0)
    assert (together.code, together.rank) == ("endpoint_unreachable", 0)
    for failure in (own, together):
        assert url in failure.detail
        assert "refuses connections" in failure.detail


def test_an_endpoint_with_one_rank_is_its_own_url_whatever_the_choice():
    assert opening(access_to(f"http://127.0.0.1:{closed_port()}", gpus=1)).code == "rank_refused"


def test_a_port_that_takes_no_connections_in_time_refuses(monkeypatch):
    monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", 0.1)
    with full_port() as port:
        failure = opening(access_to(f"http://127.0.0.1:{port}"))
    assert failure.code == "rank_refused"
    assert "in time" in failure.detail


def connecting_fails(monkeypatch, *errors):
    """Make connecting raise one error after the other."""
    left = list(errors)

    async def create_connection(*_, **__):
        raise left.pop(0)

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", create_connection)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ECONNREFUSED, "rank_refused"),
        (errno.ETIMEDOUT, "rank_refused"),
        (errno.EHOSTUNREACH, "rank_refused"),
        (errno.EMFILE, "endpoint_unreachable"),
        (errno.ENFILE, "endpoint_unreachable"),
        (errno.EADDRNOTAVAIL, "endpoint_unreachable"),
        (errno.ENETUNREACH, "endpoint_unreachable"),
        (errno.EACCES, "endpoint_unreachable"),
        (errno.ECONNRESET, "endpoint_unreachable"),
    ],
)
def test_only_the_other_side_s_refusal_blames_a_rank(number, code, monkeypatch):
    connecting_fails(monkeypatch, OSError(number, "text"))
    failure = opening(access_to("http://127.0.0.1:1"))
    assert failure.code == code
    assert failure.rank == 0


def test_a_refusal_counts_more_than_what_else_went_wrong(monkeypatch):
    answer_names(monkeypatch, ["127.0.0.2", "127.0.0.1"])
    unreachable, refused = OSError(errno.ENETUNREACH, ""), ConnectionRefusedError(errno.ECONNREFUSED, "")
    connecting_fails(monkeypatch, unreachable, refused)
    assert opening(access_to("http://replica.test:1")).code == "rank_refused"


@pytest.mark.parametrize("first", ["127.0.0.2", "::1"])
def test_the_next_address_of_a_name_is_tried_when_one_refuses(first, monkeypatch):
    answer_names(monkeypatch, [first, "127.0.0.1"])

    async def run():
        async with asyncio.timeout(BOUND_S), FakeServer(echo) as server:
            endpoint = ProbeEndpoint(parse_url(f"http://replica.test:{server.port}"), (0,), "url")
            access = ReplicaAccess("probe", [7], [endpoint], Guard(["127.0.0.0/8", "::1/128"]))
            return await ask(RankConnection(access, 0), prepare(access, 0, BODY))

    assert asyncio.run(run()).ids == {0: [7]}


def test_a_name_whose_answer_changes_is_connected_to_where_it_was_checked(monkeypatch):
    asked = answer_names(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])

    async def run():
        async with asyncio.timeout(BOUND_S), FakeServer(echo) as server:
            access = access_to(f"http://replica.test:{server.port}")
            opened = RankConnection(access, 0)
            first = await ask(opened, prepare(access, 0, BODY))
            opened.close()
            return first, await opened.open()

    first, then = asyncio.run(run())
    assert first.ids == {0: [7]}
    assert then.code == "address_refused"
    assert len(asked) == 2


@pytest.mark.parametrize("url", ["http://169.254.169.254", "http://10.0.0.1", "http://[::ffff:10.0.0.1]"])
def test_a_forbidden_address_is_refused_without_connecting(url, monkeypatch):
    connecting_fails(monkeypatch)
    failure = opening(access_to(url))
    assert (failure.code, failure.rank) == ("address_refused", 0)


def test_a_name_that_no_name_server_can_take_is_refused(monkeypatch):
    async def getaddrinfo(*_, **__):
        raise UnicodeError("label empty or too long")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    assert opening(access_to("http://replica.test")).code == "address_refused"


def test_a_name_that_does_not_resolve_blames_no_rank(monkeypatch):
    async def getaddrinfo(*_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    assert opening(access_to("http://replica.test")).code == "address_refused"
