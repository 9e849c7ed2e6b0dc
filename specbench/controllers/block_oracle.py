"""A bound, not a method: stop after the first block that holds a token which AR would not have written."""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.controllers.base import ControllerBase
from specbench.decoding.protocol import Block, Request
from specbench.types import ConfigError


@dataclass
class BlockOracle(ControllerBase):
    """Knows AR's answer (`request.reference_ids`) as far as it has drafted, and so never submits two failing blocks.

    A rule that stops before the failing block, by luck or judgement, drafts less: where drafting is dear next to what
    is accepted, such a rule can be faster. What no rule can pass is the token oracle of `analysis/replay.py`.

    Greedy only: an oracle over sampled tokens would have to look at the verifier's own draws, and what comes out would
    no longer follow the target.
    """

    num_draft_tokens: int = 32
    block_size: int = 3
    _request: Request | None = field(init=False, default=None, repr=False)
    _prompt: int = field(init=False, default=0)

    def begin(self, request: Request) -> None:
        """Raises ConfigError where there is no answer to look at, or no single one."""
        if not request.sampling.greedy:
            raise ConfigError(
                f"sampling.temperature={request.sampling.temperature}: method/controller=block_oracle is a bound for "
                "greedy decoding only; set sampling.temperature=0 or choose another controller"
            )
        if request.reference_ids is None:
            raise ConfigError(
                "method/controller=block_oracle needs AR's answer: set measure.baseline=paired or stored, or choose "
                "another controller"
            )
        self._request, self._prompt = request, len(request.committed)

    def more(self, block: Block) -> bool:
        assert self._request is not None
        assert self._request.reference_ids is not None
        first = len(self._request.committed) - self._prompt + block.first
        wanted = self._request.reference_ids[first : first + len(block.tokens)]
        right = sum(a == b for a, b in zip(block.tokens, wanted, strict=False))
        self.score = right / len(block.tokens)
        return right == len(block.tokens)
