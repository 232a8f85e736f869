"""The checks before the first probe."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from app.emulator.replica import EmulatedReplica
from app.probing import preflight as module
from app.probing.access import ProbeEndpoint
from app.probing.errors import PreflightError
from app.probing.preflight import LOGPROB_TOLERANCE, Preflight, preflight
from tests.outbound.servers import Authority, FakeServer, Hangup, closed_port, full_port, silent, whole

from .support import BOUND_S, access_of, access_to


@pytest.fixture(scope="module")
def replica():
    with EmulatedReplica(gpus=4, noise_sigma=0.0, fixed_ms=1.0) as running:
        yield running


def check(access):
    async def run():
        async with asyncio.timeout(BOUND_S):
            return await preflight(access)

    return asyncio.run(run())


def refused(access):
    with pytest.raises(PreflightError) as caught:
        check(access)
    return caught.value


class Vllm:
    """Answers preflight as vLLM does, except where a test says otherwise."""

    def __init__(self, **changes):
        models = {"data": [{"id": "probe", "max_model_len": 4096}]}
        self.changes = {"models": models, "version": {"version": "0.32.0"}} | changes

    async def __call__(self, received, writer):
        part = received.target.rsplit("/", 1)[1]
        answer = self.changes.get(part)
        if answer is None:
            token = received.document["prompt"][0][0]
            answer = completion([token] * received.document["max_tokens"])
        if callable(answer):
            await answer(received, writer)
        else:
            writer.write(answer if isinstance(answer, bytes) else whole(200, answer))


def completion(ids, logprob=-0.25):
    return {"choices": [{"index": 0, "token_ids": ids, "logprobs": {"token_logprobs": [logprob, -9.0]}}]}


def against(*servers, gpus=None, **more):
    """Run preflight against servers: one shared by two ranks, or one a rank."""

    async def run():
        async with asyncio.timeout(BOUND_S), AsyncExitStack() as stack:
            running = [await stack.enter_async_context(FakeServer(answer)) for answer in servers]
            ranks = gpus or (2 if len(running) == 1 else None)
            return await preflight(access_to(*(server.url for server in running), gpus=ranks, **more)), running

    return asyncio.run(run())


def refused_by(answer, **more):
    with pytest.raises(PreflightError) as caught:
        against(answer, **more)
    return caught.value


def echo_logprobs(replica):
    return {
        int(token): entry["logprob"]
        for token, entries in replica.manifest["logprobs"].items()
        for entry in entries
        if entry["token"] == int(token)
    }


def test_a_good_replica_tells_its_engine_and_length(replica):
    access = replace(access_of(replica), logprobs=echo_logprobs(replica))
    assert set(access.gpu_tokens) <= set(access.logprobs)
    assert check(access) == Preflight("0.32.0", replica.manifest["max_model_len"])


def test_only_the_last_rank_of_an_endpoint_is_asked_once():
    found, (server,) = against(Vllm(), gpus=3, bearer="s3cret")
    assert found == Preflight("0.32.0", 4096)
    assert [r.target for r in server.received] == ["/v1/models", "/version", "/v1/completions"]
    asked = server.received[-1]
    assert (asked.rank, asked.document["prompt"], asked.document["stream"]) == (2, [[9] * 4], False)
    assert "logprobs" not in asked.document
    assert {r.headers["authorization"] for r in server.received} == {"Bearer s3cret"}


def test_another_model_is_named_and_what_to_do(replica):
    error = refused(replace(access_of(replica), model="other"))
    assert error.code == "model_mismatch"
    for part in (replica.control_url, "serves probe", "'other'", "register the manifest"):
        assert part in error.detail


def test_too_few_ranks_are_counted(replica):
    access = access_of(replica)
    wider = replace(access.endpoints[0], ranks=tuple(range(8)))
    error = refused(replace(access, endpoints=[wider], gpu_tokens=[*access.gpu_tokens] * 2))
    assert error.code == "too_few_ranks"
    assert "has 4 data-parallel ranks; ranks 0-7 are declared" in error.detail


def test_a_manifest_with_other_logprobs_is_refused(replica):
    expected = echo_logprobs(replica)
    off = {token: value - 2 * LOGPROB_TOLERANCE for token, value in expected.items()}
    near = {token: value - LOGPROB_TOLERANCE / 2 for token, value in expected.items()}
    error = refused(replace(access_of(replica), logprobs=off))
    assert error.code == "logprobs_differ"
    assert replica.control_url in error.detail
    check(replace(access_of(replica), logprobs=near))


@pytest.mark.parametrize("ids", [[9] * 4, [8] * 3, [8] * 5, [0] * 4, None, "8888", [8, 8, 8, 9], [True] * 4, {}])
def test_a_missing_echo_is_refused(ids):
    error = refused_by(Vllm(completions=completion(ids)))
    assert error.code == "echo_broken"
    assert "token 8 of GPU 1" in error.detail


@pytest.mark.parametrize(
    "logprob", [-2.0, 0.0, float("nan"), float("-inf"), 10**400, "-3"], ids=lambda x: str(x)[:8]
)
def test_another_logprob_is_refused(logprob):
    error = refused_by(Vllm(completions=completion([8] * 4, logprob)), logprobs={8: -0.25})
    assert error.code == "logprobs_differ"


@pytest.mark.parametrize(
    "logprobs", [None, {}, {"token_logprobs": []}, {"token_logprobs": None}, {"token_logprobs": [None]}, [], "x"]
)
def test_a_server_without_logprobs_is_taken_by_its_echo(logprobs):
    answer = {"choices": [{"token_ids": [8] * 4, "logprobs": logprobs}]}
    _, (server,) = against(Vllm(completions=answer), logprobs={8: -0.25})
    assert server.received[-1].document["logprobs"] == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_token_is_said_so(status):
    error = refused_by(Vllm(models=whole(status)))
    assert error.code == "unauthorized"
    assert "auth.bearer" in error.detail


NOT_VLLM = {
    "models: no JSON": {"models": whole(200, b"<html>")},
    "models: a list": {"models": [1]},
    "models: nested": {"models": whole(200, b"[" * 100_000)},
    "models: bytes": {"models": whole(200, b"\xff\xfe\x00")},
    "models: a long number": {"models": whole(200, b"9" * 5000)},
    "models: missing": {"models": whole(404)},
    "models: broken": {"models": whole(500)},
    "models: moved": {"models": whole(302, location="http://127.0.0.1:1/")},
    "models: too large": {"models": whole(200, b" " * (1 << 20) + b"{}")},
    "version: no JSON": {"version": whole(200, b"1.0")},
    "completions: no JSON": {"completions": whole(200, b"data: {}")},
    "completions: empty": {"completions": {}},
    "completions: no choice": {"completions": {"choices": []}},
    "completions: choices no list": {"completions": {"choices": 7}},
    "completions: choice no object": {"completions": {"choices": ["x"]}},
    "completions: refused": {"completions": whole(400, b"x")},
    "completions: many digits": {"completions": whole(400, b"out of range [0, " + b"9" * 5000 + b")")},
}


@pytest.mark.parametrize("changes", NOT_VLLM.values(), ids=NOT_VLLM)
def test_what_does_not_answer_as_vllm_does_is_a_bad_response(changes):
    error = refused_by(Vllm(**changes))
    assert error.code == "bad_response"
    assert "http://127.0.0.1" in error.detail


NO_MODELS = [
    None,
    5,
    True,
    "probe",
    {"id": "probe"},
    [],
    [None],
    ["probe"],
    [{}],
    [{"id": ["probe"]}],
    [{"id": "x"}],
]


@pytest.mark.parametrize("models", [{}, *({"data": models} for models in NO_MODELS)], ids=json.dumps)
def test_a_list_without_the_model_is_a_mismatch(models):
    assert refused_by(Vllm(models=models)).code == "model_mismatch"


def test_what_a_server_writes_is_not_repeated_unless_it_is_plain():
    names = ["ok-model", "x" * 500, "bad\x00name\n\ud800", "<script>"]
    error = refused_by(Vllm(models={"data": [{"id": name} for name in names]}))
    assert "ok-model" in error.detail
    assert len(error.detail) < 600
    assert error.detail.isprintable()
    found, _ = against(Vllm(version={"version": "0.32\x00\ud800\n" + "9" * 500}))
    assert found.engine.isprintable()
    assert found.engine.startswith("0.32")
    assert len(found.engine) <= 100


@pytest.mark.parametrize("version", [whole(404), {}, {"version": 3}])
def test_a_server_need_not_tell_its_version(version):
    assert against(Vllm(version=version))[0].engine is None


@pytest.mark.parametrize("length", [None, "4096", True, 4.5])
def test_a_server_need_not_tell_its_length(length):
    models = {"data": [{"id": "probe", "max_model_len": length}]}
    assert against(Vllm(models=models))[0].max_model_len is None


def test_a_silent_server_is_refused(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    error = refused_by(silent)
    assert error.code == "endpoint_silent"
    assert "http://127.0.0.1" in error.detail


def test_a_rank_that_takes_its_request_and_stays_silent_is_left_to_the_first_probe(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    found, _ = against(Vllm(completions=silent))
    assert found.engine == "0.32.0"


def test_a_hung_replica_passes_and_says_nothing_of_the_hang(replica, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    replica.set_faults(["gpu:3!hang"])
    try:
        assert check(access_of(replica)).engine == "0.32.0"
    finally:
        replica.set_faults([])


async def hang_up(*_):
    raise Hangup


@pytest.mark.parametrize("gpus", [None, 2])
def test_an_unreachable_replica_is_refused(gpus):
    urls = [f"http://127.0.0.1:{closed_port()}" for _ in range(1 if gpus else 2)]
    error = refused(access_to(*urls, gpus=gpus))
    assert error.code == "endpoint_unreachable"
    assert urls[0] in error.detail


def test_a_server_that_hangs_up_is_unreachable():
    assert refused_by(hang_up).code == "endpoint_unreachable"


def beside_a_good_one(url):
    """Preflight of a good rank and one behind another URL."""

    async def run():
        async with asyncio.timeout(BOUND_S), FakeServer(Vllm()) as server:
            return await preflight(access_to(server.url, url))

    return asyncio.run(run())


def test_one_own_url_of_several_that_is_down_is_left_to_the_first_probe():
    assert beside_a_good_one(f"http://127.0.0.1:{closed_port()}").engine == "0.32.0"


def test_one_own_url_that_takes_no_connections_is_down(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    with full_port() as port:
        assert beside_a_good_one(f"http://127.0.0.1:{port}").engine == "0.32.0"


def test_a_replica_that_takes_no_connections_is_unreachable(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    with full_port() as port:
        assert refused(access_to(f"http://127.0.0.1:{port}")).code == "endpoint_unreachable"


def test_one_own_url_that_is_silent_is_left_to_the_first_probe(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    assert against(Vllm(), silent)[0].engine == "0.32.0"


def test_a_shared_url_that_is_down_is_refused():
    async def run():
        async with asyncio.timeout(BOUND_S), FakeServer(Vllm()) as server:
            access = access_to(server.url, f"http://127.0.0.1:{closed_port()}")
            first, second = access.endpoints
            shared = ProbeEndpoint(second.target, (1, 2), "header")
            return await preflight(replace(access, endpoints=[first, shared], gpu_tokens=[7, 8, 9]))

    with pytest.raises(PreflightError) as caught:
        asyncio.run(run())
    assert caught.value.code == "endpoint_unreachable"


def test_a_wrong_model_on_one_own_url_is_not_tolerated():
    with pytest.raises(PreflightError) as caught:
        against(Vllm(), Vllm(models={"data": []}))
    assert caught.value.code == "model_mismatch"


def test_a_certificate_that_is_not_trusted_is_not_a_rank_that_is_down(tmp_path):
    authority = Authority()

    async def run():
        good, bad = authority.server(tmp_path, "127.0.0.1"), Authority().server(tmp_path, "127.0.0.1")
        async with asyncio.timeout(BOUND_S), FakeServer(Vllm(), good) as a, FakeServer(Vllm(), bad) as b:
            assert (await preflight(access_to(a.url, ca_pem=authority.pem))).engine == "0.32.0"
            await preflight(access_to(a.url, b.url, ca_pem=authority.pem))

    with pytest.raises(PreflightError) as caught:
        asyncio.run(run())
    assert caught.value.code == "tls_failed"
    assert "ca_pem" in caught.value.detail


@pytest.mark.parametrize("url", ["http://169.254.169.254", "http://10.0.0.1:8000"])
def test_a_forbidden_address_is_refused_even_beside_good_ones(url):
    with pytest.raises(PreflightError) as caught:
        beside_a_good_one(url)
    assert caught.value.code == "address_refused"
    assert url in caught.value.detail
