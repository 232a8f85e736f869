"""Commands on the probe model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import AsJson, Refused, put_json, refusing, say

app = typer.Typer(help="The one-layer MoE model that probes run on.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="Folder of a probe model.")]
NEEDS_TORCH = "this command needs torch and transformers: pip install 'faultsense[torch]'"


@app.command("build")
def build(
    gpus: Annotated[int, typer.Option(help="GPUs of the replica.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    experts_per_gpu: Annotated[int, typer.Option(help="At least top-k.")] = 4,
    top_k: Annotated[int, typer.Option(help="Experts a token activates.")] = 2,
    hidden: Annotated[int, typer.Option(help="At least the number of experts, a multiple of 128.")] = 2048,
    intermediate: Annotated[int, typer.Option(help="Size of an expert, a multiple of 128.")] = 256,
    dtype: Annotated[
        str, typer.Option(help="bfloat16 (routed backends carry nothing else), float16, float32.")
    ] = ("bfloat16"),
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
    model: Annotated[str, typer.Option(help="Name it is served under.")] = "probe",
    as_json: AsJson = False,
) -> None:
    """Build a probe model; the manifest in it goes into the replica document."""
    from app.probe_model.errors import ProbeModelError
    from app.probe_model.manifest import MANIFEST_FILE

    try:
        from app.probe_model.build import build as make
    except ImportError:
        raise Refused(NEEDS_TORCH) from None
    with refusing(ProbeModelError, OSError):
        try:
            manifest = make(
                gpus,
                experts_per_gpu,
                top_k,
                hidden,
                out,
                intermediate=intermediate,
                dtype=dtype,  # type: ignore[arg-type]
                seed=seed,
                model=model,
            )
        except ImportError:
            raise Refused(NEEDS_TORCH) from None
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
    import dataclasses

    from app.probe_model.errors import ProbeModelError

    with refusing(ProbeModelError, OSError):
        try:
            from app.probe_model.verify import verify as prove

            report = prove(folder)
        except ImportError:
            raise Refused(NEEDS_TORCH) from None
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
) -> None:
    """Print the vLLM command that serves it beside production."""
    from app.probe_model.errors import ProbeModelError
    from app.probe_model.serve import render_serve_command
    from app.probe_model.serve import serve_command as command

    with refusing(ProbeModelError, OSError):
        words = command(
            folder, all2all=all2all, host=host, port=port, gpu_memory_utilization=gpu_memory_utilization
        )
    say(render_serve_command(words))
