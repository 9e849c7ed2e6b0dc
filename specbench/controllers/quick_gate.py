"""A gate beside a draft with as few operations as it takes: what is asked after every block must cost next to nothing.

Norms, means and spreads that do not change are folded into matrices and tables; masks and rotary tables are kept from
step to step. What it says is what the gate itself says, which the tests hold it to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.controllers.gate import Gate, GateShape
from specbench.controllers.step_gate import StepGate, block_scalars
from specbench.decoding.protocol import Block
from specbench.models.attention import Rows
from specbench.models.linear import Linear


def beside_a_draft(gate: Gate, num_draft_tokens: int) -> StepGate | QuickGate:
    """The loaded `gate`, to be asked block by block in drafts of at most so many tokens."""
    return (QuickGate if QuickGate.fits(gate.shape) else StepGate)(gate, num_draft_tokens)


class QuickGate:
    """For gates that see one step as a chain, each token by the state that predicted it; weights are final by now."""

    def __init__(self, gate: Gate, num_draft_tokens: int) -> None:
        self.gate = gate
        self.cache = gate.body.new_cache(num_draft_tokens + 1)
        self._anchor = 0
        self._known_rows: dict[tuple[int, int], Rows] = {}
        self._fold(gate, num_draft_tokens + 1)

    @staticmethod
    def fits(shape: GateShape) -> bool:
        """Whether gates of this shape can be asked so."""
        return (shape.scope, shape.mask, shape.feature) == ("step", "causal", "pred_state")

    @torch.no_grad()
    def _fold(self, gate: Gate, most_rows: int) -> None:
        self._join = Linear(gate.join.weight * gate.join_norms.flatten())
        if gate.body.linear_path == "packed":
            self._join.prepare("packed")
        place = gate.join.weight.new_zeros(most_rows, gate.join.weight.shape[0])  # what a row's place adds
        if gate.index is not None:
            place += gate.index.weight[torch.arange(most_rows, device=place.device).clamp_max(gate.shape.max_index)]
        bias = gate.out.bias + gate.offset
        if gate.scalars is not None and gate.direct is not None:
            self._scalars = (gate.scalars.weight / gate.scalar_spread).t().contiguous()
            self._direct = gate.direct.weight[0] / gate.scalar_spread / gate.temperature
            place[1:] -= gate.scalar_mean @ self._scalars
            bias = bias - gate.direct.weight @ (gate.scalar_mean / gate.scalar_spread)
        self._place = place
        self._out, self._bias = gate.out.weight[0] / gate.temperature, bias / gate.temperature

    def begin(self, most_tokens: int) -> None:
        """A new prompt."""

    def restart(self, committed: Sequence[int]) -> None:
        """A step begins behind the `committed` tokens."""
        self._anchor = committed[-1]
        self.cache.truncate(0)

    @torch.inference_mode()
    def chances(self, block: Block) -> list[float]:
        """The chance of each drafted token of the block; blocks come in order, each once a step."""
        drafted, start = len(block.tokens), self.cache.length
        numbers = block_scalars(block) if self.gate.shape.scalars else None
        u = self._joined(block, start)
        if numbers is not None:
            u[-drafted:].addmm_(numbers, self._scalars)
        hidden = self.gate.body.chain(u[None], self.cache, self._rows(u[None], start))[0, -drafted:]
        logits = torch.mv(self.gate.body.final_norm(hidden), self._out) + self._bias
        if numbers is not None:
            logits = logits.addmv_(numbers, self._direct)
        found: list[float] = torch.sigmoid(logits).tolist()
        return found

    def _joined(self, block: Block, start: int) -> Tensor:
        """States and embeddings of the new rows, the anchor's among them in a step's first block: [T, w]."""
        assert block.hidden is not None
        tokens, states = list(block.tokens), block.hidden
        if start == 0:  # the anchor's state is not shown
            tokens, states = [self._anchor, *tokens], F.pad(states, (0, 0, 1, 0))
        embedded = F.embedding(torch.tensor(tokens, device=states.device), self.gate.body.embedding)
        pair = torch.stack([states.float(), embedded.float()], dim=1)  # [T, 2, d]
        pair = F.rms_norm(pair, pair.shape[-1:], eps=self.gate.body.spec.norm_eps)
        return self._join(pair.flatten(1)) + self._place[start : start + len(tokens)]

    def _rows(self, hidden: Tensor, start: int) -> Rows:
        key = (start, hidden.shape[1])
        if key not in self._known_rows:
            self._known_rows[key] = self.gate.body.chain_rows(hidden, start)
        return self._known_rows[key]
