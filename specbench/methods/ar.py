"""Autoregressive decoding: the empty draft through the same loop, so that it pays the same overhead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import DrafterBase
from specbench.methods.build import Parts
from specbench.types import Draft


@dataclass
class Autoregressive(DrafterBase):
    """Proposes nothing."""

    @classmethod
    def build(cls, config: Any, parts: Parts) -> Autoregressive:
        return cls()

    def propose(self, budget: int) -> Draft:
        return empty_draft()
