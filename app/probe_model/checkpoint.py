"""An OLMoE checkpoint folder, as far as one layer of it matters: its config and where its tensors are.

Everything in the folder is untrusted. Only JSON and safetensors headers are read here, no code and no pickle; a
file that the folder names must lie inside it, links included.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from app.probe_model.errors import ProbeModelError
from app.probe_model.files import CONFIG_FILE, WEIGHTS_FILE
from app.probe_model.geometry import MAX_HIDDEN, MAX_INTERMEDIATE
from app.probe_model.manifest import DType
from app.probe_model.safetensors_header import DTYPES, TensorEntry, read_header
from app.probe_model.vocabulary import MAX_TOP_K

INDEX_FILE = "model.safetensors.index.json"
MAX_CONFIG_BYTES = 2**20
MAX_INDEX_BYTES = 16 * 2**20
LAYER = "model.layers.0."
"""Every layer of an OLMoE is a Mixture-of-Experts layer, so the first one is layer 0."""
EMBEDDING, LM_HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"

_FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors$"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class CheckpointConfig(BaseModel):
    """The fields of ``config.json`` that decide shapes; others do not matter for one layer without attention."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    model_type: Literal["olmoe"]
    architectures: tuple[Literal["OlmoeForCausalLM"]]
    hidden_size: Annotated[StrictInt, Field(ge=1, le=MAX_HIDDEN)]
    intermediate_size: Annotated[StrictInt, Field(ge=1, le=MAX_INTERMEDIATE)]
    num_hidden_layers: Annotated[StrictInt, Field(ge=1, le=1024)]
    num_attention_heads: Annotated[StrictInt, Field(ge=1, le=1024)]
    num_key_value_heads: Annotated[StrictInt, Field(ge=1, le=1024)]
    num_experts: Annotated[StrictInt, Field(ge=2, le=4096)]
    num_experts_per_tok: Annotated[StrictInt, Field(ge=1, le=MAX_TOP_K)]
    vocab_size: Annotated[StrictInt, Field(ge=1, le=2**22)]
    hidden_act: Literal["silu"] = "silu"
    attention_bias: Literal[False] = False
    tie_word_embeddings: StrictBool = False
    quantization_config: None = None
    auto_map: None = None

    @model_validator(mode="before")
    @classmethod
    def _as_many_keys_as_heads(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("num_key_value_heads") is None:
            return {**data, "num_key_value_heads": data.get("num_attention_heads")}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("num_attention_heads must divide hidden_size")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_key_value_heads must divide num_attention_heads")
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError("num_experts_per_tok must be at most num_experts")
        return self

    @property
    def key_value_width(self) -> int:
        """Columns of a key, all its heads together."""
        return self.hidden_size // self.num_attention_heads * self.num_key_value_heads

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Key and shape of every tensor of the first layer and around the layers."""
        hidden, inner, keys = self.hidden_size, self.intermediate_size, self.key_value_width
        yield EMBEDDING, (self.vocab_size, hidden)
        if not self.tie_word_embeddings:
            yield LM_HEAD, (self.vocab_size, hidden)
        yield FINAL_NORM, (hidden,)
        for name, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_norm": (hidden,),
            "self_attn.k_norm": (keys,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate": (self.num_experts, hidden),
        }.items():
            yield f"{LAYER}{name}.weight", shape
        for expert in range(self.num_experts):
            yield expert_key(expert, "gate_proj"), (inner, hidden)
            yield expert_key(expert, "up_proj"), (inner, hidden)
            yield expert_key(expert, "down_proj"), (hidden, inner)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked checkpoint: every tensor is where it is said to be, of the right shape and one element type.

    Parameters
    ----------
    folder : Path
        Where it is.
    config : CheckpointConfig
        Its sizes.
    dtype : {"float32", "bfloat16", "float16"}
        Of its tensors.
    tensors : dict of str to TensorEntry
        Those of the first layer, the embedding, the output projection and the last norm, by key.
    """

    folder: Path
    config: CheckpointConfig
    dtype: DType
    tensors: dict[str, TensorEntry]


def expert_key(expert: int, name: str) -> str:
    """Key of one matrix of one expert of the first layer."""
    return f"{LAYER}mlp.experts.{expert}.{name}.weight"


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read config and headers of an OLMoE checkpoint, in one safetensors file or several with an index.

    Raises
    ------
    ProbeModelError
        Another architecture, a missing tensor, a wrong shape, mixed element types, a truncated file, or a file
        outside the folder; file and key are named.
    """
    config = _read_config(folder)
    tensors: dict[str, TensorEntry] = {}
    headers: dict[str, dict[str, TensorEntry]] = {}
    places = _places(folder)
    for key, shape in config.shapes():
        name = places.get(key) if places is not None else WEIGHTS_FILE
        if name is None:
            raise ProbeModelError(f"{INDEX_FILE}: {key}", "is missing; this is no complete OLMoE checkpoint")
        if name not in headers:
            headers[name] = read_header(_inside(folder, name))
        tensors[key] = _entry(headers[name], name, key, shape)
    return Checkpoint(folder, config, _one_dtype(tensors), tensors)


def _read_config(folder: Path) -> CheckpointConfig:
    try:
        return CheckpointConfig.model_validate(_read_json(folder, CONFIG_FILE, MAX_CONFIG_BYTES))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        reason = {
            "auto_map": "names code of its own, which is never run; only stock OLMoE is read",
            "quantization_config": "must be absent; take the checkpoint that is not quantised",
            "architectures": "must be OlmoeForCausalLM alone",
            "model_type": "must be olmoe",
        }.get(field, first["msg"].removeprefix("Value error, "))
        raise ProbeModelError(": ".join(filter(None, [CONFIG_FILE, field])), reason) from error


def _places(folder: Path) -> dict[str, str] | None:
    """The file of every key by the index; None when there is one file without an index."""
    if (folder / WEIGHTS_FILE).exists():
        return None
    if not (folder / INDEX_FILE).exists():
        pickled = any(next(folder.glob(pattern), None) for pattern in _PICKLES)
        hint = "; pickled weights are never read, convert them to safetensors" if pickled else ""
        raise ProbeModelError(str(folder), f"holds neither {WEIGHTS_FILE} nor {INDEX_FILE}{hint}")
    document = _read_json(folder, INDEX_FILE, MAX_INDEX_BYTES)
    try:
        return _WEIGHT_MAP.validate_python(document.get("weight_map"))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ": ".join([INDEX_FILE, "weight_map", *map(str, first["loc"][:1])])[:200]
        raise ProbeModelError(where, "must be the plain name of a .safetensors file in the folder") from error


_WEIGHT_MAP = TypeAdapter(
    Annotated[dict[str, Annotated[str, Field(strict=True, pattern=_FILE_NAME)]], Field(max_length=2**20)],
    config=ConfigDict(hide_input_in_errors=True),
)


def _read_json(folder: Path, name: str, limit: int) -> dict[str, Any]:
    file = _inside(folder, name)
    try:
        with file.open("rb") as handle:
            content = handle.read(limit + 1)
        document = json.loads(content) if len(content) <= limit else None
    except OSError as error:
        raise ProbeModelError(name, f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ProbeModelError(name, "is not JSON") from error
    if not isinstance(document, dict):
        raise ProbeModelError(name, f"must be one JSON object of at most {limit} bytes")
    return document


def _inside(folder: Path, name: str) -> Path:
    """The real path of a file that the folder names; links may not lead out, and only regular files are opened."""
    try:
        root = folder.resolve(strict=True)
        file = (folder / name).resolve(strict=True)
        regular = stat.S_ISREG(file.stat().st_mode)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise ProbeModelError(str(folder / name), f"cannot be read ({reason})") from error
    if not file.is_relative_to(root):
        raise ProbeModelError(name, "is a link that leaves the folder; copy the files themselves into it")
    if not regular:
        raise ProbeModelError(name, "is not a regular file")
    return file


def _entry(header: dict[str, TensorEntry], name: str, key: str, shape: tuple[int, ...]) -> TensorEntry:
    entry = header.get(key)
    if entry is None:
        raise ProbeModelError(f"{name}: {key}", "is missing; this is no complete OLMoE checkpoint")
    if entry.shape != shape:
        raise ProbeModelError(
            f"{name}: {key}", f"has shape {list(entry.shape)}, but by {CONFIG_FILE} it must be {list(shape)}"
        )
    if entry.dtype not in DTYPES:
        raise ProbeModelError(f"{name}: {key}", f"has element type {entry.dtype}; it must be {', '.join(DTYPES)}")
    return entry


def _one_dtype(tensors: dict[str, TensorEntry]) -> DType:
    first = next(iter(tensors.values())).dtype
    for key, entry in tensors.items():
        if entry.dtype != first:
            raise ProbeModelError(
                f"{entry.file.name}: {key}",
                f"has element type {entry.dtype}, others {first}; they may not mix",
            )
    return DTYPES[first]
