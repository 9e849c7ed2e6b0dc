"""Fitting the gate of `specbench.controllers.gate` to collected steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.controllers.gate import NUM_SCALARS, Gate, GateRows, GateShape
from specbench.controllers.heads import log_probability
from specbench.models.artefact import Artefact, Key
from specbench.models.decoder import Decoder
from specbench.training.calibration import constant_brier, fitted_temperature, scores
from specbench.training.heads import FitOptions, held_out_prompts
from specbench.training.labels import labels, weighted_loss
from specbench.training.rollouts import Rollouts
from specbench.types import ConfigError, ModelError

GATE_OPTIONS = FitOptions(label="survive", lr=1e-3, batch_tokens=512, epochs=4)
_REGRESSION_STEPS = 50


@dataclass(frozen=True)
class Batch:
    """Rows of B steps of one length and, of their T rows, label [B, T] and which have one [B, T]."""

    rows: GateRows
    label: Tensor
    defined: Tensor


@dataclass(frozen=True)
class Steps:
    """Collected steps as the gate reads them; `label` [n] and `defined` [n] of every drafted token."""

    data: Rollouts
    label: Tensor
    defined: Tensor
    shape: GateShape

    def places(self, steps: Sequence[int], batch_tokens: int) -> Iterator[Tensor]:
        """Drafted tokens [B, k] of the steps (numbers), in batches of one length each, so that nothing is padded.

        With scope `context` those of one prompt's steps after another [1, n]: they share what they look back on.
        """
        if self.shape.scope == "context":
            yield from self._of_prompts(steps)
            return
        first = torch.searchsorted(self.data.step, torch.tensor(list(steps)))
        count = torch.searchsorted(self.data.step, torch.tensor(list(steps)), right=True) - first
        for length in count.unique().tolist():
            if length > self.shape.lag:
                for rows in first[count == length].split(max(1, batch_tokens // length)):
                    yield rows[:, None] + torch.arange(length)

    def _of_prompts(self, steps: Sequence[int]) -> Iterator[Tensor]:
        chosen = torch.isin(self.data.step, torch.tensor(list(steps)))
        prompts = self.data.step_prompt[list(steps)].unique()
        for prompt in prompts.tolist():
            yield (chosen & (self.data.prompt == prompt)).nonzero()[:, 0][None]

    def batch(self, place: Tensor) -> Batch:
        """What the gate sees of steps with drafted tokens `place` [B, k], and should say."""
        if self.shape.scope == "context":
            return self._tree(place[0])
        states, batch = self.data.hidden[place].float(), place.shape[0]
        root = self.data.step_root[self.data.step[place[:, 0]]]
        tokens = torch.cat([root[:, None], self.data.token[place]], dim=1)
        before = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
        numbers = torch.cat([torch.zeros(batch, 1, 3), rollout_scalars(self.data)[place]], dim=1)
        rows = tokens.shape[1] - self.shape.lag  # a draft's last token has no state of its own
        after = before[:, 1:] if self.shape.lag else None
        index = torch.arange(rows)
        seen = GateRows(tokens[:, :rows], before[:, :rows], after, numbers[:, :rows], index)
        anchor = torch.zeros(batch, 1)
        label = torch.cat([anchor, self.label[place]], dim=1)[:, :rows]
        defined = torch.cat([anchor.bool(), self.defined[place]], dim=1)[:, :rows]
        return Batch(seen, label, defined)

    def _tree(self, place: Tensor) -> Batch:
        """Drafted tokens [n] of one prompt's steps as branches of its committed tokens."""
        data, step = self.data, self.data.step[place]
        context = data.step_context[step]  # [n] committed tokens that each looks back on
        longest, begin = int(context.max()), int(data.step_offset[step[0]])
        own = slice(begin, begin + longest)
        before = torch.cat([data.context_before[own], data.hidden[place].to(data.context_before.dtype)]).float()
        index = torch.cat([torch.zeros(longest, dtype=torch.int64), data.index[place]])
        follows = torch.cat([step[1:] == step[:-1], torch.tensor([False])])
        seen = GateRows(
            token=torch.cat([data.context_token[own], data.token[place]])[None],
            before=before[None],
            after=self._own_states(before, longest, first=int((context == longest).nonzero()[0]))[None],
            scalars=torch.cat([torch.zeros(longest, NUM_SCALARS), rollout_scalars(data)[place]])[None],
            index=index,
            position=torch.cat([torch.arange(longest), context + data.index[place] - 1]),
            visible=self._visible(step, context, index[longest:]),
        )
        defined = self.defined[place] & follows if self.shape.lag else self.defined[place]
        nothing = torch.zeros(longest)
        return Batch(seen, torch.cat([nothing, self.label[place]])[None], torch.cat([nothing.bool(), defined])[None])

    @staticmethod
    def _own_states(before: Tensor, longest: int, *, first: int) -> Tensor:
        """The state that has read each row: that which predicted the next one; `first`: the last anchor's next row.

        A draft's last token has none; what stands there is not looked at.
        """
        after = before.roll(-1, dims=0)
        after[longest - 1] = before[longest + first]
        return after

    def _visible(self, step: Tensor, context: Tensor, index: Tensor) -> Tensor:
        """Who sees whom [T, T]: committed rows are a chain, of which a branch sees the part that it grows from."""
        longest, count = int(context.max()), len(step)
        seen = torch.zeros(longest + count, longest + count, dtype=torch.bool)
        seen[:longest, :longest] = torch.ones(longest, longest, dtype=torch.bool).tril()
        seen[longest:, :longest] = torch.arange(longest) < context[:, None]
        within = index[:, None] >= index[None, :]
        if self.shape.mask == "block_causal":
            within |= self.shape.same_block(index)
        seen[longest:, longest:] = (step[:, None] == step[None, :]) & within
        return seen


def rollout_scalars(data: Rollouts) -> Tensor:
    """log q, entropy and margin [n, 3] of every drafted token."""
    return torch.stack([log_probability(data.prob), data.entropy.float(), data.margin.float()], dim=-1)


def fit_gate(
    data: Rollouts, key: Key, draft: Decoder, shape: GateShape, options: FitOptions = GATE_OPTIONS
) -> Artefact:
    """The gate as an artefact for `key` (with feature, mask, ... added by the caller); `draft`: the model that drafts.

    Prompts are fitted to or judged by, as for the small classifiers. ModelError where either would be none;
    ConfigError for more layers than the draft has, which those of its width start from.
    """
    if shape.width_divisor == 1 and shape.num_layers > len(draft.layers):
        raise ConfigError(f"method.controller.num_layers={shape.num_layers}: the draft has {len(draft.layers)}")
    if shape.scope == "context" and not len(data.context_token):
        raise ModelError("these steps were collected without the states of committed tokens, which scope=context needs")
    torch.manual_seed(options.seed)
    kept_out = torch.isin(data.step_prompt, held_out_prompts(data.prompt, options))
    if kept_out.all() or not kept_out.any():
        count = len(data.prompt.unique())
        raise ModelError(f"{count} prompt(s) with drafted tokens are too few to fit and to judge by")
    train, held = (~kept_out).nonzero()[:, 0], kept_out.nonzero()[:, 0]
    steps = Steps(data, *labels(data, options.label), replace(shape, max_index=int(data.index.max())))
    gate = Gate(draft.spec, draft.embedding, steps.shape)
    fitted = torch.isin(data.step, train)
    gate.start_from(draft, float(steps.label[fitted & steps.defined].mean()))
    gate.standardise(rollout_scalars(data)[fitted])
    if gate.direct is not None:
        known = fitted & steps.defined
        _start_with_scalars(gate, rollout_scalars(data)[known], steps.label[known])
    _descend(gate, steps, train, options)
    found = _judge(gate, steps, held.tolist(), options)
    card = {"scores": found, "options": asdict(options), "data": dict(data.meta)}
    return Artefact("pacer", dict(key), {**gate.values(), "label": options.label}, card, gate.tensors())


def _start_with_scalars(gate: Gate, scalars: Tensor, label: Tensor) -> None:
    """The logistic regression of labels [n] on scalars [n, 3] alone, from which the layer goes on."""
    direct = gate.direct
    assert direct is not None
    x, y = gate.standard(scalars.to(gate.body.device)), label.to(gate.body.device)
    parts = [direct.weight, gate.out.bias]
    optimiser = torch.optim.LBFGS(parts, max_iter=_REGRESSION_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = nn.functional.binary_cross_entropy_with_logits(direct(x)[:, 0] + gate.out.bias, y)
        found.backward()
        return found

    optimiser.step(loss)


def _descend(gate: Gate, steps: Steps, train: Tensor, options: FitOptions) -> None:
    generator = torch.Generator().manual_seed(options.seed)
    trained = [tensor.requires_grad_() for tensor in gate.trained()]
    plan = [place for _ in range(options.epochs) for place in _mixed(steps, train, options, generator)]
    optimiser = torch.optim.AdamW(trained, lr=options.lr, betas=(0.9, 0.95), weight_decay=options.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser,
        max_lr=options.lr,
        total_steps=len(plan) + 1,
        pct_start=options.warmup,
        cycle_momentum=False,
    )
    for place in plan:
        batch = on_device(steps.batch(place), gate)
        logits = gate(batch.rows)[batch.defined]
        loss = weighted_loss(logits, batch.label[batch.defined], reject_weight=options.reject_weight)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, options.clip)
        optimiser.step()
        schedule.step()
    for tensor in trained:
        tensor.requires_grad_(False)


def _mixed(steps: Steps, train: Tensor, options: FitOptions, generator: torch.Generator) -> list[Tensor]:
    """One epoch's batches: steps mixed within a length, and the batches among each other."""
    order = train[torch.randperm(len(train), generator=generator)].tolist()
    batches = list(steps.places(order, options.batch_tokens))
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


@torch.no_grad()
def _judge(gate: Gate, steps: Steps, held: Sequence[int], options: FitOptions) -> dict[str, Any]:
    """Calibrate on held-out steps, and score there."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for batch in map(steps.batch, steps.places(held, options.batch_tokens)):
        index = batch.rows.index.expand_as(batch.label)[batch.defined]
        logits = gate(on_device(batch, gate).rows).cpu()[batch.defined]
        parts.append((logits, batch.label[batch.defined], index))
    if not parts:
        raise ModelError("the held-out prompts have no drafted token to judge by")
    logits, label, index = (torch.cat(column) for column in zip(*parts, strict=True))
    if options.calibrate:
        gate.offset.fill_(math.log(options.reject_weight))
        gate.temperature.fill_(fitted_temperature(logits + gate.offset.cpu(), label))
    found = scores(gate.chances(logits.to(gate.offset.device)).cpu(), label, index)
    return {**found, "brier_of_the_mean": constant_brier(label), "temperature": float(gate.temperature)}


def on_device(batch: Batch, gate: Gate) -> Batch:
    """The batch where the gate is."""
    device, rows = gate.body.device, batch.rows
    moved = GateRows(
        rows.token.to(device),
        rows.before.to(device),
        None if rows.after is None else rows.after.to(device),
        rows.scalars.to(device),
        rows.index.to(device),
        None if rows.position is None else rows.position.to(device),
        None if rows.visible is None else rows.visible.to(device),
    )
    return Batch(moved, batch.label.to(device), batch.defined.to(device))


@torch.no_grad()
def draft_chances(gate: Gate, data: Rollouts, rows: slice) -> list[float]:
    """What the gate says of collected tokens `rows` of one step, as if their draft had begun with the first of them."""
    own = slice_of(data, rows)
    steps = Steps(own, torch.zeros(len(own)), torch.ones(len(own), dtype=torch.bool), gate.shape)
    found: list[float] = []
    for batch in map(steps.batch, steps.places([0], len(own))):
        logits = gate(on_device(batch, gate).rows)[0].cpu()
        found = gate.chances(logits[batch.defined[0]].to(gate.offset.device)).tolist()
    return found


def slice_of(data: Rollouts, rows: slice) -> Rollouts:
    """Tokens `rows` of one step as a step of its own; the token before them becomes its root."""
    step = int(data.step[rows.start])
    begins = int(data.index[rows.start]) == 1
    root = data.step_root[step : step + 1] if begins else data.token[rows.start - 1 : rows.start]
    count = rows.stop - rows.start
    parts: dict[str, Any] = {name: getattr(data, name)[rows] for name in _OF_TOKENS}
    behind = slice(rows.start - int(data.index[rows.start]) + 1, rows.start)  # drafted before, and committed now
    if len(data.context_token):
        parts |= _context_of(data, step, behind)
    return replace(
        data,
        **parts,
        index=torch.arange(1, count + 1),
        step=torch.zeros(count, dtype=torch.int64),
        step_prompt=data.step_prompt[step : step + 1],
        step_context=data.step_context[step : step + 1] + len(range(behind.start, behind.stop)),
        step_root=root,
    )


def _context_of(data: Rollouts, step: int, behind: slice) -> dict[str, Tensor]:
    """The committed tokens before a step and drafted ones `behind` them."""
    begin = int(data.step_offset[step])
    own = slice(begin, begin + int(data.step_context[step]))
    states = data.hidden[behind].to(data.context_before.dtype)
    return {
        "context_token": torch.cat([data.context_token[own], data.token[behind]]),
        "context_before": torch.cat([data.context_before[own], states]),
        "step_offset": torch.zeros(1, dtype=torch.int64),
    }


_OF_TOKENS = ("hidden", "token", "prob", "entropy", "margin", "accepted", "accept_prob")
