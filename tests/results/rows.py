"""Builders of stored rows for tests: valid by default, any field can be set."""

from __future__ import annotations

from typing import Any

from specbench.results.schema import choice_row, step_row
from specbench.types import ChoiceRecord, StepRecord

KEY_DEFAULTS = {"turn": 0, "arm": "method", "attempt": 0, "repeat": 0}


def sample(sample_id: str = "s0", **values: Any) -> dict[str, Any]:
    row = {
        "sample_id": sample_id,
        **KEY_DEFAULTS,
        "used": True,
        "category": "",
        "finish_reason": "length",
        "num_tokens": 10,
        "tokens": list(range(10)),
        "prefill_s": 0.5,
        "decode_s": 1.0,
        "ttft_s": 0.6,
        "timed": True,
        "started_at": 100.0,
    }
    return row | values


def failed(sample_id: str = "s0", reason: str = "error", **values: Any) -> dict[str, Any]:
    row = sample(sample_id, finish_reason=reason, error="too long", timed=False)
    for name in ("num_tokens", "tokens", "prefill_s", "decode_s", "ttft_s"):
        row[name] = None
    return row | values


def step(sample_id: str = "s0", index: int = 0, *, key: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    counts = {"num_draft_tokens": 4, "num_tree_tokens": 4, "num_accepted": 2, "num_accepted_spine": 2, "num_emitted": 3}
    seconds = {"draft_s": 0.1, "verify_s": 0.2, "adapt_s": 0.0, "host_s": 0.0}
    fields = {"step": index, "context_length": 7, "num_passengers": 0, **counts, **seconds, **values}
    return step_row({"sample_id": sample_id, **KEY_DEFAULTS, **(key or {})}, StepRecord(**fields))


def choice(sample_id: str = "s0", **values: Any) -> dict[str, Any]:
    record = ChoiceRecord(step=1, context_length=9, kind="skip_set", values={"skip": [1, 2]} | values)
    return choice_row({"sample_id": sample_id, **KEY_DEFAULTS}, record)
