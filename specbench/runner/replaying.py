"""Acceptance without decoding: one pass of a draft model over AR's answer tells every step of greedy speculation.

While a greedy chain is accepted its tokens are the answer's own, so the draft's first choice after every prefix of the
answer decides where each draft of fixed length ends. What a draft says behind a wrong token is not seen: it counts with
its full length, also where a stop id would have cut it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specbench.analysis.replay import Fixed, Step, Trace, steps_of
from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.teacher import first_choices
from specbench.methods.sps import readable
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache
from specbench.types import ConfigError, Generation, Generator, SampleError, StepRecord

_ROWS = 64  # rows of the cache whose tensors are measured
_NOT_MEASURED = math.nan


class Replay:
    """A Generator that gives back AR's answer with the steps that greedy drafts of a fixed length take on it."""

    needs_reference = True

    def __init__(self, decoding: SpeculativeDecoding) -> None:
        self.drafter = decoding.drafter
        self._target = decoding.target.decoder
        self._draft: Decoder = decoding.drafter.draft  # type: ignore[attr-defined]
        self._policy = Fixed(decoding.drafter.controller.num_draft_tokens)  # type: ignore[attr-defined]
        self._cache: KVCache | None = None

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        seed: int,
        stop_ids: Iterable[int] = (),
        reference_ids: Sequence[int] | None = None,
    ) -> Generation:
        """The steps on `reference_ids`, AR's answer to `prompt`; no second of them is measured (NaN)."""
        if not reference_ids:
            raise SampleError("a replay needs AR's answer")
        stops = frozenset(stop_ids)
        trace = self._trace(prompt, reference_ids, stops, max_new_tokens)
        steps = enumerate(steps_of(trace, self._policy))
        return Generation(
            tokens=tuple(reference_ids),
            finish_reason="stop" if reference_ids[-1] in stops else "length",
            prefill_s=_NOT_MEASURED,
            decode_s=_NOT_MEASURED,
            ttft_s=_NOT_MEASURED,
            steps=tuple(_record(number, step, len(prompt) + step.start) for number, step in steps),
        )

    def reset(self) -> None:
        self.drafter.reset()

    def _trace(self, prompt: Sequence[int], answer: Sequence[int], stops: frozenset[int], budget: int) -> Trace:
        draft, target = self._draft, self._target
        self._cache = draft.reserve(self._cache, len(prompt) + len(answer))
        known = [readable(tokens, draft, target=target) for tokens in (prompt, answer)]
        chosen = first_choices(draft, self._cache, *known, vocab_size=target.spec.vocab_size).cpu().numpy()
        return Trace(chosen == np.asarray(answer), budget=budget, ends=np.isin(chosen, sorted(stops)))


def replay_of(built: Generator) -> Replay:
    """What replays the steps of a method; ConfigError where its drafts are not one model's own chains."""
    if not isinstance(built, SpeculativeDecoding) or not hasattr(built.drafter, "draft"):
        raise ConfigError("measure.acceptance=replay: this method drafts with no model of its own")
    return Replay(built)


def draft_numbers(drafter: Any, card: Mapping[str, Any]) -> dict[str, Any]:
    """What a drafter's own model costs: KV bytes a token, measured on a cache's tensors; and how it was converted."""
    draft = getattr(drafter, "draft", None)
    if not isinstance(draft, Decoder):
        return {}
    return {
        "draft_kv_bytes_per_token": draft.new_cache(_ROWS).nbytes() / _ROWS,
        **({"conversion": dict(card)} if card else {}),
    }


def _record(number: int, step: Step, context_length: int) -> StepRecord:
    return StepRecord(
        step=number,
        context_length=context_length,
        num_draft_tokens=step.drafted,
        num_tree_tokens=step.drafted,
        num_passengers=0,
        num_accepted=step.accepted,
        num_accepted_spine=step.accepted,
        num_emitted=step.emitted,
        draft_s=_NOT_MEASURED,
        verify_s=_NOT_MEASURED,
        adapt_s=_NOT_MEASURED,
        host_s=_NOT_MEASURED,
        info={"replayed": True},
    )
