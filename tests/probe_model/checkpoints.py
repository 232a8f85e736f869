"""OLMoE checkpoints written without torch: the right headers, and zeros for data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from app.probe_model.checkpoint import CheckpointConfig

CONFIG: dict[str, Any] = {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 4,
    "vocab_size": 300,
    "norm_topk_prob": False,
    "rope_theta": 10000.0,
}
ITEM = {"BF16": 2, "F32": 4, "F16": 2, "I8": 1}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return dict(CheckpointConfig.model_validate(config).shapes())


def write_safetensors(
    file: Path, tensors: dict[str, tuple[int, ...]], dtypes: dict[str, str] | None = None
) -> None:
    """Write zeros; ``dtypes`` names element types other than BF16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, shape in tensors.items():
        dtype = (dtypes or {}).get(key, "BF16")
        begin, end = end, end + math.prod(shape) * ITEM[dtype]
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    with file.open("wb") as handle:
        handle.write(len(content).to_bytes(8, "little") + content)
        handle.truncate(8 + len(content) + end)


def write_checkpoint(folder: Path, *, shards: int = 1, **changes: Any) -> Path:
    """A checkpoint with the tensors of its first layer; fields of the config may be changed."""
    folder.mkdir()
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    tensors = list(shapes(config).items())
    if shards == 1:
        write_safetensors(folder / "model.safetensors", dict(tensors))
        return folder
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    for number, name in enumerate(names):
        write_safetensors(folder / name, dict(tensors[number::shards]))
    weight_map = {key: names[place % shards] for place, (key, _) in enumerate(tensors)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
