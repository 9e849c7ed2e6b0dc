"""Training a draft on the target's own distributions over the target's own answers.

Everything that happens is decided by the settings and the data: the batches of all epochs are laid out first, and a
checkpoint holds all else, so that a killed command gives the same draft as one that ran through.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from specbench.config import DistilConfig
from specbench.models.decoder import Decoder
from specbench.models.draft import copy_layers, new_draft, own_slots
from specbench.training.corpus import Example, in_windows
from specbench.training.loss import DIVERGENCES, backward
from specbench.training.replay import Acceptance, held_out_acceptance
from specbench.types import DataError, ModelError

log = logging.getLogger(__name__)

_WINDOW = 256  # examples that are sorted by length together
_BETAS = (0.9, 0.95)
_LAST_RATE = 0.05  # of the peak, at the end of the cosine


@dataclass
class Progress:
    """Where training stands; `curve` holds one entry an evaluation."""

    step: int = 0
    tokens: int = 0
    best: float = -1.0
    curve: list[dict[str, Any]] = field(default_factory=list)


def reduced_vocabulary(examples: Sequence[Example], size: int | None, vocab_size: int) -> Tensor | None:
    """The `size` most frequent tokens of the answers, ascending; None where that is the whole vocabulary.

    Equally frequent tokens are taken in the order of their ids, which for merged vocabularies is about that of their
    frequency elsewhere.
    """
    if size is None or size >= vocab_size:
        return None
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for example in examples:
        counts += torch.bincount(example.answer, minlength=vocab_size)
    order = sorted(range(vocab_size), key=lambda token: (-int(counts[token]), token))
    return torch.tensor(sorted(order[:size]))


def is_held_out(prompt: Sequence[int], every: int) -> bool:
    """One prompt in `every`, decided by its token ids alone: more data never moves a prompt to the other side."""
    digest = hashlib.sha256(bytes(str(list(prompt)), "ascii")).digest()
    return int.from_bytes(digest[:8], "big") % every == 0


def held_out_part(examples: Sequence[Example], config: DistilConfig) -> tuple[list[Example], list[Example]]:
    """(training examples, greedy held-out ones, the sources taking turns); DataError where either is empty."""
    every = config.held_out_every
    training = [example for example in examples if not is_held_out(example.prompt.tolist(), every)]
    others = [e for e in examples if e.greedy and is_held_out(e.prompt.tolist(), every)]
    places: Counter[str] = Counter()
    turns = []
    for example in others:
        places[example.source] += 1
        turns.append((places[example.source], example.source))
    order = sorted(range(len(others)), key=lambda i: turns[i])
    held_out = [others[i] for i in order[: config.held_out]]
    if not training or not held_out:
        raise DataError(
            f"{len(training)} answers to train on and {len(held_out)} greedy ones held out are too few: generate more, "
            "or set training.held_out_every lower"
        )
    return training, held_out


def start_draft(target: Decoder, layers: Sequence[int], head_ids: Tensor | None) -> Decoder:
    """A draft with the target's `layers` (negative = from the end), ready to be trained; ModelError for a wrong one."""
    count = target.spec.num_layers
    wrong = [layer for layer in layers if not -count <= layer < count]
    if wrong:
        raise ModelError(f"training.layers names layer {wrong[0]}; the target has layers 0 to {count - 1}")
    draft = new_draft(target, len(layers), head_ids)
    copy_layers(target, draft, [layer % count for layer in layers])
    return draft.finish("library")


def trained_tensors(draft: Decoder) -> list[Tensor]:
    """The draft's own weights as they lie in memory; q/k norms, which are one row stored per head, stay as they are."""
    tensors = [draft.norm]
    for layer in draft.layers:
        tensors += layer.norms
        for linear in layer.linears():
            tensors += [tensor for tensor in (linear.weight, linear.bias) if tensor is not None]
    return tensors


@dataclass
class Distillation:
    """One training run: `folder` holds its checkpoint; `keep` is called with each new best draft."""

    draft: Decoder
    head: Tensor  # [V_draft, d] the rows of the target's head that the draft scores
    training: Sequence[Example]
    held_out: Sequence[Example]
    config: DistilConfig
    folder: Path
    seed: int
    keep: Callable[[Progress], None]
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self._plan = self._laid_out()
        self._tensors = trained_tensors(self.draft)
        for tensor in self._tensors:
            tensor.requires_grad_()
        self._optimiser = torch.optim.AdamW(
            self._tensors, lr=self.config.learning_rate, betas=_BETAS, weight_decay=self.config.weight_decay
        )

    @property
    def num_steps(self) -> int:
        return len(self._plan)

    def run(self, *, until: int | None = None) -> Progress:
        """Train to the end (or to step `until`), from the last checkpoint where there is one of this run."""
        last = self.num_steps if until is None else min(until, self.num_steps)
        self._resume()
        started, before = time.monotonic(), self.progress.tokens
        with tqdm(total=self.num_steps, initial=self.progress.step, desc="training", disable=None) as bar:
            if self.progress.step == 0:
                self._evaluate(None)
            while self.progress.step < last:
                loss = self._step(self._plan[self.progress.step])
                self.progress.step += 1
                speed = (self.progress.tokens - before) / (time.monotonic() - started)
                bar.set_postfix(loss=f"{loss:.3f}", tokens_per_s=f"{speed:.0f}", best=f"{self.progress.best:.3f}")
                bar.update(1)
                self._after_step(loss)
        return self.progress

    def _after_step(self, loss: float) -> None:
        step, done = self.progress.step, self.progress.step == self.num_steps
        if done or step % self.config.evaluate_every == 0:
            self._evaluate(loss)
        if done or step % self.config.checkpoint_every == 0:
            self._save()

    def _laid_out(self) -> list[list[int]]:
        """The examples of every batch of every epoch: like lengths together, batches mixed."""
        lengths = [int(example.ids.shape[0]) for example in self.training]
        plan: list[list[int]] = []
        for epoch in range(self.config.epochs):
            mixed = list(range(len(lengths)))
            draws = random.Random(f"{self.seed}/{epoch}")
            draws.shuffle(mixed)
            windows = in_windows([lengths[i] for i in mixed], _WINDOW)
            batches = [batch for window in windows for batch in self._packed([mixed[i] for i in window], lengths)]
            draws.shuffle(batches)
            plan += batches
        return plan

    def _packed(self, order: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Consecutive examples, padded to the longest, within `batch_tokens` rows (one example always fits)."""
        batches: list[list[int]] = [[]]
        for index in order:  # ascending lengths: the new one is the longest
            if batches[-1] and (len(batches[-1]) + 1) * lengths[index] > self.config.batch_tokens:
                batches.append([])
            batches[-1].append(index)
        return batches

    def _step(self, batch: Sequence[int]) -> float:
        examples = [self.training[index] for index in batch]
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate()
        self._optimiser.zero_grad()
        normed = self.draft.final_norm(self._answer_rows(examples))
        states, log_z = (torch.cat([getattr(e, name) for e in examples]) for name in ("states", "log_z"))
        device = normed.device
        loss = backward(
            normed, states.to(device), log_z.to(device), self.head, divergence=DIVERGENCES[self.config.divergence]
        )
        torch.nn.utils.clip_grad_norm_(self._tensors, self.config.clip)
        self._optimiser.step()
        self.progress.tokens += int(states.shape[0])
        return loss

    def _answer_rows(self, examples: Sequence[Example]) -> Tensor:
        """The draft's states [n, d] before the final norm that predict the answers, one example after another."""
        ids = torch.nn.utils.rnn.pad_sequence([example.ids for example in examples], batch_first=True)
        hidden = self.draft.forward(ids.to(self.draft.device), logits="none").hidden
        ends = [(int(e.prompt.shape[0]) - 1, int(e.ids.shape[0])) for e in examples]
        return torch.cat([hidden[row, first:end] for row, (first, end) in enumerate(ends)])

    def _rate(self) -> float:
        """Linear warm-up, then a cosine that ends at a small share of the peak."""
        warm = max(1, round(self.config.warmup * self.num_steps))
        if self.progress.step < warm:
            return self.config.learning_rate * (self.progress.step + 1) / warm
        done = (self.progress.step - warm) / max(1, self.num_steps - warm)
        return self.config.learning_rate * (_LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done)))

    def _evaluate(self, loss: float | None) -> None:
        found = held_out_acceptance(self.draft, self.held_out, self.config.num_draft_tokens)
        entry = {"step": self.progress.step, "tokens": self.progress.tokens, "loss": loss, **_scores(found)}
        self.progress.curve.append(entry)
        by_source = " ".join(f"{name} {one.rate:.3f}" for name, one in sorted(found.items()))
        log.info("step %d: held-out acceptance %s, mat %.3f", self.progress.step, by_source, found["all"].mat)
        if found["all"].rate > self.progress.best:
            self.progress.best = found["all"].rate
            self.keep(self.progress)

    # ---- checkpoints

    @property
    def _identity(self) -> str:
        """What a checkpoint must have been made with to be continued."""
        settings = {**asdict(self.config), "evaluate_every": None, "checkpoint_every": None, "seed": self.seed}
        sizes = [[int(e.prompt.shape[0]), int(e.answer.shape[0])] for e in (*self.training, *self.held_out)]
        return hashlib.sha256(json.dumps([settings, sizes], sort_keys=True).encode()).hexdigest()[:16]

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "checkpoint.pt"
        content = {
            "identity": self._identity,
            "weights": {name: slot.detach() for name, slot in own_slots(self.draft).items()},
            "optimiser": self._optimiser.state_dict(),
            "progress": json.dumps(asdict(self.progress)),
        }
        torch.save(content, path.with_suffix(".partial"))
        os.replace(path.with_suffix(".partial"), path)

    def _resume(self) -> None:
        path = self.folder / "checkpoint.pt"
        if not path.is_file():
            return
        # On the CPU: the optimiser moves its state to its weights, but must find its step counts there.
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if stored["identity"] != self._identity:
            log.warning("the checkpoint in %s is of other settings or other data: training starts anew", self.folder)
            return
        with torch.no_grad():
            for name, slot in own_slots(self.draft).items():
                slot.copy_(stored["weights"][name])
        self._optimiser.load_state_dict(stored["optimiser"])
        self.progress = Progress(**json.loads(stored["progress"]))
        log.info("continuing after step %d of %d", self.progress.step, self.num_steps)


def _scores(found: dict[str, Acceptance]) -> dict[str, Any]:
    return {
        "acceptance_rate": {name: round(one.rate, 4) for name, one in sorted(found.items())},
        "mat": {name: round(one.mat, 4) for name, one in sorted(found.items())},
    }
