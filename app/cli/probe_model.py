"""Commands on the probe model."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import AsJson, Refused, put_json, refusing, say

if TYPE_CHECKING:
    from app.probe_model.memory import MemoryReport

app = typer.Typer(help="The one-layer MoE model that probes run on.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="Folder of a probe model.")]
NEEDS_TORCH = "this command needs torch and transformers: pip install 'faultsense[torch]'"
DEFAULTS: dict[str, Any] = {"experts_per_gpu": 4, "top_k": 2, "hidden": 2048, "dtype": "bfloat16"}
PRIVATE_NETWORKS = ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")


@contextmanager
def _probe_model() -> Iterator[None]:
    """Turn what the probe model refuses, or lacks, into a refusal."""
    from app.probe_model.errors import ProbeModelError

    with refusing(ProbeModelError, OSError):
        try:
            yield
        except ImportError:
            raise Refused(NEEDS_TORCH) from None


@app.command("build")
def build(
    gpus: Annotated[int, typer.Option(help="GPUs of the replica.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    checkpoint: Annotated[
        Path | None, typer.Option("--from", help="OLMoE checkpoint whose first layer's experts are kept.")
    ] = None,
    experts_per_gpu: Annotated[int | None, typer.Option(help="At least top-k; 4.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Experts a token activates; 2, or the checkpoint's.")] = None,
    hidden: Annotated[
        int | None, typer.Option(help="At least the number of experts, a multiple of 128; 2048.")
    ] = None,
    intermediate: Annotated[int | None, typer.Option(help="Size of an expert, a multiple of 128; 256.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16 (routed backends carry nothing else), float16, float32; bfloat16, or the checkpoint's."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random weights; 0.")] = None,
    model: Annotated[str, typer.Option(help="Name it is served under.")] = "probe",
    as_json: AsJson = False,
) -> None:
    """Build a probe model; the manifest in it goes into the replica document."""
    from app.probe_model.manifest import MANIFEST_FILE

    given = {"top_k": top_k, "dtype": dtype}
    sizes = {"experts_per_gpu": experts_per_gpu, "hidden": hidden, "intermediate": intermediate, "seed": seed}
    with _probe_model():
        from app.probe_model.build import build as make
        from app.probe_model.build import build_from

        if checkpoint is None:
            options = DEFAULTS | {name: value for name, value in (given | sizes).items() if value is not None}
            manifest = make(gpus=gpus, out=out, model=model, **options)
        else:
            contradicting = [f"--{name.replace('_', '-')}" for name, value in sizes.items() if value is not None]
            if contradicting:
                raise Refused(f"{', '.join(contradicting)}: with --from, the checkpoint decides this")
            manifest = build_from(checkpoint, gpus, out, model=model, **given)  # type: ignore[arg-type]
    if as_json:
        put_json(manifest.model_dump(mode="json"))
        return
    memory = manifest.bytes_per_gpu
    say(f"{out}: {manifest.experts} experts, a token for each of {gpus} GPUs, {MANIFEST_FILE} beside the weights")
    weights = (memory.replicated + memory.sharded) / 2**20
    say(f"weights a GPU: {weights:.1f} MiB; next: faultsense probe-model verify {out}")


@app.command("verify")
def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Prove routing of every token, decode steps and echo against transformers."""
    with _probe_model():
        from app.probe_model.verify import verify as prove

        report = prove(folder)
    if as_json:
        put_json(dataclasses.asdict(report))
        return
    say(
        f"{report.tokens} tokens routed as the manifest says, {report.echoed} echoed over {report.decode_steps}"
        f" decode steps (margin {report.echo_margin:.2f}), log-probabilities of {report.logprob_tokens} within"
        f" {report.logprob_error:.2g}"
    )


@app.command("serve-command")
def serve_command(
    folder: Folder,
    all2all: Annotated[str, typer.Option(help="Production's --all2all-backend.")] = "allgather_reducescatter",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of a GPU's memory it may take.")] = 0.05,
    prompt_embeds: Annotated[
        bool, typer.Option("--prompt-embeds", help="Take embeddings; private network and trusted users only.")
    ] = False,
) -> None:
    """Print the vLLM command that serves it beside production."""
    from app.probe_model.serve import render_serve_command
    from app.probe_model.serve import serve_command as command

    with _probe_model():
        words = command(
            folder,
            all2all=all2all,
            host=host,
            port=port,
            gpu_memory_utilization=gpu_memory_utilization,
            prompt_embeds=prompt_embeds,
        )
    say(render_serve_command(words))


@app.command("memory")
def memory(
    folder: Annotated[Path, typer.Argument(help="Folder of a probe model or of an OLMoE checkpoint.")],
    ep: Annotated[str, typer.Option(help="Degrees of expert parallelism, such as 1,2,4.")] = "1",
    as_json: AsJson = False,
) -> None:
    """Tell what one layer takes on a GPU: weights counted from the files, the rest estimated."""
    from app.probe_model.memory import memory as count

    try:
        degrees = [int(part) for part in ep.split(",")]
    except ValueError:
        raise Refused("--ep: write numbers such as 1,2,4") from None
    with _probe_model():
        report = count(folder, degrees)
    if as_json:
        put_json(_memory_document(report))
        return
    for gpu in report.gpus:
        say(
            f"EP {gpu.ep}: {_mib(gpu.total)} MiB a GPU = replicated {_mib(gpu.replicated)}"
            f" + {gpu.experts} experts {_mib(gpu.sharded)} + runtime {_mib(gpu.runtime)}"
        )
    parts = report.runtime
    say(
        f"runtime is an estimate: KV cache {_mib(parts.kv_cache)}, activations {_mib(parts.activations)},"
        f" workspace {_mib(parts.workspace)} MiB at {report.limits.max_num_batched_tokens} tokens a step"
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}"


def _memory_document(report: MemoryReport) -> dict[str, Any]:
    return {
        "gpus": [dataclasses.asdict(gpu) | {"total": gpu.total} for gpu in report.gpus],
        "replicated_parts": dataclasses.asdict(report.replicated),
        "runtime_parts": dataclasses.asdict(report.runtime),
        "limits": dataclasses.asdict(report.limits),
        "estimated": ["runtime"],
    }


@app.command("embeds")
def embeds(
    folder: Folder,
    experts: Annotated[str, typer.Option(help="Such as 1,3,5,6, or a pattern [0,1,0,1,0,1,1,0].")],
    tokens: Annotated[int, typer.Option(help="Length of the prompt.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Tokens to decode.")] = 1,
    url: Annotated[
        str | None, typer.Option(help="Send it there, in a private network; else it is printed.")
    ] = None,
) -> None:
    """Make a request that activates exactly these experts by prompt_embeds, for servers started to take them."""
    with _probe_model():
        from app.probe_model.embeds import check_echo, embeds_request, parse_experts, read_answer
        from app.probe_model.manifest import load_manifest

        chosen = parse_experts(experts)
        request = embeds_request(folder, chosen, tokens=tokens, max_tokens=max_tokens)
        if url is None:
            put_json(request)
            return
        answer = read_answer(*_post(url, request))
        expected = check_echo(load_manifest(folder), chosen, answer)
    put_json({"experts": chosen, "tokens": answer.tokens, "expected_token": expected, "logprobs": answer.logprobs})


def _post(url: str, request: dict[str, Any]) -> tuple[int, bytes]:
    """Send it, if the address is private."""
    import httpx

    from app.outbound import Guard, GuardError, guarded_client, parse_url
    from app.outbound.http import post_capped

    async def send() -> tuple[int, bytes]:
        async with guarded_client(Guard(PRIVATE_NETWORKS)) as client:
            return await post_capped(client, f"{parse_url(url).url}/v1/completions", request)

    try:
        return asyncio.run(send())
    except (GuardError, httpx.HTTPError) as error:
        raise Refused(f"--url: {error}") from None
