"""ROUGE-1, ROUGE-2 and ROUGE-L of a summary (package rouge-score, with Porter stemming as is usual for CNN/DM)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

ROUGE_NAMES = ("rouge1", "rouge2", "rougeL")


def rouge_scores(answer: str, reference: str) -> dict[str, float]:
    """F-measures in [0, 1] of one answer against one reference."""
    scores = _scorer().score(reference, answer)
    return {name: float(scores[name].fmeasure) for name in ROUGE_NAMES}


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # late: imports nltk

    return RougeScorer(list(ROUGE_NAMES), use_stemmer=True)
