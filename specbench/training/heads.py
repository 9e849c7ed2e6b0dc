"""Fitting the small classifiers of `specbench.controllers.heads` to collected steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.controllers.heads import (
    AcceptanceHead,
    ResidualHead,
    ScalarHead,
    log_probability,
    scalar_features,
)
from specbench.models.artefact import Artefact, Key
from specbench.training.calibration import constant_brier, fitted_temperature, scores
from specbench.training.labels import labels, weighted_loss
from specbench.training.rollouts import Rollouts
from specbench.types import ModelError

STATES = ("own", "predictor")


@dataclass(frozen=True)
class FitOptions:
    """AdamW with warm-up and cosine decay over `epochs`; the share `held_out` of the prompts is kept out of the fit.

    `reject_weight` 1 keeps chances calibrated; SpecDec++ uses 6. `calibrate`: the shift that the weight causes, log of
    it, is added back, then a temperature is fitted on held-out tokens.
    """

    label: str = "conditional"
    reject_weight: float = 1.0
    epochs: int = 3
    lr: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.03
    clip: float = 1.0
    batch_tokens: int = 512
    held_out: float = 0.2
    seed: int = 0
    calibrate: bool = True


@dataclass(frozen=True)
class Examples:
    """Features [n, f] of the tokens that have a label [n]; `index` [n] place in the draft, `prompt` [n] number."""

    features: Tensor
    label: Tensor
    index: Tensor
    prompt: Tensor

    def part(self, chosen: Tensor) -> Examples:
        """The examples where `chosen` [n] is true."""
        return Examples(self.features[chosen], self.label[chosen], self.index[chosen], self.prompt[chosen])

    def __len__(self) -> int:
        return int(self.label.shape[0])


def scalar_examples(data: Rollouts, label: str) -> Examples:
    """For the classifier that sees four scalars a token."""
    y, defined = labels(data, label)
    x = scalar_features(log_probability(data.prob), data.entropy, data.margin, data.index)
    return Examples(x, y, data.index, data.prompt).part(defined)


def state_examples(data: Rollouts, label: str, *, state: str = "own") -> Examples:
    """For a head over hidden states: `predictor` = the state that predicted the token, `own` = that has read it.

    A token's own state is the one that predicted the next; the last token of a draft has none and drops out.
    """
    y, defined = labels(data, label)
    if state == "predictor":
        return Examples(data.hidden, y, data.index, data.prompt).part(defined)
    followed = torch.cat([data.step[1:] == data.step[:-1], torch.tensor([False])])
    return Examples(data.hidden.roll(-1, dims=0), y, data.index, data.prompt).part(defined & followed)


def split(examples: Examples, options: FitOptions) -> tuple[Examples, Examples]:
    """Examples to fit and to judge by; a prompt is in one of them. ModelError where either would be empty."""
    kept_out = torch.isin(examples.prompt, held_out_prompts(examples.prompt, options))
    if kept_out.all() or not kept_out.any():
        count = len(examples.prompt.unique())
        raise ModelError(f"{count} prompt(s) with drafted tokens are too few to fit and to judge by")
    return examples.part(~kept_out), examples.part(kept_out)


def held_out_prompts(prompt: Tensor, options: FitOptions) -> Tensor:
    """Numbers of the prompts that nothing is fitted to, of the prompts [n] of all tokens."""
    prompts = prompt.unique()
    order = prompts[torch.randperm(len(prompts), generator=torch.Generator().manual_seed(options.seed))]
    held: Tensor = order[: max(1, round(options.held_out * len(prompts)))]
    return held


def fit(head: AcceptanceHead, examples: Examples, options: FitOptions) -> dict[str, Any]:
    """Fit `head` in place; gives its scores on the held-out prompts."""
    train, held = split(examples, options)
    if isinstance(head, ScalarHead):
        head.standardise(train.features.float())
    _descend(head, train, options)
    with torch.no_grad():
        if options.calibrate:
            head.offset.fill_(math.log(options.reject_weight))
            head.temperature.fill_(fitted_temperature(head(held.features.float()) + head.offset, held.label))
        found = scores(head.probability(held.features), held.label, held.index)
    return {
        **found,
        "brier_of_the_mean": constant_brier(held.label),
        "temperature": float(head.temperature),
        "num_train_tokens": len(train),
    }


def _descend(head: AcceptanceHead, train: Examples, options: FitOptions) -> None:
    generator = torch.Generator().manual_seed(options.seed)
    optimiser = torch.optim.AdamW(
        head.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=options.weight_decay
    )
    batches = -(-len(train) // options.batch_tokens)
    total = batches * options.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step / total, options.warmup))
    for _ in range(options.epochs):
        for chosen in torch.randperm(len(train), generator=generator).chunk(batches):
            logits = head(train.features[chosen].float())
            loss = weighted_loss(logits, train.label[chosen], reject_weight=options.reject_weight)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), options.clip)
            optimiser.step()
            schedule.step()


def _rate(done: float, warmup: float) -> float:
    """Share of the learning rate after a share of the steps."""
    if done < warmup:
        return done / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (done - warmup) / (1.0 - warmup)))


def fit_scalars(
    data: Rollouts, key: Key, *, width: int = 16, threshold: float = 0.5, options: FitOptions | None = None
) -> Artefact:
    """The scalars-only classifier as an artefact for `key`; `width` 0 = logistic regression."""
    options = options or FitOptions(epochs=20)
    torch.manual_seed(options.seed)
    head = ScalarHead(width)
    found = fit(head, scalar_examples(data, options.label), options)
    values = {"label": options.label, "threshold": threshold}
    return _artefact("scalars", key, head, values=values, card=_card(found, options, data))


def fit_specdecpp(
    data: Rollouts,
    key: Key,
    *,
    state: str = "own",
    num_layers: int = 3,
    shared: bool = False,
    threshold: float = 0.7,
    options: FitOptions | None = None,
) -> Artefact:
    """SpecDec++'s head as an artefact for `key`.

    Differs from the published training in its data: our own speculation instead of one teacher-forced pass that mixes
    true and drafted tokens. `reject_weight` 6 as published, calibrated afterwards.
    """
    options = options or FitOptions(reject_weight=6.0)
    torch.manual_seed(options.seed)
    head = ResidualHead(data.hidden.shape[1], num_layers, shared=shared)
    found = fit(head, state_examples(data, options.label, state=state), options)
    values = {"label": options.label, "threshold": threshold}
    return _artefact("specdecpp", {**key, "state": state}, head, values=values, card=_card(found, options, data))


def _artefact(
    kind: str, key: Key, head: AcceptanceHead, *, values: Mapping[str, Any], card: Mapping[str, Any]
) -> Artefact:
    tensors = {name: tensor.detach().clone() for name, tensor in head.state_dict().items()}
    return Artefact(kind, dict(key), {**head.values(), **values}, card, tensors)


def _card(found: Mapping[str, Any], options: FitOptions, data: Rollouts) -> dict[str, Any]:
    return {"scores": dict(found), "options": asdict(options), "data": dict(data.meta)}
