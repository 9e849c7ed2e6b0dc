"""A gate beside a draft with as little work as it takes: what is asked after every block must cost next to nothing.

On a CPU the layer's products are small, and calling torch's operations takes longer than what they do. Here the layer
is written out in NumPy, whose calls are lighter; norms, means and spreads that do not change are folded into matrices
and tables. What it says is what the gate itself says, which the tests hold it to.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.controllers.gate import Gate
from specbench.controllers.step_gate import StepGate, block_scalars
from specbench.decoding.protocol import Block
from specbench.models.attention import GroupedQueryAttention
from specbench.models.layer import Layer
from specbench.models.linear import Linear

Array = NDArray[Any]  # float32 throughout


def beside_a_draft(gate: Gate, num_draft_tokens: int) -> StepGate | QuickGate:
    """The loaded `gate`, to be asked block by block in drafts of at most so many tokens."""
    return (QuickGate if QuickGate.fits(gate) else StepGate)(gate, num_draft_tokens)


class QuickGate:
    """For gates on a CPU that see one step as a chain, each token by the state that predicted it; weights are final."""

    def __init__(self, gate: Gate, num_draft_tokens: int) -> None:
        self.gate, self.rows = gate, num_draft_tokens + 1
        self._anchor, self._length = 0, 0
        self._eps = gate.body.spec.norm_eps
        self._layers = [_QuickLayer(layer, self.rows, self._eps) for layer in gate.body.layers]
        cos, sin = (table[:, 0].numpy() for table in gate.body.first_rotary(self.rows, torch.float32))
        self._rotary = (cos, sin)
        self._fold(gate)

    @staticmethod
    def fits(gate: Gate) -> bool:
        """Whether this gate can be asked so."""
        shape = gate.shape
        seen = (shape.scope, shape.mask, shape.feature) == ("step", "causal", "pred_state")
        return seen and gate.body.device.type == "cpu" and not gate.body.spec.qk_norm

    def _fold(self, gate: Gate) -> None:
        # What a row's place adds, and the scalars' mean with it: the anchor, row 0, has none.
        self._join = _array(gate.join.weight * gate.join_norms.flatten()).T
        place = np.zeros((self.rows, self._join.shape[1]), dtype=np.float32)
        if gate.index is not None:
            place += _array(gate.index.weight)[np.minimum(np.arange(self.rows), gate.shape.max_index)]
        temperature = float(gate.temperature)
        bias = float(gate.out.bias + gate.offset)
        if gate.scalars is not None and gate.direct is not None:
            mean, spread = _array(gate.scalar_mean), _array(gate.scalar_spread)
            self._scalars = _array(gate.scalars.weight).T / spread[:, None]
            place[1:] -= mean @ self._scalars
            direct = _array(gate.direct.weight)[0] / spread
            bias -= float(direct @ mean)
            self._direct = direct / temperature
        self._place = place
        self._out = _array(gate.out.weight)[0] * _array(gate.body.norm) / temperature
        self._bias = bias / temperature

    def begin(self, most_tokens: int) -> None:
        """A new prompt."""

    def restart(self, committed: Sequence[int]) -> None:
        """A step begins behind the `committed` tokens."""
        self._anchor, self._length = committed[-1], 0

    @torch.inference_mode()
    def chances(self, block: Block) -> list[float]:
        """The chance of each drafted token of the block; blocks come in order, each once a step."""
        first, count = self._length, len(block.tokens)
        anchor = int(first == 0)
        hidden = self._joined(block, anchor) + self._place[first : first + anchor + count]
        numbers = _scalars_of(block) if self.gate.shape.scalars else None
        if numbers is not None:
            hidden[anchor:] += numbers @ self._scalars
        self._length = first + len(hidden)
        cos, sin = (table[first : self._length] for table in self._rotary)
        for layer in self._layers:
            hidden = layer(hidden, first, cos, sin)
        logits = _unit(hidden[anchor:], self._eps) @ self._out + self._bias
        if numbers is not None:
            logits += numbers @ self._direct
        found: list[float] = (1.0 / (1.0 + np.exp(-logits))).tolist()
        return found

    def _joined(self, block: Block, anchor: int) -> Array:
        """States and embeddings of the new rows [T, w]; the anchor's state is not shown."""
        assert block.hidden is not None
        tokens = torch.tensor([self._anchor, *block.tokens] if anchor else block.tokens)
        pair = np.zeros((len(tokens), 2, block.hidden.shape[1]), dtype=np.float32)
        pair[anchor:, 0] = block.hidden.float().numpy()
        pair[:, 1] = self.gate.body.embedding[tokens].float().numpy()
        return _unit(pair, self._eps).reshape(len(tokens), -1) @ self._join


class _QuickLayer:
    """One decoder layer; its norms are folded into the products behind them."""

    def __init__(self, layer: Layer, rows: int, eps: float) -> None:
        attention, mlp, self.eps = layer.attention, layer.mlp, eps
        assert isinstance(attention, GroupedQueryAttention)
        self.heads, self.kv_heads, self.width = attention.heads, attention.kv_heads, attention.width
        self.qkv, self.out = _Product(attention.qkv, layer.norms[0]), _Product(attention.out)
        self.gate_up, self.down = _Product(mlp.gate_up, layer.norms[1]), _Product(mlp.down)
        self.keys, self.values = (np.zeros((self.kv_heads, rows, self.width), dtype=np.float32) for _ in range(2))

    def __call__(self, x: Array, first: int, cos: Array, sin: Array) -> Array:
        """Rows [T, w] that follow `first` earlier ones of the step."""
        x = x + self.out(self._attend(self.qkv(_unit(x, self.eps)), first, cos, sin))
        fused = self.gate_up(_unit(x, self.eps))
        gate, up = fused[:, : fused.shape[1] // 2], fused[:, fused.shape[1] // 2 :]
        return x + self.down(gate / (1.0 + np.exp(-gate)) * up)

    def _attend(self, fused: Array, first: int, cos: Array, sin: Array) -> Array:
        count, last = len(fused), first + len(fused)
        parts = fused.reshape(count, -1, self.width).swapaxes(0, 1)  # [H + 2 KV, T, D]
        turned = _rotated(parts[: -self.kv_heads], cos, sin)
        self.keys[:, first:last], self.values[:, first:last] = turned[self.heads :], parts[-self.kv_heads :]
        q = turned[: self.heads].reshape(self.kv_heads, -1, count, self.width)  # [KV, G, T, D]
        keys, values = self.keys[:, None, :last], self.values[:, None, :last]
        scores = q @ keys.swapaxes(2, 3) * self.width**-0.5  # [KV, G, T, S]
        if count > 1:
            scores += _causal(first, count)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights @ values / weights.sum(-1, keepdims=True)
        return np.asarray(mixed.reshape(self.heads, count, self.width).swapaxes(0, 1).reshape(count, -1))


class _Product:
    """x W^T + b, with the weight of a norm before it folded in."""

    def __init__(self, linear: Linear, norm: Tensor | None = None) -> None:
        weight = linear.dense().float()
        self.weight = _array(weight if norm is None else weight * norm.float()).T
        self.bias = 0.0 if linear.bias is None else _array(linear.bias)

    def __call__(self, x: Array) -> Array:
        return np.asarray(x @ self.weight + self.bias)


@functools.lru_cache(maxsize=128)  # steps repeat
def _causal(first: int, count: int) -> Array:
    """Additive [count, first + count]: no row sees a later one."""
    return np.triu(np.full((count, first + count), -np.inf, dtype=np.float32), first + 1)


def _array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().float().numpy()
    return found


def _unit(x: Array, eps: float) -> Array:
    """Rows of root mean square one."""
    mean = np.add.reduce(x * x, axis=-1, keepdims=True) / x.shape[-1]
    return np.asarray(x / np.sqrt(mean + eps))


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    return np.asarray(x * cos + np.concatenate([x[..., half:], x[..., :half]], axis=-1) * sin)


def _scalars_of(block: Block) -> Array:
    """log q, entropy and margin [b, 3] of a block."""
    return block_scalars(block).numpy()
