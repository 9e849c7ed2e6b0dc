"""A gate beside a draft with few operations: on a small model the calls of an asked gate cost more than its products.

Weights of norms, means and spreads are folded into matrices and tables, masks and rotary tables kept from step to step;
half of the general way's operations are left. What it says is what the gate itself says, which the tests hold it to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.controllers.gate import Gate
from specbench.controllers.step_gate import StepGate, block_scalars
from specbench.decoding.protocol import Block
from specbench.models.attention import GroupedQueryAttention, Rows, attend_cached, rotate, store
from specbench.models.layer import Layer
from specbench.models.linear import Linear


def beside_a_draft(gate: Gate, num_draft_tokens: int) -> StepGate | QuickGate:
    """The loaded `gate`, to be asked block by block in drafts of at most so many tokens."""
    return (QuickGate if QuickGate.fits(gate) else StepGate)(gate, num_draft_tokens)


class QuickGate:
    """For gates that see one step as a chain, each token by the state that predicted it; weights are final by now."""

    @torch.no_grad()
    def __init__(self, gate: Gate, num_draft_tokens: int) -> None:
        self.gate, self.cache = gate, gate.body.new_cache(num_draft_tokens + 1)
        self._anchor, self._eps = 0, gate.body.spec.norm_eps
        self._layers = [_QuickLayer(layer, self._eps) for layer in gate.body.layers]
        self._rows: dict[tuple[int, int], Rows] = {}
        self._fold(gate, num_draft_tokens + 1)

    @staticmethod
    def fits(gate: Gate) -> bool:
        """Whether this gate can be asked so."""
        shape = gate.shape
        seen = (shape.scope, shape.mask, shape.feature) == ("step", "causal", "pred_state")
        return seen and not gate.body.spec.qk_norm

    def _fold(self, gate: Gate, most_rows: int) -> None:
        self._join = (gate.join.weight * gate.join_norms.flatten()).t().contiguous()
        place = self._join.new_zeros(most_rows, self._join.shape[1])  # what a row's place adds
        if gate.index is not None:
            place += gate.index.weight[torch.arange(most_rows, device=place.device).clamp_max(gate.shape.max_index)]
        bias = gate.out.bias + gate.offset
        if gate.scalars is not None and gate.direct is not None:
            self._scalars = (gate.scalars.weight / gate.scalar_spread).t().contiguous()
            self._direct = gate.direct.weight[0] / gate.scalar_spread / gate.temperature
            place[1:] -= gate.scalar_mean @ self._scalars
            bias = bias - gate.direct.weight @ (gate.scalar_mean / gate.scalar_spread)
        self._place = place
        self._out = gate.out.weight[0] * gate.body.norm / gate.temperature
        self._bias = bias / gate.temperature

    def begin(self, most_tokens: int) -> None:
        """A new prompt."""

    def restart(self, committed: Sequence[int]) -> None:
        """A step begins behind the `committed` tokens."""
        self._anchor = committed[-1]
        self.cache.truncate(0)

    @torch.inference_mode()
    def chances(self, block: Block) -> list[float]:
        """The chance of each drafted token of the block; blocks come in order, each once a step."""
        start, drafted = self.cache.length, len(block.tokens)
        hidden = self._joined(block, start)
        numbers = block_scalars(block) if self.gate.shape.scalars else None
        if numbers is not None:
            hidden[-drafted:].addmm_(numbers, self._scalars)
        rows = self._rows_of(hidden, start)
        for layer, buffers in zip(self._layers, self.cache.layers, strict=True):
            hidden = layer(hidden, buffers, rows)
        self.cache.keep(range(len(hidden)))
        logits = torch.mv(_unit(hidden[-drafted:], self._eps), self._out) + self._bias
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
        return torch.addmm(self._place[start : start + len(tokens)], _unit(pair, self._eps).flatten(1), self._join)

    def _rows_of(self, hidden: Tensor, start: int) -> Rows:
        key = (start, len(hidden))
        if key not in self._rows:
            self._rows[key] = self.gate.body.chain_rows(hidden[None], start)
        return self._rows[key]


class _QuickLayer:
    """One decoder layer, the weights of its norms folded into the products behind them."""

    def __init__(self, layer: Layer, eps: float) -> None:
        attention, self.eps = layer.attention, eps
        assert isinstance(attention, GroupedQueryAttention)
        self.sizes, self.width = (attention.heads, attention.kv_heads), attention.width
        self.qkv, self.out = _Product(attention.qkv, layer.norms[0]), _Product(attention.out)
        self.gate_up, self.down = _Product(layer.mlp.gate_up, layer.norms[1]), _Product(layer.mlp.down)

    def __call__(self, x: Tensor, buffers: dict[str, Tensor], rows: Rows) -> Tensor:
        """Rows [T, w] behind those in the cache."""
        heads, kv_heads = self.sizes
        parts = self.qkv(_unit(x, self.eps)).view(len(x), -1, self.width)
        qk, v = parts.split([heads + kv_heads, kv_heads], dim=1)
        q, k = rotate(qk, rows.cos, rows.sin).split([heads, kv_heads], dim=1)
        keys, values = (store(buffers[name], new.transpose(0, 1), rows) for name, new in (("k", k), ("v", v)))
        x = x + self.out(attend_cached(q, keys, values, rows).flatten(1))
        gate, up = self.gate_up(_unit(x, self.eps)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class _Product:
    """x W^T + b in float32, with the weight of a norm before it folded in."""

    def __init__(self, linear: Linear, norm: Tensor | None = None) -> None:
        weight = linear.dense().float()
        self.weight = (weight if norm is None else weight * norm.float()).t().contiguous()
        self.bias = None if linear.bias is None else linear.bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)


def _unit(x: Tensor, eps: float) -> Tensor:
    """Rows of root mean square one."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.rsqrt(length * length / x.shape[-1] + eps)
