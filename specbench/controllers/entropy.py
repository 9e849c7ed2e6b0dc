"""Stop drafting where the draft's distribution is wide: SVIP and AdaEDL are one rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specbench.controllers.adaptive import AdaptiveStop
from specbench.decoding.protocol import Block

_SIGNAL = {"raw": "raw_entropy", "warped": "entropy"}


@dataclass
class EntropyStop(AdaptiveStop):
    """Drafting ends after the first token drawn where 1 - sqrt(`entropy_scale` * H) is below the threshold.

    H in nats, of the `raw` distribution (temperature 1) or of the `warped` one that is sampled from. The score is a
    lower bound of the acceptance by Pinsker's inequality, with the divergence taken as proportional to H. Sources: SVIP
    (scale 0.15, stop where sqrt(0.15 H) > 0.3) and AdaEDL (scale 0.2, a threshold that moves).
    """

    num_draft_tokens: int = 40
    threshold: float = 0.7
    adaptive: bool = False
    entropy_scale: float = 0.15
    distribution: str = "raw"

    def __post_init__(self) -> None:
        self.signals = frozenset({_SIGNAL[self.distribution]})

    def judge(self, block: Block) -> float:
        entropy = block.raw_entropy if self.distribution == "raw" else block.entropy
        assert entropy is not None
        return 1.0 - math.sqrt(self.entropy_scale * max(0.0, float(entropy.max())))
