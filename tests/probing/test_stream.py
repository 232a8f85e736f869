"""Recorded bytes to tokens or typed failures, in whatever pieces they come."""

import asyncio
import json
import time
from itertools import pairwise
from statistics import median
from typing import get_args

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.probing.errors import Failure, FailureCode
from app.probing.recorder import AnswerRecorder
from app.probing.stream import Exchange, Tokens, read_exchange, read_tokens

from .support import SAMPLES, STREAM_END, STREAM_HEAD, chunk, event, sample, stream, token, whole

OK = {0: [7, 7, 7]}
# Every recorded answer, read as the answer to a probe. Plain JSON with status 200 is no stream.
EXPECTED = {
    "ok_stream.txt": OK,
    "dp_rank_0.txt": "bad_response",
    "dp_rank_5.txt": "rank_out_of_range",
    "dp_rank_abc.txt": "bad_response",
    "embeds_nan.txt": "bad_response",
    "embeds_ok.txt": "bad_response",
    "err_embeds_wrong_hidden.txt": "request_rejected",
    "err_overload_plain.txt": "overloaded",
    "err_overload_stream.txt": "overloaded",
    "err_prompt_embeds_not_enabled_or_bad.txt": "request_rejected",
    "err_prompt_too_long.txt": "request_rejected",
    "err_token_ge_vocab.txt": "request_rejected",
    "err_token_negative.txt": "request_rejected",
    "err_worker_killed_midstream.txt": "engine_failed",
    "err_wrong_model.txt": "model_not_found",
    "err_wrong_model_stream.txt": "model_not_found",
    "get_health.txt": "bad_response",
    "get_load.txt": "bad_response",
    "get_v1_models.txt": "bad_response",
    "get_version.txt": "bad_response",
    "ok_batch_prompts.txt": "bad_response",
    "ok_nonstream.txt": "bad_response",
}
NO_ANSWERS = {"err_after_worker_death.txt", "get_metrics_dp2.txt"}  # a refused connection, and a page of text


def read(data, cuts=()):
    """Read bytes that arrive in pieces, piece i at time i; the outcome, and what a connection made of them."""
    edges = [0, *sorted(set(cuts)), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges) if a < b]
    exchange = read_exchange(list(enumerate(map(bytes, pieces))))
    return read_tokens(exchange), exchange


def outcome(data):
    result, _ = read(data)
    return result.code if isinstance(result, Failure) else dict(result.ids)


def test_every_sample_is_accounted_for():
    assert {path.name for path in SAMPLES.glob("*.txt")} == {*EXPECTED, *NO_ANSWERS}


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_a_recorded_answer_gives_its_tokens_or_its_failure(name, expected):
    assert outcome(sample(name)) == expected


@pytest.mark.parametrize("name", ["err_wrong_model.txt", "err_prompt_too_long.txt", "err_overload_stream.txt"])
def test_details_never_repeat_what_the_server_wrote(name):
    result, _ = read(sample(name))
    words = ("nope", "Valid aliases", "maximum context", "different instance")
    assert not any(word in result.detail for word in words)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as shared:
        yield shared


def recorder_outcome(data, cuts, runner):
    """Feed a connection's recorder; the piece at which it knew the end, and its exchange."""

    async def run():
        recorder = AnswerRecorder()
        recorder.connection_made(_Deaf())
        done = recorder.begin(b"")
        edges = [0, *sorted(set(cuts)), len(data)]
        for a, b in pairwise(edges):
            assert not done.done()
            recorder.data_received(data[a:b])
        return done.done(), recorder.exchange()

    return runner.run(run())


class _Deaf(asyncio.Transport):
    def write(self, data):
        pass

    def is_closing(self):
        return False

    def abort(self):
        pass


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_split_gives_the_same_tokens_and_the_end_is_seen_at_the_last_byte(runner, data):
    name = data.draw(st.sampled_from(sorted(EXPECTED)))
    recorded = sample(name)
    cuts = data.draw(st.lists(st.integers(1, len(recorded) - 1), max_size=12))
    result, exchange = read(recorded, cuts)
    assert exchange.complete
    assert exchange.reusable
    if isinstance(result, Failure):
        assert result.code == EXPECTED[name]
    else:
        assert result.ids == EXPECTED[name]
        assert {i: len(t) for i, t in result.times.items()} == {i: len(t) for i, t in result.ids.items()}
        assert all(t == sorted(t) for t in result.times.values())
    ended, seen = recorder_outcome(recorded, cuts, runner)
    assert ended
    assert (seen.status, seen.complete) == (exchange.status, True)
    assert b"".join(piece for _, piece in seen.pieces) == b"".join(piece for _, piece in exchange.pieces)


@pytest.mark.parametrize("back", range(1, 9))
def test_the_end_of_a_stream_may_come_in_two_pieces(back, runner):
    recorded = sample("ok_stream.txt")
    assert recorder_outcome(recorded, [len(recorded) - back], runner)[0]


def test_events_that_come_together_may_be_cut_anywhere():
    events = b"".join(b'data: {"choices": [{"index": %d, "token_ids": [7]}]}\n\n' % i for i in (0, 1, 0))
    recorded = STREAM_HEAD + chunk(events) + STREAM_END
    for cut in range(len(STREAM_HEAD), len(recorded)):
        assert read(recorded, [cut])[0].ids == {0: [7, 7], 1: [7]}


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_both_newlines_of_event_streams_are_read(newline, runner):
    payload = json.dumps({"choices": [{"index": 0, "token_ids": [7]}]}).encode()
    lines = newline.join([b": a comment", b"event: x", b"data:" + payload, b"", b"data: [DONE]", b"", b""])
    recorded = STREAM_HEAD + chunk(lines) + STREAM_END
    assert outcome(recorded) == {0: [7]}
    assert recorder_outcome(recorded, range(1, len(recorded)), runner)[0]


def test_a_trailer_may_end_a_stream(runner):
    recorded = STREAM_HEAD + token(0, [7]) + b"0\r\nserver-timing: x\r\n\r\n"
    assert recorder_outcome(recorded, [len(recorded) - 10], runner)[0]
    assert outcome(recorded) == {0: [7]}


def test_a_token_s_time_is_that_of_the_piece_that_ends_its_line():
    recorded = STREAM_HEAD + token(0, [7]) + token(1, [8, 8]) + STREAM_END
    first_end = len(STREAM_HEAD + token(0, [7])) - 4
    result, _ = read(recorded, [len(STREAM_HEAD) + 20, first_end, first_end + 60])
    assert result.times == {0: [2], 1: [3, 3]}


def test_an_interim_response_is_not_the_answer():
    assert outcome(b"HTTP/1.1 100 Continue\r\n\r\n" + sample("ok_stream.txt")) == OK


def test_an_answer_that_the_end_of_the_connection_ends_is_complete():
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    pieces = [(0, head + b'data: {"choices": [{"index": 0, "token_ids": [7]}]}\n\n')]
    assert not read_exchange(pieces).complete
    exchange = read_exchange([*pieces, (1, b"")])
    assert exchange.complete
    assert not exchange.reusable
    assert read_tokens(exchange).ids == {0: [7]}


@pytest.mark.parametrize(
    ("recorded", "code"),
    [
        (stream(token(0, [7]), event({"error": {"code": 503}})), "overloaded"),
        (stream(token(0, [7]), event({"error": {"code": 500}})), "engine_failed"),
        (stream(event({"error": {"code": 404}})), "model_not_found"),
        (stream(event({"error": {"code": 429}})), "overloaded"),
        (stream(event({"error": {"code": 400}})), "request_rejected"),
        (stream(event({"error": {"code": "503"}})), "engine_failed"),
        (stream(event({"error": {"code": True}})), "engine_failed"),
        (stream(event({"error": {"code": 200}})), "engine_failed"),
        (stream(event({"error": {"code": 10**4000}})), "engine_failed"),
        (stream(event({"error": {}})), "engine_failed"),
        (stream(event({"error": "x"})), "engine_failed"),
        (whole(429), "overloaded"),
        (whole(500), "engine_failed"),
        (whole(502), "engine_failed"),
        (whole(503), "overloaded"),
        (whole(401), "request_rejected"),
        (whole(302, location="http://169.254.169.254/"), "request_rejected"),
        (whole(400, b"data_parallel_rank 5 is out of range [0, 4)."), "rank_out_of_range"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "request_rejected"),
        (b"", "connection_lost"),
        (b"HTTP/1.1 200", "connection_lost"),
        (STREAM_HEAD, "connection_lost"),
        (STREAM_HEAD + token(0, [7]), "connection_lost"),
        (stream(token(0, [7]))[:-2], "connection_lost"),
        (stream(event({"error": {"code": 503}}))[:-4], "overloaded"),
        (stream(), {}),
        (STREAM_HEAD + STREAM_END, "bad_response"),
        (stream(event(b"{")), "bad_response"),
        (stream(event(b"")), "bad_response"),
        (stream(event(b"\xff\xfe")), "bad_response"),
        (stream(event(b"[" * 100_000)), "bad_response"),
        (stream(event(b'{"choices":' + b"[" * 100_000)), "bad_response"),
        (stream(event(b"9" * 5000)), "bad_response"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
def test_a_stream_that_goes_wrong_is_a_typed_failure(recorded, code):
    assert outcome(recorded) == code


@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        7,
        "x",
        {},
        {"choices": None},
        {"choices": {}},
        {"choices": {"index": 0, "token_ids": [7]}},
        {"choices": "x"},
        {"choices": 1},
        {"choices": [None]},
        {"choices": ["x"]},
        {"choices": [[]]},
        {"choices": [{"token_ids": [7]}]},
        *({"choices": [{"index": i, "token_ids": [7]}]} for i in ("0", [0], {}, None, True, 0.0, -1)),
        *({"choices": [{"index": 0, "token_ids": t}]} for t in ("7", "", {"7": 7}, 7, 0, True, False, 7.0)),
        *({"choices": [{"index": 0, "token_ids": t}]} for t in (["7"], [True], [-1], [7.0], [None], [[7]], [{}])),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_hostile_event_is_a_bad_response(document):
    assert outcome(stream(event(document))) == "bad_response"


def test_events_without_tokens_are_taken():
    usage, last = (
        {"choices": [], "usage": {}},
        {"choices": [{"index": 0, "token_ids": [], "finish_reason": "stop"}]},
    )
    silent = {"choices": [{"index": 0, "text": "x", "token_ids": None}]}
    assert outcome(stream(token(0, [7]), event(silent), event(last), event(usage))) == {0: [7]}


def test_an_error_that_is_null_is_no_error():
    document = {"error": None, "choices": [{"index": 0, "token_ids": [7]}]}
    assert outcome(stream(event(document))) == {0: [7]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
choices = st.fixed_dictionaries({}, optional={"index": json_values, "token_ids": json_values})
documents = json_values | st.fixed_dictionaries(
    {}, optional={"choices": json_values | st.lists(choices | json_values, max_size=3), "error": json_values}
)


@settings(deadline=None, max_examples=40)
@given(st.lists(documents, max_size=3))
def test_any_events_are_tokens_or_a_typed_failure(contents):
    result, _ = read(stream(*map(event, contents)))
    if isinstance(result, Failure):
        assert result.code in get_args(FailureCode)
        assert len(result.detail) < 200
    else:
        assert all(type(index) is int for index in result.ids)
        assert all(type(i) is int and i >= 0 for ids in result.ids.values() for i in ids)


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_an_exchange_or_no_http(data, after_head):
    try:
        result, _ = read((STREAM_HEAD if after_head else b"") + data)
    except h11.RemoteProtocolError:
        return
    assert isinstance(result, Failure | Tokens)


def test_what_follows_an_answer_makes_its_connection_useless():
    exchange = read_exchange([(0, sample("ok_stream.txt") + b"HTTP/1.1 200 OK\r\n")])
    assert exchange.complete
    assert not exchange.reusable


def test_a_server_that_will_close_makes_its_connection_useless():
    exchange = read_exchange([(0, whole(200, connection="close"))])
    assert exchange.complete
    assert not exchange.reusable


def test_a_line_in_many_pieces_is_read_in_linear_time():
    def seconds(pieces):
        exchange = Exchange(status=200, complete=True, pieces=[(0.0, b"x" * 1000)] * pieces)

        def once():
            started = time.perf_counter()
            read_tokens(exchange)
            return time.perf_counter() - started

        return median(once() for _ in range(3))

    # Eight times as many pieces: 8 when linear, 64 when every piece copies the line so far.
    assert seconds(8000) < 30 * seconds(1000)
