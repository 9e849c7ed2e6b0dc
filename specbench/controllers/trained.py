"""Stop where a trained classifier no longer believes in the draft: SpecDec++, and one that sees scalars only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specbench.controllers.base import ScoreStop, chances_note
from specbench.controllers.fixed import FixedLength
from specbench.controllers.heads import AcceptanceHead, ResidualHead, ScalarHead, block_features, loaded
from specbench.decoding.protocol import Block
from specbench.models.artefact import Artefact, Artefacts


@dataclass(kw_only=True)
class TrainedStop(ScoreStop):
    """Drafting ends once the chance that everything drafted so far is accepted is below `threshold`.

    `conditional`: the head gives each token's chance given that all before were accepted, and the chances multiply;
    otherwise it gives the chance that the token is accepted at all, and the last token's is taken. At least
    `min_draft_tokens` tokens are drafted.
    """

    head: AcceptanceHead
    threshold: float
    conditional: bool = True
    min_draft_tokens: int = 1
    _survival: float = field(init=False, default=1.0)
    _chances: list[float] = field(init=False, default_factory=list)

    @property
    def limit(self) -> float:
        return self.threshold

    def start_step(self, budget: int) -> int:
        self._survival, self._chances = 1.0, []
        return super().start_step(budget)

    def chances(self, block: Block) -> Tensor:
        """What the head says of each token of the block [b]."""
        raise NotImplementedError

    def judge(self, block: Block) -> float:
        chances = self.chances(block).cpu()  # the one wait for the device in a block
        self._chances += chances.tolist()
        self._survival = self._survival * float(chances.prod()) if self.conditional else float(chances[-1])
        return self._survival

    def more(self, block: Block) -> bool:
        enough = block.first + len(block.tokens) >= self.min_draft_tokens
        return super().more(block) or not enough

    def notes(self) -> Mapping[str, Any]:
        return chances_note(self._chances, conditional=self.conditional)

    @staticmethod
    def options(config: Any, artefact: Artefact) -> dict[str, Any]:
        """The arguments that configuration and card decide together; `auto` = what the card says."""
        auto = config.threshold == "auto"
        return {
            "num_draft_tokens": config.num_draft_tokens,
            "min_draft_tokens": config.min_draft_tokens,
            "threshold": float(artefact.values["threshold"] if auto else config.threshold),
            "conditional": artefact.values["label"] != "survive",
        }


@dataclass(kw_only=True)
class ScalarStop(TrainedStop):
    """The control that a layer over hidden states must beat: log q, entropy, margin and position in the draft only.

    Source: DISCO, as third parties describe it (a small classifier over such scalars, trained per task and pair).
    """

    signals: frozenset[str] = field(init=False, default=frozenset({"prob", "entropy", "margin"}))

    @classmethod
    def build(cls, config: Any, artefacts: Artefacts) -> ScalarStop:
        """From the stored classifier of this pair."""
        found = artefacts.choose("scalars", config.artefact)
        return cls(head=scalar_head(found), block_size=config.block_size, **cls.options(config, found))

    def chances(self, block: Block) -> Tensor:
        return self.head.probability(block_features(block).cpu())


@dataclass(kw_only=True)
class SpecDecPP(TrainedStop):
    """SpecDec++: a head over the draft's hidden state predicts acceptance token by token.

    `state` own: a token is judged by the state that has read it, so that the newest one never is, and the first
    decision says yes (as the released code). predictor: by the state that predicted it, the newest token included.
    """

    state: str = "own"
    signals: frozenset[str] = field(init=False, default=frozenset({"hidden"}))

    @classmethod
    def build(cls, config: Any, artefacts: Artefacts) -> SpecDecPP:
        """From the stored head of this pair; raises ConfigError where there is none for `state`."""
        found = artefacts.choose("specdecpp", config.artefact, state=config.state)
        return cls(head=residual_head(found), state=config.state, **cls.options(config, found))

    def chances(self, block: Block) -> Tensor:
        assert block.hidden is not None
        chances = self.head.to(block.hidden.device).probability(block.hidden)
        if self.state == "own" and block.first == 0:
            chances[0] = 1.0  # the state that has read the root says nothing of a drafted token
        return chances

    def notes(self) -> Mapping[str, Any]:
        """With `state` own every chance is that of the token before."""
        return chances_note(self._chances[self.state == "own" :], conditional=self.conditional)


def scalar_head(found: Artefact) -> AcceptanceHead:
    """The classifier of an artefact, ready for inference."""
    return loaded(ScalarHead(found.values["width"]), found.tensors)


def residual_head(found: Artefact) -> AcceptanceHead:
    """The head over hidden states of an artefact, ready for inference."""
    values = found.values
    return loaded(ResidualHead(values["width"], values["num_layers"], shared=values["shared"]), found.tensors)


@dataclass
class TunedLength(FixedLength):
    """The fixed length that was best on held-out prompts of this pair."""

    @classmethod
    def build(cls, config: Any, artefacts: Artefacts) -> FixedLength:
        """At most `num_draft_tokens` of the configuration."""
        found = artefacts.choose("tuned", config.artefact)
        return FixedLength(min(int(found.values["num_draft_tokens"]), config.num_draft_tokens))
