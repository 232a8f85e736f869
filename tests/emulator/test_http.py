"""The HTTP interface over real sockets, against recordings of real vLLM."""

import asyncio
import json

import httpx
import pytest

from app.emulator.endpoint import MAX_BODY_BYTES
from app.emulator.replica import EmulatedReplica

from .support import SAMPLES, completion, events, sample, shape


@pytest.fixture(scope="module")
def replica():
    with EmulatedReplica(gpus=8, hosts=2, noise_sigma=0.0, fixed_ms=1.0) as running:
        yield running


@pytest.fixture
def client(replica):
    with httpx.Client(base_url=replica.endpoints[0]["url"], trust_env=False, timeout=20.0) as opened:
        yield opened


def post(client, recorded, **headers):
    return client.post("/v1/completions", json=recorded.request, headers=headers)


@pytest.mark.parametrize("name", ["ok_nonstream.txt", "ok_batch_prompts.txt", "dp_rank_0.txt", "dp_rank_abc.txt"])
def test_whole_answers_have_the_recorded_shape(client, name):
    recorded = sample(name)
    rank = name[8:-4] if name.startswith("dp_rank") else "0"
    response = post(client, recorded, **{"X-data-parallel-rank": rank})
    expected = json.loads(recorded.body)
    assert response.status_code == recorded.status
    assert set(response.headers) == set(recorded.headers)
    assert shape(response.json()) == shape(expected)
    assert list(response.json()) == list(expected)
    for answer, wanted in zip(response.json()["choices"], expected["choices"], strict=True):
        assert answer["token_ids"] == wanted["token_ids"]
        assert answer["finish_reason"] == "length"
    assert response.json()["usage"] == expected["usage"]


def test_a_stream_has_the_recorded_events(client):
    recorded = sample("ok_stream.txt")
    response = post(client, recorded)
    assert response.status_code == 200
    assert set(response.headers) == set(recorded.headers)
    assert response.headers["content-type"] == recorded.headers["content-type"]
    got, expected = events(response.text), events(recorded.body)
    assert [shape(event) for event in got] == [shape(event) for event in expected]
    assert [event["choices"][0] | {"text": ""} for event in got[:3]] == [
        event["choices"][0] | {"text": ""} for event in expected[:3]
    ]
    assert got[3]["usage"] == expected[3]["usage"]
    assert got[4] == "[DONE]"


def test_a_stream_of_several_prompts_writes_one_event_a_choice_and_token(client):
    response = completion([[3] * 2, [4] * 2], stream=True, return_token_ids=True, client=client)
    got = events(response.text)
    assert got[-1] == "[DONE]"
    choices = [event["choices"][0] for event in got[:-1]]
    assert [(c["index"], c["token_ids"]) for c in choices] == [(0, [3]), (1, [4])] * 3
    assert len({event["id"] for event in got[:-1]}) == 1


def test_without_return_token_ids_they_are_null(client):
    first = events(completion([3], stream=True, client=client).text)[0]["choices"][0]
    assert (first["token_ids"], first["prompt_token_ids"]) == (None, None)


def test_log_probabilities_are_the_manifest_s(client, replica):
    expected = {f"token_id:{entry['token']}": entry["logprob"] for entry in replica.manifest["logprobs"]["5"][:2]}
    ask = {"logprobs": 2, "return_tokens_as_token_ids": True, "client": client}
    whole = completion([5], **ask).json()["choices"][0]["logprobs"]
    assert whole["tokens"] == ["token_id:5"] * 3
    assert whole["top_logprobs"] == [expected] * 3
    assert whole["token_logprobs"] == [expected["token_id:5"]] * 3
    streamed = [e["choices"][0]["logprobs"] for e in events(completion([5], stream=True, **ask).text)[:-1]]
    assert [entry["text_offset"] for entry in streamed] == [[offset] for offset in whole["text_offset"]]


@pytest.mark.parametrize("rank", ["8", "-1"])
def test_a_rank_out_of_range_is_refused_in_vllm_s_words(client, rank):
    recorded = sample("dp_rank_5.txt")
    response = post(client, recorded, **{"X-data-parallel-rank": rank})
    assert response.status_code == recorded.status
    assert response.text == recorded.body.strip().replace("rank 5", f"rank {rank}").replace("[0, 1)", "[0, 8)")


def test_requests_reach_the_rank_of_their_header(client, replica):
    before = replica.stats()["requests"]
    for rank in (6, 6, 2):
        completion([2], rank=rank, client=client)
    after = replica.stats()["requests"]
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, 0, 1, 0, 0, 0, 2, 0]


@pytest.mark.parametrize("name", ["err_wrong_model_stream.txt", "err_token_negative.txt"])
def test_refusals_are_plain_answers_also_for_streams(client, name):
    recorded = sample(name)
    response = post(client, recorded)
    assert (response.status_code, response.text) == (recorded.status, recorded.body.strip())
    assert set(response.headers) == set(recorded.headers)


def test_bodies_must_be_json_of_bounded_size(client):
    response = client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]
    large = b" " * (MAX_BODY_BYTES + 1)
    response = client.post("/v1/completions", content=large, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert completion([2], client=client).status_code == 200


@pytest.mark.parametrize("name", ["get_v1_models.txt", "get_version.txt", "get_load.txt", "get_health.txt"])
def test_the_other_endpoints_have_the_recorded_shape(client, name):
    path = {"get_v1_models.txt": "/v1/models"}.get(name, f"/{name[4:-4]}")
    body = (SAMPLES / name).read_text().split("\n\n", 1)[1].strip()
    response = client.get(path)
    assert response.status_code == 200
    if body:
        assert shape(response.json()) == shape(json.loads(body))
    else:
        assert response.content == b""


def test_metrics_have_vllm_s_names_and_count(client):
    def value(text, name, engine):
        prefix = f'vllm:{name}{{engine="{engine}",model_name="probe"}} '
        return next(float(line.removeprefix(prefix)) for line in text.splitlines() if line.startswith(prefix))

    before = client.get("/metrics").text
    completion([[2] * 4, [3] * 4], rank=3, client=client)
    after = client.get("/metrics").text
    for name, difference in (
        ("prompt_tokens_total", 8),
        ("generation_tokens_total", 6),
        ("time_to_first_token_seconds_count", 2),
        ("inter_token_latency_seconds_count", 4),
    ):
        assert value(after, name, 3) - value(before, name, 3) == difference
        assert value(after, name, 4) == value(before, name, 4)
    recorded = (SAMPLES / "get_metrics_dp2.txt").read_text()
    comments = [line for line in after.splitlines() if line.startswith("#")]
    headings = [line for line in comments if "_requests_" in line or "prompt_" in line]
    assert len(headings) == 6
    for line in headings:  # the recording ends before the other families
        assert line in recorded


def test_faults_are_set_read_and_refused(client, replica):
    assert client.put("/emulator/faults", json={"faults": ["gpu:5*2.0", "path:3>1+20ms"]}).json() == {
        "faults": ["gpu:5*2", "path:3>1+20ms"]
    }
    for bad, word in (
        ({"faults": ["gpu:5"]}, "gpu:5"),
        ({"faults": ["gpu:8*2"]}, "0 to 7"),
        ({"faults": "gpu:5*2"}, "faults"),
        ({"faults": ["gpu:1*2"] * 1025}, "1024"),
        ([], "faults"),
    ):
        response = client.put("/emulator/faults", json=bad)
        assert response.status_code == 422
        assert response.headers["content-type"] == "application/problem+json"
        assert word in response.json()["detail"]
    assert client.get("/emulator/faults").json()["faults"] == ["gpu:5*2", "path:3>1+20ms"]
    replica.set_faults([])
    assert client.get("/emulator/faults").json() == {"faults": []}


def test_overload_is_503_or_an_event_in_the_stream():
    async def ask(url, count, stream):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20.0) as client:
            body = {"prompt": [2] * 40, "max_tokens": 2, "stream": stream}
            posts = (
                client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": "0"})
                for _ in range(count)
            )
            return await asyncio.gather(*posts)

    plain = (SAMPLES / "err_overload_plain.txt").read_text()
    stream = (SAMPLES / "err_overload_stream.txt").read_text()
    with EmulatedReplica(gpus=2, max_num_seqs=1, max_num_queued=2, fixed_ms=60.0) as busy:
        refused = [r for r in asyncio.run(ask(busy.control_url, 12, False)) if r.status_code != 200]
        streams = asyncio.run(ask(busy.control_url, 12, True))
    assert refused
    for response in refused:
        assert response.status_code == 503
        assert response.text in plain
    assert {response.status_code for response in streams} == {200}
    failed = [r.text for r in streams if '"error"' in r.text]
    assert failed
    for text in failed:
        assert text.split("\n\n")[0] in stream
        assert text.endswith("data: [DONE]\n\n")


def test_a_client_that_goes_away_frees_the_engine(client):
    with client.stream("POST", "/v1/completions", json={"prompt": [2], "max_tokens": 4000, "stream": True}) as r:
        next(r.iter_lines())
    assert completion([2], client=client).status_code == 200
    for _ in range(200):  # each round trip lets the server go on
        if client.get("/load").json() == {"server_load": 0}:
            break
    assert client.get("/load").json() == {"server_load": 0}
