"""The bytes of a probe's requests, as another parser reads them."""

import json

import h11
import pytest

from app.outbound import parse_url
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.probing.requests import completion_body, prepare, probe_prompts, probe_tokens, rank_headers

from .support import GUARD, probe

HEADER = ProbeEndpoint(parse_url("http://127.0.0.1:8000/pool/a/"), (0, 1, 2, 3), "header")
SPLIT = ProbeEndpoint(parse_url("http://[::1]:8001"), (4, 5, 8, 9), "header")
OWN = ProbeEndpoint(parse_url("https://rank6.test"), (6,), "url")
NONE = ProbeEndpoint(parse_url("http://127.0.0.1:8002"), (7,), "none")
TOKENS = [100 + rank for rank in range(10)]


def access(**more):
    return ReplicaAccess("probe", TOKENS, [HEADER, SPLIT, OWN, NONE], GUARD, **more)


def parsed(request):
    """Request line, headers and body, by h11's server side; nothing may be left over."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(request)
    head = connection.next_event()
    body = b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        body += bytes(event.data)
    assert connection.trailing_data == (b"", False)
    headers = [(name.decode(), value.decode()) for name, value in head.headers]
    assert len(headers) == len(dict(headers))
    return head.method.decode(), head.target.decode(), dict(headers), json.loads(body)


def test_a_request_is_one_whole_http_message():
    body = completion_body(access(), [[7, 7], [8, 8]], max_tokens=16)
    method, target, headers, sent = parsed(prepare(access(), 2, body))
    assert (method, target) == ("POST", "/pool/a/v1/completions")
    assert headers.pop("content-length").isdigit()
    assert headers == {
        "host": "127.0.0.1:8000",
        "content-type": "application/json",
        "accept": "text/event-stream",
        "x-data-parallel-rank": "2",
    }
    assert sent == body
    assert sent["prompt"] == [[7, 7], [8, 8]]
    assert (sent["model"], sent["max_tokens"], sent["temperature"]) == ("probe", 16, 0)
    assert sent["stream"] is sent["ignore_eos"] is sent["return_token_ids"] is True


@pytest.mark.parametrize(
    ("rank", "host", "header"),
    [
        (0, "127.0.0.1:8000", "0"),
        (3, "127.0.0.1:8000", "3"),
        (4, "[::1]:8001", "0"),
        (5, "[::1]:8001", "1"),
        (8, "[::1]:8001", "2"),
        (9, "[::1]:8001", "3"),
        (6, "rank6.test:443", None),
        (7, "127.0.0.1:8002", None),
    ],
)
def test_a_rank_is_picked_within_its_endpoint_and_only_where_headers_do(rank, host, header):
    _, _, headers, _ = parsed(prepare(access(), rank, {}))
    assert headers["host"] == host
    assert headers.get("x-data-parallel-rank") == header


def test_rank_headers_are_those_of_the_bytes():
    assert rank_headers(SPLIT, 8) == {"X-data-parallel-rank": "2"}
    assert rank_headers(OWN, 6) == rank_headers(NONE, 7) == {}


def test_the_bearer_is_sent_where_there_is_one():
    assert "authorization" not in parsed(prepare(access(), 0, {}))[2]
    assert parsed(prepare(access(bearer="s3cret"), 0, {}))[2]["authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(access(bearer="s3cret", ca_pem="pem"))


def test_every_body_asks_for_work_of_its_own():
    salts = {completion_body(access(), [[7]], max_tokens=1)["cache_salt"] for _ in range(100)}
    assert len(salts) == 100


def test_one_prompt_a_receiver_and_sequence_of_the_receiver_s_token():
    prompts = probe_prompts(access(), [1, 1, 4, 4], tokens=3)
    assert prompts == [[101] * 3, [101] * 3, [104] * 3, [104] * 3]


def test_a_probe_costs_every_token_of_every_send():
    # Three senders, three receivers each, two sequences, 16 + 16 tokens.
    assert probe_tokens(probe(0, 2, 5, sequences=2), 32) == 3 * 3 * 2 * 32
    assert probe_tokens(probe(4), 32) == 32
