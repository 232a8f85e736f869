"""Prove a probe model against transformers: routing of every token, decode steps, echo, log-probabilities."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.probe_model.errors import ProbeModelError
from app.probe_model.files import CONFIG_FILE, WEIGHTS_FILE, words
from app.probe_model.manifest import Manifest, load_manifest, set_key
from app.probe_model.vocabulary import ExpertSet, Vocabulary, lay_out

if TYPE_CHECKING:
    import torch

DECODE_STEPS = 4
LOGPROB_TOLERANCE = 1e-3
"""Float32 implementations agree to 1e-5; one wrong expert moves a log-probability by 0.2 and more."""
MIN_GAP = 0.01
"""Smallest gap between a selected and an unselected router logit, or the best two next tokens, that counts."""
_PROMPT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was proven, and with how much room.

    Parameters
    ----------
    tokens : int
        Token ids whose routing was checked, special and padding ids included.
    echoed : int
        Tokens that greedy decoding was checked to repeat, in the prompt and in `decode_steps` steps after it.
    decode_steps : int
        Steps decoded after each of them, with routing checked in each.
    routing_gap : float
        Smallest difference between a selected and an unselected router logit.
    echo_margin : float
        Smallest difference between the logit of the repeated token and that of the next best.
    logprob_tokens : int
        Tokens whose log-probabilities were compared with the manifest.
    logprob_error : float
        Largest difference found there.
    """

    tokens: int
    echoed: int
    decode_steps: int
    routing_gap: float
    echo_margin: float
    logprob_tokens: int
    logprob_error: float


def verify(folder: Path) -> VerifyReport:
    """Check a probe model folder with transformers in float32, on the CPU.

    Raises
    ------
    ProbeModelError
        Files that cannot be loaded or contradict the manifest, or the first wrong token: its id, what was
        expected and what was found.
    """
    import torch

    manifest = load_manifest(folder)
    vocabulary = lay_out(manifest.gpus, manifest.experts_per_gpu, manifest.top_k)
    _check_layout(manifest, vocabulary)
    _check_config(folder, manifest, vocabulary)
    _check_tokenizer(folder, vocabulary)
    checks = _Checks(manifest, vocabulary, _load_model(folder))
    with torch.no_grad():
        checks.prompts()
        checks.decoding()
    return checks.report()


def _check_layout(manifest: Manifest, vocabulary: Vocabulary) -> None:
    expected = {set_key(experts): token for experts, token in vocabulary.pattern_tokens.items()}
    if manifest.gpu_tokens != vocabulary.gpu_tokens:
        raise ProbeModelError("gpu_tokens", "are not the builder's layout; build the model again")
    if manifest.pattern_tokens != expected:
        raise ProbeModelError("pattern_tokens", "are not the builder's layout; build the model again")
    missing = vocabulary.checked_tokens().keys() - {int(token) for token in manifest.logprobs}
    if missing:
        raise ProbeModelError("logprobs", f"token {min(missing)} is missing; build the model again")


def _check_config(folder: Path, manifest: Manifest, vocabulary: Vocabulary) -> None:
    try:
        config = json.loads((folder / CONFIG_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise ProbeModelError(CONFIG_FILE, f"cannot be read ({error})") from error
    for name, expected in {
        "architectures": ["OlmoeForCausalLM"],
        "hidden_size": manifest.hidden_size,
        "num_experts": manifest.experts,
        "num_experts_per_tok": manifest.top_k,
        "num_hidden_layers": 1,
        "vocab_size": vocabulary.size,
        "torch_dtype": manifest.dtype,
    }.items():
        if config.get(name) != expected:
            raise ProbeModelError(CONFIG_FILE, f"{name} must be {expected!r} to agree with the manifest")


def _check_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    from transformers import AutoTokenizer

    tokenizer = _loading(lambda: AutoTokenizer.from_pretrained(folder, local_files_only=True))
    for token, word in enumerate(words(vocabulary)):
        if tokenizer.convert_tokens_to_ids(word) != token:
            raise ProbeModelError("tokenizer.json", f"token {token} must be {word!r}")


def _load_model(folder: Path) -> Any:
    import torch
    from transformers import OlmoeForCausalLM

    def load() -> Any:
        return OlmoeForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, output_loading_info=True
        )

    model, info = _loading(load)
    if info["missing_keys"] or info["unexpected_keys"]:
        raise ProbeModelError(WEIGHTS_FILE, "does not hold exactly the tensors of the model")
    for name, tensor in model.named_parameters():
        # Through attention, one such row would make every token of its prompt look wrong.
        bad = (~torch.isfinite(tensor)).nonzero()
        if len(bad):
            raise ProbeModelError(WEIGHTS_FILE, f"{name} is not finite in row {int(bad[0, 0])}")
    return model.eval()


def _loading(load: Callable[[], Any]) -> Any:
    """Run a loader of transformers, whose errors on broken files have no common type."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return load()
    except Exception as error:
        raise ProbeModelError("model files", f"transformers cannot load them ({str(error)[:200]})") from error


@dataclass(slots=True)
class _Checks:
    """One pass over all tokens; remembers the narrowest margins."""

    manifest: Manifest
    vocabulary: Vocabulary
    model: Any
    rows: list[ExpertSet] = field(init=False)
    own: dict[int, ExpertSet] = field(init=False)
    routing_gap: float = math.inf
    echo_margin: float = math.inf
    logprob_error: float = 0.0

    def __post_init__(self) -> None:
        self.rows = list(self.vocabulary.rows())
        self.own = self.vocabulary.experts_by_token()

    def prompts(self) -> None:
        """Every token id in prompts that mix them: neighbours must not matter."""
        import torch

        router, logits = [], []
        for ids in _chunks(range(self.vocabulary.size), min(_PROMPT_TOKENS, self.manifest.max_model_len)):
            output = self.model(torch.tensor([ids]), output_router_logits=True, use_cache=False)
            router.append(output.router_logits[0])
            logits.append(output.logits[0])
        self._check(list(range(self.vocabulary.size)), torch.cat(router), torch.cat(logits), "in a prompt")

    def decoding(self) -> None:
        """A prompt of one token and greedy steps after it, for every token that must repeat itself."""
        import torch

        for ids in _chunks(sorted(self.own), _PROMPT_TOKENS):
            cache = None
            for step in range(self.decode_steps + 1):
                output = self.model(
                    torch.tensor(ids)[:, None], past_key_values=cache, use_cache=True, output_router_logits=True
                )
                cache = output.past_key_values
                self._check(ids, output.router_logits[0], output.logits[:, -1], f"in decode step {step}")

    @property
    def decode_steps(self) -> int:
        """Steps after the prompt; fewer when the model's length does not allow them."""
        return min(DECODE_STEPS, self.manifest.max_model_len - 1)

    def report(self) -> VerifyReport:
        return VerifyReport(
            tokens=self.vocabulary.size,
            echoed=len(self.own),
            decode_steps=self.decode_steps,
            routing_gap=self.routing_gap,
            echo_margin=self.echo_margin,
            logprob_tokens=len(self.manifest.logprobs),
            logprob_error=self.logprob_error,
        )

    def _check(self, ids: list[int], router: torch.Tensor, logits: torch.Tensor, where: str) -> None:
        """Compare one row of router logits and one of output logits a token, ascending ids.

        First all routing, then all echo, then log-probabilities: a wrong row of one token also moves the
        log-probabilities of others, and must be named itself.
        """
        import torch

        router = router.reshape(len(ids), -1)
        expected = torch.tensor([self.rows[token] for token in ids])
        chosen = torch.zeros_like(router, dtype=torch.bool).scatter_(1, expected, True)
        gaps = router.masked_fill(~chosen, math.inf).amin(1) - router.masked_fill(chosen, -math.inf).amax(1)
        for token, gap, row in zip(ids, gaps.tolist(), router, strict=True):
            self._check_routing(token, gap, row, where)
        best = logits.topk(2, dim=1)
        margins = (best.values[:, 0] - best.values[:, 1]).tolist()
        for token, emitted, margin in zip(ids, best.indices[:, 0].tolist(), margins, strict=True):
            if token in self.own:
                self._check_echo(token, emitted, margin, where)
        for token, row in zip(ids, logits, strict=True):
            self._check_logprobs(token, row, where)

    def _check_routing(self, token: int, gap: float, router: torch.Tensor, where: str) -> None:
        if not gap >= MIN_GAP:  # also catches NaN
            got = sorted(router.topk(self.manifest.top_k).indices.tolist())
            clearly = "" if got != list(self.rows[token]) else f", but by a gap of {gap:.2g} only"
            raise ProbeModelError(
                f"token {token}", f"expected experts {list(self.rows[token])}, got {got}{clearly}, {where}"
            )
        self.routing_gap = min(self.routing_gap, gap)

    def _check_echo(self, token: int, emitted: int, margin: float, where: str) -> None:
        if emitted != token or not margin >= MIN_GAP:
            raise ProbeModelError(
                f"token {token}", f"must be repeated, but {emitted} follows by a margin of {margin:.2g}, {where}"
            )
        self.echo_margin = min(self.echo_margin, margin)

    def _check_logprobs(self, token: int, logits: torch.Tensor, where: str) -> None:
        wanted = self.manifest.expected_logprobs(token)
        logprobs = logits.log_softmax(dim=0) if wanted else logits
        for after, expected in wanted.items():
            got = float(logprobs[after]) if after < len(logprobs) else math.nan
            if not abs(got - expected) <= LOGPROB_TOLERANCE:
                raise ProbeModelError(
                    f"token {token}",
                    f"expected log-probability {expected} of token {after}, got {got:.6f}, {where};"
                    f" one of its experts {list(self.rows[token])} is not the builder's",
                )
            self.logprob_error = max(self.logprob_error, abs(got - expected))


def _chunks(tokens: range | list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(tokens), size):
        yield list(tokens[start : start + size])
