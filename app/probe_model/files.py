"""The text files of a probe model folder: model config and tokenizer, as transformers and vLLM read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.probe_model.geometry import Geometry
from app.probe_model.manifest import MANIFEST_FILE
from app.probe_model.vocabulary import EOS_TOKEN, UNKNOWN_TOKEN, Vocabulary

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
MODEL_FILES = frozenset(
    {MANIFEST_FILE, WEIGHTS_FILE, CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE}
)

RMS_NORM_EPS = 1e-5  # vLLM's OLMoE hard-codes this value, so the config must not differ
_SPECIAL_WORDS = ("<eos>", "<unk>")


def write_text_files(folder: Path, geometry: Geometry, vocabulary: Vocabulary) -> None:
    """Write everything but the weights and the manifest into an existing folder."""
    for name, content in {
        CONFIG_FILE: _model_config(geometry, vocabulary.size),
        GENERATION_FILE: {"eos_token_id": EOS_TOKEN, "pad_token_id": UNKNOWN_TOKEN, "do_sample": False},
        TOKENIZER_FILE: _tokenizer(words(vocabulary)),
        TOKENIZER_CONFIG_FILE: {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": _SPECIAL_WORDS[EOS_TOKEN],
            "unk_token": _SPECIAL_WORDS[UNKNOWN_TOKEN],
            "pad_token": _SPECIAL_WORDS[UNKNOWN_TOKEN],
            "model_max_length": geometry.max_model_len,
            "clean_up_tokenization_spaces": False,
        },
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def words(vocabulary: Vocabulary) -> list[str]:
    """The text of every token id: ``gpu3``, ``x1_3_5_6`` (a pattern), ``<eos>``, ``<unk>``, ``<pad9>``."""
    texts = [f"<pad{token}>" for token in range(vocabulary.size)]
    texts[: len(_SPECIAL_WORDS)] = _SPECIAL_WORDS
    for experts, token in vocabulary.pattern_tokens.items():
        texts[token] = "x" + "_".join(map(str, experts))
    for rank, token in enumerate(vocabulary.gpu_tokens):
        texts[token] = f"gpu{rank}"
    return texts


def _model_config(geometry: Geometry, vocabulary_size: int) -> dict[str, Any]:
    return {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "hidden_size": geometry.hidden,
        "intermediate_size": geometry.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": geometry.attention_heads,
        "num_key_value_heads": geometry.key_value_heads,
        "num_experts": geometry.experts,
        "num_experts_per_tok": geometry.top_k,
        "norm_topk_prob": False,
        "vocab_size": vocabulary_size,
        "max_position_embeddings": geometry.max_model_len,
        "hidden_act": "silu",
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "clip_qkv": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "output_router_logits": False,
        "bos_token_id": None,
        "eos_token_id": EOS_TOKEN,
        "pad_token_id": UNKNOWN_TOKEN,
        "torch_dtype": geometry.dtype,
    }


def _tokenizer(texts: list[str]) -> dict[str, Any]:
    special = [
        {
            "id": token,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token, text in enumerate(_SPECIAL_WORDS)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {text: token for token, text in enumerate(texts)},
            "unk_token": _SPECIAL_WORDS[UNKNOWN_TOKEN],
        },
    }
