"""A small decoder layer over what the draft saw: for every drafted token the chance that it is accepted.

PACER-style; the paper's own layer is not known to us (docs/methods/pacer.md). A step is a row for the anchor (the last
committed token, index 0) and one for each drafted token. The draft's embedding is shared and never stored.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.controllers.heads import AcceptanceHead, log_probability
from specbench.decoding.protocol import Block
from specbench.models.attention import rms_norm
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache
from specbench.models.latent import LatentAttention
from specbench.models.layer import Layer
from specbench.models.spec import ModelSpec
from specbench.types import ModelError

FEATURES = ("pred_state", "own_state", "both")
MASKS = ("causal", "block_causal")
NUM_SCALARS = 3  # log q, entropy, margin


@dataclass(frozen=True)
class GateShape:
    """What the layer sees and how.

    `feature`: the state that predicted a token, the one that has read it, or both. `scalars`: log q, entropy, margin.
    `mask` block_causal: tokens of a block of `mask_block` see each other. `step_pos`: a learned embedding of the place
    in the draft, up to `max_index`.
    """

    feature: str = "pred_state"
    scalars: bool = True
    mask: str = "causal"
    num_layers: int = 1
    step_pos: bool = True
    mask_block: int = 3
    max_index: int = 32

    @property
    def lag(self) -> int:
        """Drafted tokens at the end of a block that cannot be judged yet: the newest one's own state is not known."""
        return int(self.feature != "pred_state")


@dataclass(frozen=True)
class GateRows:
    """T rows of B steps.

    `token` [B, T] ids, `before` [B, T, d] the state that predicted each (zero for the anchor, whose is not shown),
    `after` [B, T, d] the state that has read it (None where no feature needs it), `scalars` [B, T, 3] (zero for the
    anchor), `index` [T] place in the draft, 0 = the anchor.
    """

    token: Tensor
    before: Tensor
    after: Tensor | None
    scalars: Tensor
    index: Tensor


class Gate(AcceptanceHead):
    """u = W [norm(h); norm(e)] + W_s s + P[index]; decoder layer(s) of the draft's shape; one logit. In float32.

    Attention stays within the step. Rotary positions count from the anchor: with keys of one step only, that gives the
    same scores as absolute ones.
    """

    scalar_mean: Tensor
    scalar_spread: Tensor

    def __init__(self, spec: ModelSpec, embedding: Tensor, shape: GateShape) -> None:
        super().__init__()
        self.shape, width = shape, spec.hidden_size
        self.num_states = 2 if shape.feature == "both" else 1
        own = replace(spec, num_layers=shape.num_layers, tied_embeddings=True, mla=None)
        self.body = Decoder(own, dtype=torch.float32, device=embedding.device, embedding=embedding)
        self.join = nn.Linear((self.num_states + 1) * width, width, bias=False)
        self.join_norms = nn.Parameter(torch.ones(self.num_states + 1, width))
        self.scalars = nn.Linear(NUM_SCALARS, width, bias=False) if shape.scalars else None
        self.index = nn.Embedding(shape.max_index + 1, width) if shape.step_pos else None
        self.out = nn.Linear(width, 1)
        self.register_buffer("scalar_mean", torch.zeros(NUM_SCALARS))
        self.register_buffer("scalar_spread", torch.ones(NUM_SCALARS))
        self.to(embedding.device)

    # ---- weights

    def slots(self) -> dict[str, Tensor]:
        """What the decoder layers hold, by library name; the shared embedding is not among it."""
        return {name: slot for name, slot in self.body.slots().items() if "embed_tokens" not in name}

    def tensors(self) -> dict[str, Tensor]:
        """Copies of everything that is stored."""
        held = {**self.state_dict(), **{f"body.{name}": slot for name, slot in self.slots().items()}}
        return {name: tensor.detach().cpu().clone() for name, tensor in held.items()}

    def trained(self) -> list[Tensor]:
        """The tensors that training moves; norms of queries and keys, which all heads share, stay the draft's."""
        linears = [part for linear in self.body.linears()[:-1] for part in (linear.weight, linear.bias)]
        norms = [norm for layer in self.body.layers for norm in layer.norms]
        return [*self.parameters(), *(part for part in linears if part is not None), *norms, self.body.norm]

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> Gate:
        """Take stored tensors; the gate is then ready for inference."""
        self.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith("body.")})
        for name, slot in self.slots().items():
            slot.copy_(tensors[f"body.{name}"])
        self.body.finish("library")
        self.requires_grad_(False).eval()
        return self

    @torch.no_grad()
    def start_from(self, draft: Decoder, base_rate: float) -> Gate:
        """The draft's last layers over the states alone, and the base rate as the answer to everything."""
        for own, theirs in zip(self.body.layers, draft.layers[-self.shape.num_layers :], strict=True):
            _copy_layer(own, theirs)
        self.body.norm.copy_(draft.norm)
        nn.init.zeros_(self.join.weight)
        width = self.body.spec.hidden_size
        self.join.weight[:, :width] = torch.eye(width)
        for part in (self.scalars, self.index, self.out):
            if part is not None:
                nn.init.zeros_(part.weight)
        self.out.bias.fill_(torch.logit(torch.tensor(base_rate), eps=1e-3))
        return self

    @torch.no_grad()
    def standardise(self, scalars: Tensor) -> None:
        """Take mean and spread from scalars [n, 3]."""
        self.scalar_mean.copy_(scalars.mean(0))
        self.scalar_spread.copy_(scalars.std(0).clamp_min(1e-6))

    # ---- passes

    def forward(self, rows: GateRows, cache: KVCache | None = None) -> Tensor:
        """Logits [B, T]; with a cache (B = 1) the rows follow those that it holds and are kept in it."""
        start = 0 if cache is None else cache.length
        hidden = self.body.forward(
            self._inputs(rows), cache, start=start, mask=self._visible(rows.index), logits="none"
        ).hidden
        if cache is not None:
            cache.keep(range(rows.token.shape[1]))
        logits: Tensor = self.out(self.body.final_norm(hidden))
        return logits[..., 0]

    def chances(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities of logits."""
        return torch.sigmoid((logits + self.offset) / self.temperature)

    def _inputs(self, rows: GateRows) -> Tensor:
        states: dict[str, list[Tensor | None]] = {
            "pred_state": [rows.before],
            "own_state": [rows.after],
            "both": [rows.before, rows.after],
        }
        embedded = nn.functional.embedding(rows.token, self.body.embedding)
        eps, parts = self.body.spec.norm_eps, []
        for part, norm in zip([*states[self.shape.feature], embedded], self.join_norms, strict=True):
            assert part is not None, "this feature needs the states that have read the tokens"
            parts.append(rms_norm(part.float(), norm, eps))
        u: Tensor = self.join(torch.cat(parts, dim=-1))
        if self.scalars is not None:
            u = u + self.scalars(self._standard(rows))
        if self.index is not None:
            u = u + self.index(rows.index.clamp_max(self.shape.max_index))
        return u

    def _standard(self, rows: GateRows) -> Tensor:
        scaled = (rows.scalars.float() - self.scalar_mean) / self.scalar_spread
        return scaled * (rows.index > 0)[:, None]  # the anchor has none

    def _visible(self, index: Tensor) -> Tensor | None:
        """Who sees whom among new rows [T, T]; None = causal."""
        if self.shape.mask == "causal":
            return None
        block = (index + self.shape.mask_block - 1) // self.shape.mask_block
        return block[:, None] >= block[None, :]

    def values(self) -> dict[str, Any]:
        return asdict(self.shape)


class StepGate:
    """A gate beside a draft, block by block; its cache is one step's and starts anew with every step."""

    def __init__(self, gate: Gate, num_draft_tokens: int) -> None:
        self.gate = gate
        self.cache = gate.body.new_cache(num_draft_tokens + 1)
        self._last: tuple[int, Tensor, Tensor] | None = None  # token, state that predicted it, scalars

    def restart(self, anchor: int) -> None:
        """A step begins behind the committed token `anchor`."""
        device, width = self.gate.body.device, self.gate.body.spec.hidden_size
        self.cache.truncate(0)
        self._last = anchor, torch.zeros(1, width, device=device), torch.zeros(1, NUM_SCALARS, device=device)

    @torch.inference_mode()
    def chances(self, block: Block) -> list[float]:
        """The chance of each drafted token that can be judged now and was not before."""
        rows = self._rows(block)
        logits = self.gate(rows, self.cache)[0]
        found: list[float] = self.gate.chances(logits[rows.index > 0]).tolist()
        return found

    def _rows(self, block: Block) -> GateRows:
        assert self._last is not None, "restart comes first"
        assert block.hidden is not None
        token, state, scalars = self._last
        device = self.gate.body.device
        tokens = torch.tensor([token, *block.tokens], device=device)
        before = torch.cat([state, block.hidden.float().to(device)])
        numbers = torch.cat([scalars, block_scalars(block).to(device)]) if self.gate.shape.scalars else None
        self._last = int(block.tokens[-1]), before[-1:], scalars if numbers is None else numbers[-1:]
        index = torch.arange(block.first, block.first + len(tokens), device=device)
        if numbers is None:
            numbers = torch.zeros(len(tokens), NUM_SCALARS, device=device)
        if self.gate.shape.lag:
            return GateRows(tokens[None, :-1], before[None, :-1], before[None, 1:], numbers[None, :-1], index[:-1])
        new = slice(int(block.first > 0), None)  # the anchor comes with the first block
        return GateRows(tokens[None, new], before[None, new], None, numbers[None, new], index[new])


def block_scalars(block: Block) -> Tensor:
    """log q, entropy and margin [b, 3] of a block."""
    assert block.prob is not None
    assert block.entropy is not None
    assert block.margin is not None
    return torch.stack([log_probability(block.prob), block.entropy.float(), block.margin.float()], dim=-1)


def _copy_layer(own: Layer, theirs: Layer) -> None:
    if isinstance(own.attention, LatentAttention) or isinstance(theirs.attention, LatentAttention):
        raise ModelError("a gate starts as a copy of the draft's layers; those with latent attention are not supported")
    for mine, other in zip(own.linears(), theirs.linears(), strict=True):
        assert mine.weight is not None
        mine.weight.copy_(other.dense())
        if mine.bias is not None and other.bias is not None:
            mine.bias.copy_(other.bias)
    for norm, other_norm in zip(own.norms, theirs.norms, strict=True):
        norm.copy_(other_norm)
    if own.attention.qk_norm is not None and theirs.attention.qk_norm is not None:
        own.attention.qk_norm.copy_(theirs.attention.qk_norm)
