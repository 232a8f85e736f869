"""The real service against a real vLLM server: four data-parallel, expert-parallel ranks on the CPU.

vLLM's engine, scheduler and API are its own; expert parallelism on the CPU, the sparse all-to-all and the faults
come from this project's plugin (`scripts/vllm_cpu_ep`). Verdicts are asserted, not times: two cores carry four
ranks, the service and the client.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.stack import Stack
from app.localization.probes import Probe
from app.localization.settings import Settings
from app.localization.shapes import Exchange, Shape, Shift
from app.outbound import Guard, parse_url
from app.probe_model.embeds import read_answer
from app.probe_model.errors import ProbeModelError
from app.probe_model.manifest import load_manifest
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.probing.budget import Budget
from app.probing.prober import Prober
from scripts.vllm_replica import TOP_K, build_probe_model, replica_document, topology_document
from scripts.vllm_server import VllmServer

pytestmark = pytest.mark.vllm

# A job takes one or two minutes, and many times as long on a machine that does something else as well.
JOB_SECONDS = 900.0
GPUS = 4
MEASUREMENTS = 3
REQUEST = {
    "k": 2,
    "baseline": "low_decile",
    # Two cores for everything: healthy medians of three differ by up to a factor of two between pairs.
    "repeats": 3,
    "alpha": 2.5,
    "prompt_tokens": 8,
    # Tokens reach the client in bursts here; over so many of them that averages out.
    "decode_tokens": 40,
}
# Every rank decodes in every probe, so a reading covers all of them.
ADAPTIVE = {"strategy": "adaptive", "prompt_tokens": 8, "decode_tokens": 40, "max_load": 4}
Job = dict[str, Any]
Localize = Callable[..., Job]


@pytest.fixture(scope="module")
def venv() -> Path:
    """The environment of `make test-vllm`."""
    return Path(os.environ["VLLM_VENV"])


@pytest.fixture(scope="module")
def model(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's probe model, built and verified where torch is."""
    folder = tmp_path_factory.mktemp("probe-model") / "model"
    build_probe_model(venv, folder, GPUS)
    return folder


@pytest.fixture(scope="module")
def server(venv: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One server for all tests: it takes more than a minute to start."""
    running = VllmServer(venv, model, log=tmp_path_factory.mktemp("vllm") / "server.log")
    running.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def service() -> Iterator[Stack]:
    """API, worker, tick, PostgreSQL and Redis, as `faultsense up` starts them."""
    with Stack(workers=1, settings={"probe_timeout_s": "20"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(service: Stack) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def register(client: httpx.Client, server: VllmServer, **changes: Any) -> dict[str, Any]:
    registered = client.post("/replicas", json=replica_document(server, GPUS, **changes))
    assert registered.status_code == 201, registered.text
    found: dict[str, Any] = registered.json()
    return found


@pytest.fixture(scope="module")
def replica(client: httpx.Client, server: VllmServer) -> dict[str, Any]:
    return register(client, server)


@pytest.fixture(scope="module")
def placed(client: httpx.Client, server: VllmServer) -> dict[str, Any]:
    """The same server with a topology: ranks that share a core exchange more slowly, as GPUs between hosts do."""
    found = register(client, server, name="real-vllm-placed")
    answered = client.put(found["links"]["topology"], json=topology_document(server, GPUS))
    assert answered.status_code in {200, 201}, answered.text
    return found


def finish(client: httpx.Client, job_url: str) -> Job:
    ends = time.monotonic() + JOB_SECONDS
    while time.monotonic() < ends:
        job: Job = client.get(job_url).json()
        if job["state"] not in {"queued", "running"}:
            return job
        time.sleep(0.5)
    raise AssertionError(f"{job_url} did not end within {JOB_SECONDS} s")


@pytest.fixture
def localize(
    client: httpx.Client,
    server: VllmServer,
    replica: dict[str, Any],
    placed: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Localize]:
    """Inject faults, run a job over HTTP, print what it measured, lift the faults."""

    def run(faults: Mapping[str, Mapping[str, float]], request: Mapping[str, object] = REQUEST) -> Job:
        server.set_faults(faults)
        where = placed if request is ADAPTIVE else replica
        accepted = client.post(where["links"]["localize"], json=request)
        assert accepted.status_code == 202, accepted.text
        job = finish(client, accepted.headers["Location"])
        with capsys.disabled():
            what = f"{request.get('strategy', 'faultsense')}, {dict(faults) or 'healthy'}"
            print(f"\n{what}: {describe(client, job)}")  # noqa: T201
        return job

    yield run
    server.set_faults({})


def describe(client: httpx.Client, job: Job) -> str:
    """The verdict and the TBT of its probes: lowest and median reading."""
    if job["verdict"] is None:
        return f"{job['state']}: {job['error']}"
    readings: dict[str, list[float]] = {}
    for probe in client.get(job["links"]["probes"], params={"limit": 500}).json()["items"]:
        if probe["tbt_ms"] is not None:
            readings.setdefault(what_is_sent(probe), []).append(probe["tbt_ms"])
    table = ", ".join(f"{sent} {min(t):.1f}/{statistics.median(t):.1f}" for sent, t in sorted(readings.items()))
    cost = job["verdict"]["cost"]
    measurements = f"{cost['measurements']} measurements, {cost['path_units']} path-units"
    return f"{job['verdict']['summary']}; {measurements}\n  TBT ms, lowest/median: {table}"


def what_is_sent(probe: dict[str, Any]) -> str:
    members = "-".join(map(str, probe["members"]))
    if probe["shape"] is None:
        return f"{members}"
    pairs = "+".join("-".join(map(str, pair)) for pair in probe["shape"].get("pairs", []))
    return f"{members}({pairs or probe['shape'].get('shifts') or 'self'})"


def names(job: Job) -> list[str]:
    assert job["state"] == "succeeded", job["error"]
    return [f"{s['kind']}:{'-'.join(map(str, s['members']))}" for s in job["verdict"]["suspects"]]


@pytest.mark.parametrize("request_", [REQUEST, ADAPTIVE], ids=["faultsense", "adaptive"])
def test_healthy_is_healthy(localize: Localize, request_: dict[str, object]) -> None:
    job = localize({}, request_)
    assert job["verdict"]["outcome"] == "healthy", job["verdict"]
    assert request_ is ADAPTIVE or job["settings"]["k"] == 2


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ({"path:1-3": {"ms": 30}}, "path:1-3"),
        ({"path:1>3": {"ms": 30}}, "path:1-3"),
        # Only work beyond the dummy token that an idle, parked rank repeats on its own GPU.
        ({"gpu:2": {"ms": 200, "above_rows": TOP_K}}, "gpu:2"),
    ],
    ids=["path", "one way", "gpu"],
)
def test_adaptive_finds_it(localize: Localize, fault: dict[str, dict[str, float]], name: str) -> None:
    assert names(localize(fault, ADAPTIVE)) == [name]


def test_finds_a_slow_path(localize: Localize) -> None:
    assert names(localize({"path:1-3": {"ms": 50}})) == ["path:1-3"]


def test_finds_a_slow_gpu(localize: Localize) -> None:
    # Only work beyond the dummy token that an idle, parked rank repeats on its own GPU.
    assert names(localize({"gpu:2": {"ms": 200, "above_rows": TOP_K}})) == ["gpu:2"]


@pytest.mark.parametrize(
    ("change", "code"),
    [("model", "model_mismatch"), ("ranks", "too_few_ranks"), ("manifest", "logprobs_differ")],
)
def test_another_model_or_fewer_ranks_are_refused(
    client: httpx.Client, server: VllmServer, change: str, code: str
) -> None:
    wrong = replica_document(server, GPUS, name=f"wrong {change}")
    manifest = wrong["manifest"]
    if change == "model":
        manifest["model"] = "another"
    elif change == "manifest":
        for entries in manifest["logprobs"].values():
            for entry in entries:
                entry["logprob"] -= 1.0
    else:
        from app.probe_model.synthetic import synthetic_manifest

        wrong["gpus"] = 8
        wrong["layout"] = {"all2all": "sparse"}
        wrong["probe_endpoints"][0]["ranks"] = "0-7"
        wrong["manifest"] = synthetic_manifest(8, model=manifest["model"]).model_dump(mode="json")
    registered = client.post("/replicas", json=wrong)
    assert registered.status_code == 201, registered.text
    accepted = client.post(registered.json()["links"]["localize"], json=REQUEST)
    job = finish(client, accepted.headers["Location"])
    assert (job["state"], job["error"]["code"]) == ("failed", code), job["error"]


def test_a_server_that_takes_no_embeddings_says_so(server: VllmServer) -> None:
    body = {"model": "probe", "prompt_embeds": "AAAA", "max_tokens": 1}
    answered = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
    with pytest.raises(ProbeModelError, match=r"takes none \(400\); start it with --enable-prompt-embeds"):
        read_answer(answered.status_code, answered.content)


def step_ms(server: VllmServer, *shapes: Shape) -> list[float]:
    """TBT of one probe of each shape."""
    manifest = load_manifest(server.model)
    endpoints = [ProbeEndpoint(parse_url(server.url), tuple(range(GPUS)), "header")]
    access = ReplicaAccess(manifest.model, manifest.gpu_tokens, endpoints, Guard(["127.0.0.0/8"]))

    async def measure() -> list[float]:
        # Ranks that share two cores begin some steps apart, which must stay a small part of the stream.
        settings = Settings(gpus=GPUS, k=2, prompt_tokens=8, decode_tokens=20)
        async with Prober(access, settings, Budget(None, None)) as prober:
            tbt_ms = [await measured_tbt_ms(prober, Probe(1, shape, 1, "cover")) for shape in shapes]
            await prober.leave()
        return tbt_ms

    return asyncio.run(measure())


async def measured_tbt_ms(prober: Prober, probe: Probe) -> float:
    """As a job does, measure again where a busy machine left the senders no common window."""
    refused = []
    while len(refused) < MEASUREMENTS:
        event = await prober.measure(probe)
        if event.type == "measured":
            tbt_ms: float = event.data["tbt_ms"]
            return tbt_ms
        refused.append(event.data)
        if event.data.get("code") != "no_common_window":
            break
    raise AssertionError(f"no measurement of {probe}: {refused}")


def test_all_ranks_decode_together_and_a_path_shows_in_its_shift_alone(server: VllmServer) -> None:
    """A path is crossed twice a step, there and back; one way, the other direction's results go back over it."""
    every = tuple(range(GPUS))
    crossing = [Shift((every,), (2,), 4), Exchange(every, ((1, 3),), 4), Shift((every,), (1, 2, 3), 2)]
    others = [Shift((every,), (1,), 4), Exchange(every, width=4), Exchange((0,), width=4)]
    for fault in ("path:1-3", "path:1>3"):
        server.set_faults({fault: {"ms": 150}})
        slow, fast = step_ms(server, *crossing), step_ms(server, *others)
        assert min(slow) > 300 * 0.9, fault
        assert max(fast) < 150, fault


def test_a_slow_gpu_shows_wherever_it_works_and_not_while_it_is_parked(server: VllmServer) -> None:
    every = tuple(range(GPUS))
    server.set_faults({"gpu:2": {"ms": 300, "above_rows": TOP_K}})
    working = step_ms(server, Shift((every,), (1,), 4), Exchange(every, width=4), Exchange((2,), width=4))
    parked = step_ms(server, Exchange((1, 3), ((1, 3),), 4), Exchange((0,), width=4))
    assert min(working) > 300 * 0.9
    assert max(parked) < 150


def test_a_stopped_rank_is_a_hang_with_its_set(
    client: httpx.Client, server: VllmServer, replica: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Last: a rank that stays silent for longer than a probe may take freezes the whole engine."""
    server.set_faults({"gpu:2": {"ms": 60_000, "above_rows": 0}})
    accepted = client.post(replica["links"]["localize"], json=REQUEST)
    job = finish(client, accepted.headers["Location"])
    with capsys.disabled():
        print(f"\nGPU 2 silent: {job['verdict']['summary'] if job['verdict'] else job['error']}")  # noqa: T201
    assert job["verdict"]["outcome"] == "inconclusive"
    (reason,) = job["verdict"]["reasons"]
    assert reason["code"] == "engine_hung"
    assert "may be any of them" in reason["text"], "GPU 0 was asked first, and is not to blame"
