"""Speculative sampling with a draft whose attention was converted to multi-head latent attention.

The draft's cache holds latents, and a step of one token reads them as they are (`specbench.models.latent`); all else
is what any draft model does. Who converts it, and when, is `specbench.runner.converted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.methods.build import Parts, build_controller
from specbench.methods.sps import SpeculativeSampling


@dataclass
class LatentDraft(SpeculativeSampling):
    """`card` says how the draft was converted and how near its layers come to the original's; {} = it was not."""

    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def build(cls, config: Any, parts: Parts) -> LatentDraft:
        return cls(parts.require_draft(), build_controller(config, parts), card=parts.draft_card)
