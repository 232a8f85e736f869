"""Measure the probe model's layer on this machine: memory by part and forward time, in one short run.

On a CUDA or ROCm device where there is one, on the CPU elsewhere. Prints one JSON object. By default the layer is
OLMoE-1B-7B's (64 experts of 2048 x 1024, top-8, bfloat16, 50304 tokens) with random weights; ``--ep`` gives what
one GPU holds, its part of the experts and all else, with the work of whole tokens. Sizes can be chosen, or taken
from a folder. A byte count is null where the device has no counter of its own, as on the CPU::

    python -m scripts.gpu_check --ep 1,4
    python -m scripts.gpu_check --model probe-model --ep 1 --tokens 1,64
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from app.probe_model.checkpoint import CheckpointConfig, read_checkpoint
from app.probe_model.errors import ProbeModelError
from app.probe_model.geometry import ITEM_BYTES
from app.probe_model.memory import checkpoint_runtime
from app.probe_model.runtime import Limits

if TYPE_CHECKING:
    import torch

OLMOE_1B_7B = {
    "hidden": 2048,
    "intermediate": 1024,
    "heads": 16,
    "experts": 64,
    "top_k": 8,
    "vocabulary": 50304,
}
WARM_UPS = 2
MAX_TOKENS = 65536


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 2 with one line on standard error where that cannot be done."""
    given = _parse(arguments)
    try:
        import torch
        import transformers  # noqa: F401 - fails here rather than half-way
    except ImportError as error:
        print(f"gpu_check: {error.name} is missing: pip install 'faultsense[torch]'", file=sys.stderr)
        return 2
    try:
        print(json.dumps(check(given), allow_nan=False))
    except (ProbeModelError, torch.OutOfMemoryError) as error:
        print(f"gpu_check: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


def check(given: argparse.Namespace) -> dict[str, Any]:
    """Measure every degree of expert parallelism, one after the other."""
    import torch

    config, dtype = _sizes(given)
    device = _choose_device(given.device)
    # Creates the device's context, so that it does not count as anything's memory or time.
    torch.zeros(1, device=device)
    return {
        "device": _describe(device),
        "torch": torch.__version__,
        "layer": config.model_dump(include=_SHOWN) | {"dtype": dtype},
        "repeats": given.repeats,
        "ep": [_measure(_share(config, degree), dtype, device, given) | {"ep": degree} for degree in given.ep],
    }


_SHOWN = {"hidden_size", "intermediate_size", "num_experts", "num_experts_per_tok", "vocab_size"}


def _measure(
    share: CheckpointConfig, dtype: str, device: torch.device, given: argparse.Namespace
) -> dict[str, Any]:
    """Load one GPU's share part by part, then time it."""
    import torch

    computed = _computed(share, dtype, max(given.tokens))
    model = _make_model(share, dtype)
    experts = model.model.layers[0].mlp.experts
    memory = _Memory(device)
    measured: dict[str, int | None] = {}
    # The experts stay behind while the rest moves, so that each part is counted alone.
    model.model.layers[0].mlp.experts = torch.nn.Identity()
    model.to(device)
    measured["replicated"] = memory.grown()
    model.model.layers[0].mlp.experts = experts.to(device)
    measured["sharded"] = memory.grown()
    memory.start_peak()
    forward = [_time_forward(model, tokens, device, given.repeats) for tokens in given.tokens]
    measured["runtime"] = memory.peak()
    return {
        "experts": share.num_experts,
        "bytes": {
            part: {"measured": measured[part], "computed": computed[part]}
            for part in ("replicated", "sharded", "runtime")
        },
        "forward_ms": forward,
    }


def _share(config: CheckpointConfig, degree: int) -> CheckpointConfig:
    held = -(-config.num_experts // degree)
    if degree > config.num_experts or held < 2:
        raise ProbeModelError("ep", f"leaves a GPU {held} of {config.num_experts} experts; at least 2 are needed")
    changed = {"num_experts": held, "num_experts_per_tok": min(config.num_experts_per_tok, held)}
    return config.model_copy(update=changed)


def _computed(config: CheckpointConfig, dtype: str, tokens: int) -> dict[str, int]:
    """Bytes by shapes: what `faultsense probe-model memory` says, and its estimate for these token counts."""
    item = ITEM_BYTES[dtype]  # type: ignore[index]
    sizes = {"replicated": 0, "sharded": 0}
    for key, shape in config.shapes():
        sizes["sharded" if ".mlp.experts." in key else "replicated"] += math.prod(shape) * item
    limits = Limits(max_num_seqs=1, max_num_batched_tokens=tokens, max_model_len=tokens)
    runtime = checkpoint_runtime(config, limits, item)
    return sizes | {"runtime": runtime.total}


def _make_model(config: CheckpointConfig, dtype: str) -> Any:
    import torch
    from transformers import OlmoeConfig, OlmoeForCausalLM

    chosen = OlmoeConfig(
        **config.model_dump() | {"num_hidden_layers": 1, "eos_token_id": None, "pad_token_id": None}
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        model = OlmoeForCausalLM(chosen)
    finally:
        torch.set_default_dtype(before)
    return model.requires_grad_(False).eval()


class _Memory:
    """The device's counter of allocated bytes; None everywhere on a device without one."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._cuda = torch.cuda if device.type == "cuda" else None
        self._device = device
        self._last = self._now()

    def _now(self) -> int | None:
        return int(self._cuda.memory_allocated(self._device)) if self._cuda else None

    def grown(self) -> int | None:
        """Bytes more than at the last call."""
        before, self._last = self._last, self._now()
        return None if self._last is None or before is None else self._last - before

    def start_peak(self) -> None:
        if self._cuda:
            self._cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int | None:
        """The most bytes at once since `start_peak`, beyond what was there at the last `grown`."""
        if not self._cuda or self._last is None:
            return None
        return int(self._cuda.max_memory_allocated(self._device)) - self._last


def _time_forward(model: Any, tokens: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """The time of one step over ``tokens`` sequences of one token, logits included: a decode step, empty cache."""
    import torch

    ids = torch.arange(tokens, device=device)[:, None] % model.config.vocab_size

    def step() -> None:
        model(ids, use_cache=False)

    with torch.no_grad():
        seconds = [_seconds(step, device) for _ in range(WARM_UPS + repeats)][WARM_UPS:]
    milliseconds = [1000 * value for value in seconds]
    return {
        "tokens": tokens,
        "median": round(statistics.median(milliseconds), 4),
        "lowest": round(min(milliseconds), 4),
        "highest": round(max(milliseconds), 4),
    }


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    import torch

    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - start


def _choose_device(wanted: str) -> torch.device:
    import torch

    present = torch.cuda.is_available()  # ROCm builds answer here too
    if wanted == "cuda" and not present:
        raise ProbeModelError("device", "no CUDA or ROCm device is usable here")
    return torch.device("cuda" if present and wanted != "cpu" else "cpu")


def _describe(device: torch.device) -> dict[str, Any]:
    import torch

    if device.type == "cpu":
        return {"kind": "cpu", "name": f"{torch.get_num_threads()} threads", "memory_bytes": None}
    properties = torch.cuda.get_device_properties(device)
    return {
        "kind": "rocm" if torch.version.hip else "cuda",
        "name": properties.name,
        "memory_bytes": properties.total_memory,
    }


def _sizes(given: argparse.Namespace) -> tuple[CheckpointConfig, str]:
    chosen = {name: value for name in OLMOE_1B_7B if (value := getattr(given, name)) is not None}
    if given.model is not None:
        if chosen or given.dtype:
            raise ProbeModelError("model", "decides the sizes; leave out the options that choose them")
        found = read_checkpoint(given.model)
        return found.config, found.dtype
    sizes = OLMOE_1B_7B | chosen
    try:
        config = CheckpointConfig(
            model_type="olmoe",
            architectures=("OlmoeForCausalLM",),
            hidden_size=sizes["hidden"],
            intermediate_size=sizes["intermediate"],
            num_hidden_layers=1,
            num_attention_heads=sizes["heads"],
            num_key_value_heads=sizes["heads"],
            num_experts=sizes["experts"],
            num_experts_per_tok=sizes["top_k"],
            vocab_size=sizes["vocabulary"],
        )
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ProbeModelError(".".join(map(str, first["loc"])) or "sizes", first["msg"]) from error
    return config, given.dtype or "bfloat16"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description="Measure the probe model's layer here.")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto", help="cuda: ROCm too")
    parser.add_argument("--model", type=Path, help="take the sizes of a probe model or OLMoE checkpoint")
    for name, default in OLMOE_1B_7B.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{default}")
    parser.add_argument("--dtype", choices=list(ITEM_BYTES))
    parser.add_argument("--ep", type=_numbers(1, 4096), default=[1], help="degrees, such as 1,4")
    parser.add_argument("--tokens", type=_numbers(1, MAX_TOKENS), default=[1, 64, 512], help="in a step")
    parser.add_argument("--repeats", type=int, choices=range(1, 1001), default=7, metavar="1..1000")
    return parser.parse_args(arguments)


def _numbers(low: int, high: int) -> Callable[[str], list[int]]:
    def numbers(text: str) -> list[int]:
        found = [int(part) for part in text.split(",")]
        if not all(low <= number <= high for number in found) or len(found) > 16:
            raise ValueError
        return found

    return numbers


if __name__ == "__main__":
    sys.exit(main())
