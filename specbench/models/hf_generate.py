"""Outside references: the transformers library's own `generate`, timed so that it compares with our loop.

Our prefill reads all of the prompt but its last token and every answer token comes from a decode step. The library's
prefill yields the first answer token. So that its tokens are not cheaper by one (or, with a draft, by a whole accepted
block), the prefill is done and timed apart: `ar` continues from that cache, the drafting modes cannot and are timed as
generate() minus the prefill; never less than what passes after their first forward.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from specbench.models.hf_mla import register
from specbench.types import Generation, ModelError, Sampling

MODES = ("ar", "assisted", "pld")
# Our name of a setting -> the library's, for the generation settings of the target and of the draft.
_TARGET_SETTINGS = {"num_draft_tokens": "prompt_lookup_num_tokens", "max_ngram": "max_matching_ngram_size"}
_DRAFT_SETTINGS = {
    "num_assistant_tokens": "num_assistant_tokens",
    "schedule": "num_assistant_tokens_schedule",
    "assistant_confidence_threshold": "assistant_confidence_threshold",
}
# The library's own values for prompt lookup, which it only starts when a number is given.
_PLD_DEFAULTS = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2}


def load_hf(folder: Path, *, dtype: torch.dtype, device: torch.device | str, attn_implementation: str = "sdpa") -> Any:
    """The library's model of a folder, with generation settings neutral instead of the folder's; raises ModelError."""
    register()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=attn_implementation, local_files_only=True
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise ModelError(f"transformers cannot load {folder}: {error}") from error
    model.generation_config = _settings()
    return model.to(device).eval()


class HfGenerator:
    """One answer after another from the library: `ar`, `assisted` (a draft model) or `pld` (prompt lookup).

    `settings`: num_draft_tokens, max_ngram (pld); num_assistant_tokens, schedule, assistant_confidence_threshold
    (assisted). What is not set has the library's default.
    """

    def __init__(
        self,
        model: Any,
        *,
        mode: str,
        sampling: Sampling,
        draft: Any | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if mode not in MODES:
            raise ModelError(f"unknown mode {mode!r} of the library's decoding; there are: {', '.join(MODES)}")
        if (mode == "assisted") != (draft is not None):
            raise ModelError("a draft model belongs to mode 'assisted' and only to it")
        self.model, self.draft, self.mode, self.sampling = model, draft, mode, sampling
        given = dict(settings or {})
        self._lookup = _PLD_DEFAULTS | {
            theirs: given[ours] for ours, theirs in _TARGET_SETTINGS.items() if ours in given
        }
        self._drafting = {theirs: given[ours] for ours, theirs in _DRAFT_SETTINGS.items() if ours in given}
        self.reset()

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        seed: int,
        stop_ids: Iterable[int] = (),
        reference_ids: Sequence[int] | None = None,
    ) -> Generation:
        """Decode at most `max_new_tokens` tokens, cut at the first stop id (kept); steps are None: none are seen."""
        stops = sorted(stop_ids)
        ids = torch.tensor([list(prompt)], device=self.model.device)
        with torch.no_grad(), torch.random.fork_rng(self._rng_devices()):
            torch.manual_seed(seed)
            cache, prefill_s = self._prefill(ids)
            arguments = self._arguments(ids, max_new_tokens, stops) | cache
            output, total_s, first_s = self._timed(arguments)
        continued = bool(cache)
        decode_s = total_s if continued else max(total_s - prefill_s, total_s - first_s)
        tokens, finish_reason = _cut(output[0, ids.shape[1] :].tolist(), stops, max_new_tokens)
        return Generation(
            tokens=tokens,
            finish_reason=finish_reason,
            prefill_s=prefill_s,
            decode_s=decode_s,
            ttft_s=prefill_s + first_s if continued else first_s,
        )

    def reset(self) -> None:
        """Forget what the library learns over answers: the draft's length and confidence threshold."""
        if self.draft is not None:
            self.draft.generation_config = _settings(**self._drafting)

    def _prefill(self, ids: Tensor) -> tuple[dict[str, Any], float]:
        """What `ar` continues from ({} in the other modes), and the seconds of reading all but the last token."""
        if ids.shape[1] < 2:
            return {}, 0.0
        started = self._now()
        output = self.model(ids[:, :-1], use_cache=True, logits_to_keep=1)
        if self.draft is not None:
            self.draft(ids[:, :-1].to(self.draft.device), use_cache=True, logits_to_keep=1)
        seconds = self._now() - started
        if self.mode != "ar":
            return {}, seconds
        # transformers 5.24 renamed past_key_values
        name = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        return {name: output[name]}, seconds

    def _arguments(self, ids: Tensor, max_new_tokens: int, stops: list[int]) -> dict[str, Any]:
        settings: dict[str, Any] = {"do_sample": not self.sampling.greedy}
        if not self.sampling.greedy:
            settings |= {
                "temperature": self.sampling.temperature,
                "top_k": self.sampling.top_k,
                "top_p": self.sampling.top_p,
            }
        if self.mode == "pld":
            settings |= self._lookup
        config = _settings(
            max_new_tokens=max_new_tokens, eos_token_id=stops or None, pad_token_id=stops[0] if stops else 0, **settings
        )
        arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "generation_config": config}
        return arguments if self.draft is None else arguments | {"assistant_model": self.draft}

    def _timed(self, arguments: dict[str, Any]) -> tuple[Tensor, float, float]:
        """The ids [1, P + N], the seconds of generate() and the seconds until the target's first forward ended."""
        first: list[float] = []

        def note(*_: Any) -> None:
            if not first:
                first.append(self._now())

        hook = self.model.register_forward_hook(note)
        try:
            started = self._now()
            output = self.model.generate(**arguments)
            total_s = self._now() - started
        finally:
            hook.remove()
        return output, total_s, first[0] - started

    def _now(self) -> float:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter()

    def _rng_devices(self) -> list[torch.device]:
        return [self.model.device] if self.model.device.type == "cuda" else []


def _settings(**values: Any) -> Any:
    """Generation settings with the library's defaults where nothing is said."""
    config_class: Any = GenerationConfig  # its constructor carries no types
    return config_class(**values)


def _cut(tokens: list[int], stops: Sequence[int], budget: int) -> tuple[tuple[int, ...], str]:
    for position, token in enumerate(tokens[:budget]):
        if token in stops:
            return tuple(tokens[: position + 1]), "stop"
    return tuple(tokens[:budget]), "length"
