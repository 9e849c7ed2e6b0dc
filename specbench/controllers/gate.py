"""A small decoder layer over what the draft saw: for every drafted token the chance that it is accepted.

PACER-style; the paper's own layer is not known to us (docs/methods/pacer.md). A step is a row for the anchor (the last
committed token, index 0) and one for each drafted token. The draft's embedding is shared and never stored.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.controllers.heads import AcceptanceHead
from specbench.models.attention import rms_norm
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache
from specbench.models.latent import LatentAttention
from specbench.models.layer import Layer
from specbench.models.linear import Linear, choose_path
from specbench.models.spec import ModelSpec
from specbench.types import ModelError

FEATURES = ("pred_state", "own_state", "both")
SCOPES = ("step", "context")
MASKS = ("causal", "block_causal")
NUM_SCALARS = 3  # log q, entropy, margin


@dataclass(frozen=True)
class GateShape:
    """What the layer sees and how.

    `feature`: the state that predicted a token, the one that has read it, or both. `scalars`: log q, entropy, margin.
    `scope` step: a row sees the anchor and the drafted tokens before it; context: all committed tokens as well.
    `mask` block_causal: tokens of a block of `mask_block` see each other. `step_pos`: a learned embedding of the place
    in the draft, up to `max_index`. `width_divisor`: the layer has so many times fewer heads than the draft's, and is
    as much narrower; 1 is the draft's own shape.
    """

    feature: str = "pred_state"
    scalars: bool = True
    mask: str = "causal"
    num_layers: int = 1
    step_pos: bool = True
    mask_block: int = 3
    max_index: int = 32
    scope: str = "step"
    width_divisor: int = 1

    def layer_spec(self, spec: ModelSpec) -> ModelSpec:
        """The draft's `spec` with this many layers, as narrow as asked for in whole heads, and no latent attention."""
        own = replace(spec, num_layers=self.num_layers, tied_embeddings=True, mla=None)
        if self.width_divisor == 1:
            return own
        heads = max(1, spec.num_heads // self.width_divisor)
        width = heads * spec.head_dim
        return replace(
            own,
            hidden_size=width,
            num_heads=heads,
            num_kv_heads=math.gcd(heads, spec.num_kv_heads),
            intermediate_size=-(-spec.intermediate_size * width // spec.hidden_size),
        )

    @property
    def lag(self) -> int:
        """Drafted tokens at the end of a block that cannot be judged yet: the newest one's own state is not known."""
        return int(self.feature != "pred_state")

    def same_block(self, index: Tensor) -> Tensor:
        """Which rows of one step are in one block [T, T], by their places [T]; committed rows are in none."""
        block = (index + self.mask_block - 1) // self.mask_block
        return (block[:, None] == block[None, :]) & (index > 0)


@dataclass(frozen=True)
class GateRows:
    """T rows of B steps.

    `token` [B, T] ids, `before` [B, T, d] the state that predicted each (zero for an anchor whose is not shown, and for
    a text's first token), `after` [B, T, d] the state that has read it (None where no feature needs it), `scalars`
    [B, T, 3] (zero where nothing was drafted), `index` [T] place in the draft, 0 = committed. `position` [T] and
    `visible` [T, T]: where rows stand and who sees whom, where they are not one chain.
    """

    token: Tensor
    before: Tensor
    after: Tensor | None
    scalars: Tensor
    index: Tensor
    position: Tensor | None = None
    visible: Tensor | None = None


class Gate(AcceptanceHead):
    """u = W [norm(h); norm(e)] + W_s s + P[index]; decoder layer(s) of the draft's shape; one logit + w s. In float32.

    With scope `step` rotary positions count from the anchor: with keys of one step only, that gives the same scores as
    absolute ones. Committed rows have neither scalars nor a place, so that they say the same in every step.
    """

    scalar_mean: Tensor
    scalar_spread: Tensor

    def __init__(self, spec: ModelSpec, embedding: Tensor, shape: GateShape) -> None:
        super().__init__()
        self.shape, own, given = shape, shape.layer_spec(spec), spec.hidden_size
        width = own.hidden_size
        self.num_states = 2 if shape.feature == "both" else 1
        self.body = Decoder(own, dtype=torch.float32, device=embedding.device, embedding=embedding)
        self.join = nn.Linear((self.num_states + 1) * given, width, bias=False)
        self._packed_join: Linear | None = None  # the same product in half precision, once the gate is loaded
        self.join_norms = nn.Parameter(torch.ones(self.num_states + 1, given))
        self.scalars = nn.Linear(NUM_SCALARS, width, bias=False) if shape.scalars else None
        self.direct = nn.Linear(NUM_SCALARS, 1, bias=False) if shape.scalars else None
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
        """Copies of everything that is stored, matrices in half precision: that is how they are used on a CPU."""
        held = {**self.state_dict(), **{f"body.{name}": slot for name, slot in self.slots().items()}}
        return {name: tensor.detach().cpu().to(_stored_dtype(tensor), copy=True) for name, tensor in held.items()}

    def trained(self) -> list[Tensor]:
        """The tensors that training moves; norms of queries and keys, which all heads share, stay the draft's."""
        linears = [part for linear in self.body.linears()[:-1] for part in (linear.weight, linear.bias)]
        norms = [norm for layer in self.body.layers for norm in layer.norms]
        return [*self.parameters(), *(part for part in linears if part is not None), *norms, self.body.norm]

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> Gate:
        """Take stored tensors; ready for inference then, the layer in half precision where that is faster."""
        self.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith("body.")})
        for name, slot in self.slots().items():
            slot.copy_(tensors[f"body.{name}"])
        self.body.finish(choose_path(torch.float16, self.body.device))
        if self.body.linear_path == "packed":
            self._packed_join = Linear(self.join.weight.detach())
            self._packed_join.prepare("packed")
        self.requires_grad_(False).eval()
        return self

    @torch.no_grad()
    def start_from(self, draft: Decoder, base_rate: float) -> Gate:
        """The draft's last layers over the states alone, and the base rate as the answer to everything.

        Narrower layers start at random instead.
        """
        if self.shape.width_divisor == 1:
            for own, theirs in zip(self.body.layers, draft.layers[-self.shape.num_layers :], strict=True):
                _copy_layer(own, theirs)
            self.body.norm.copy_(draft.norm)
            nn.init.zeros_(self.join.weight)
            self.join.weight[:, : draft.spec.hidden_size] = torch.eye(draft.spec.hidden_size)
        else:
            self._start_at_random()
        for part in (self.scalars, self.direct, self.index, self.out):
            if part is not None:
                nn.init.zeros_(part.weight)
        self.out.bias.fill_(torch.logit(torch.tensor(base_rate), eps=1e-3))
        return self

    def _start_at_random(self) -> None:
        """Matrices that keep a row's size, norms of one; `join` has the library's start."""
        for linear in self.body.linears()[:-1]:
            assert linear.weight is not None
            nn.init.normal_(linear.weight, std=linear.weight.shape[1] ** -0.5)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        for norm in [self.body.norm, *(norm for layer in self.body.layers for norm in layer.norms)]:
            nn.init.ones_(norm)

    @torch.no_grad()
    def standardise(self, scalars: Tensor) -> None:
        """Take mean and spread from scalars [n, 3]."""
        self.scalar_mean.copy_(scalars.mean(0))
        self.scalar_spread.copy_(scalars.std(0).clamp_min(1e-6))

    # ---- passes

    def forward(self, rows: GateRows, cache: KVCache | None = None) -> Tensor:
        """Logits [B, T]; with a cache (B = 1) the rows follow those that it holds and are kept in it."""
        start = 0 if cache is None else cache.length
        seen = self.visible(rows.index) if rows.visible is None else rows.visible
        scalars = self.standard(rows.scalars) * (rows.index > 0)[:, None]  # a committed row has none
        hidden = self.body.forward(
            self._inputs(rows, scalars), cache, start=start, positions=rows.position, mask=seen, logits="none"
        ).hidden
        if cache is not None:
            cache.keep(range(rows.token.shape[1]))
        logits: Tensor = self.out(self.body.final_norm(hidden))
        if self.direct is not None:
            logits = logits + self.direct(scalars)
        return logits[..., 0]

    def chances(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities of logits."""
        return torch.sigmoid((logits + self.offset) / self.temperature)

    def _inputs(self, rows: GateRows, scalars: Tensor) -> Tensor:
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
        u: Tensor = (self._packed_join or self.join)(torch.cat(parts, dim=-1))
        if self.scalars is not None:
            u = u + self.scalars(scalars)
        if self.index is not None:
            u = u + self.index(rows.index.clamp_max(self.shape.max_index))
        return u

    def standard(self, scalars: Tensor) -> Tensor:
        """Scalars [..., 3] less their mean over their spread."""
        return (scalars.float() - self.scalar_mean) / self.scalar_spread

    def visible(self, index: Tensor) -> Tensor | None:
        """Who sees whom among new rows of one chain [T, T]; None = causal."""
        if self.shape.mask == "causal":
            return None
        before = torch.ones(len(index), len(index), dtype=torch.bool, device=index.device).tril()
        return before | self.shape.same_block(index)

    def values(self) -> dict[str, Any]:
        return asdict(self.shape)


def _stored_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float16 if tensor.dim() > 1 else tensor.dtype


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
