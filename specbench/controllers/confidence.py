"""Stop drafting after a token that the draft itself thinks unlikely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specbench.controllers.base import ControllerBase
from specbench.decoding.protocol import Block


@dataclass
class ConfidenceStop(ControllerBase):
    """Drafting ends after the first token with draft probability below `threshold`; that token is kept and verified.

    Source: the confidence stop of the transformers library's assisted generation (threshold 0.4, 20 tokens), and
    of KnapSpec, CLaSp, SWIFT and ConfLayers with their own numbers.
    """

    num_draft_tokens: int = 20
    threshold: float = 0.4
    signals: ClassVar[frozenset[str]] = frozenset({"prob"})

    def more(self, block: Block) -> bool:
        assert block.prob is not None
        return float(block.prob.min()) >= self.threshold
