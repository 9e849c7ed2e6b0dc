"""DEL: self-speculation by early exit; the exit layer and the draft length are chosen from step to step.

The draft is the target's first layers, its final norm and its head. What they computed for a drafted token is used
again: verification takes the token up where the draft left it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import Controller, DrafterBase, Request
from specbench.methods.build import Parts, build_controller
from specbench.methods.chain import ChainDrafter
from specbench.methods.exits import ExitStatistics, Plan, ThresholdStop, best_plan, head_in_layers, read_out
from specbench.methods.layer_skip import counts
from specbench.models.decoder import Output, Taps
from specbench.types import ChoiceRecord, ConfigError, Draft, Needs, Resume, Verdict, VerifyResult


@dataclass
class DynamicExit(DrafterBase):
    """Drafts with the first layers; after a step every exit is compared with the last layer (shadow tokens).

    The controller gives the cap and may stop a draft; so does the exit's own threshold. With `use_planned_length`
    False the planned length only decides which columns are learnt from. `stop_after_misses`: an exit that was never
    right drafts one token. Nothing drafted = a plain step; every `idle_interval`-th of them is learnt from. `head` is
    the cost of the output head in layers.
    """

    controller: Controller
    statistics: ExitStatistics
    start: Plan
    lengths: Sequence[int] = range(11)
    use_planned_length: bool = True
    stop_after_misses: bool = True
    prompt_columns: int = 32
    idle_interval: int = 16
    chunk_rows: int = 256
    head: float = 0.0
    searches: bool = True
    plan: Plan = field(init=False)
    _outputs: list[Output] = field(init=False, default_factory=list)  # of this step's draft passes, root first
    _drafted: int = field(init=False, default=0)
    _step: int = field(init=False, default=0)
    _idle: int = field(init=False, default=0)  # steps since the last analysis
    _choices: list[ChoiceRecord] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.plan = self.start

    @classmethod
    def build(cls, config: Any, parts: Parts) -> DynamicExit:
        num_exits = parts.target.decoder.spec.num_layers - 1
        if config.exit_layer > num_exits:
            raise ConfigError(f"method.exit_layer={config.exit_layer}: this model has exits 1 to {num_exits}")
        return cls(
            build_controller(config, parts),
            ExitStatistics(num_exits, config.omega),
            Plan(config.exit_layer, config.num_draft_tokens_init),
            lengths=range(config.planned_length_min, config.planned_length_max + 1),
            use_planned_length=config.draft_length_mode == "planned",
            stop_after_misses=config.nan_guard == "by_class",
            prompt_columns=config.prompt_shadow_columns,
            idle_interval=config.idle_interval,
            chunk_rows=config.shadow_chunk_rows,
            head=head_in_layers(parts.target.decoder.spec) if config.count_head else 0.0,
        )

    def begin(self, request: Request) -> None:
        super().begin(request)
        self.controller.begin(request)
        self._choices = []
        self._step = self._idle = 0

    def needs(self) -> Needs:
        if not self._due:
            return Needs()
        prompt_rows = self.prompt_columns if self._step == 0 else 0
        return Needs(argmax=True, residuals=tuple(map(_after, self._exits)), prompt_rows=prompt_rows)

    def propose(self, budget: int) -> Draft:
        self._outputs, self._drafted = [], 0
        length = self._length(budget)
        if length <= 0:
            return empty_draft("planned" if budget > 0 else "budget")
        threshold = self.threshold
        stop = self.controller if threshold is None else ThresholdStop(self.controller, threshold)
        chain = ChainDrafter(stop, self.request.target.decoder.spec.vocab_size, self.request)
        draft = chain.draft(self._forward, self.request.committed[-1:], budget=budget, planned=length)
        self._drafted = len(draft)
        if not draft.spine:
            return draft
        info = {"exit_layer": self.plan.exit_layer, "planned_length": self.plan.length, "threshold": threshold}
        resume = Resume(self.plan.exit_layer, self._early(self.plan.exit_layer))
        return replace(draft, resume=resume, info={**draft.info, **info})

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        if self._drafted:
            self.controller.end_step(self._drafted, verdict)
        self._idle += 1
        if result.residuals:
            self._analyse(result)
        self._step += 1

    def choices(self) -> Sequence[ChoiceRecord]:
        return tuple(self._choices)

    def reset(self) -> None:
        self.controller.reset()
        self.statistics.reset()
        self.plan = self.start

    @property
    def threshold(self) -> float | None:
        """Drafting stops after a token less probable than this; None = never."""
        if self.statistics.empty:
            return None
        exit_index = self.plan.exit_layer - 1
        learnt = self.statistics.thresholds()[exit_index]
        if learnt is None and self.stop_after_misses and self.statistics.alphas()[exit_index] == 0.0:
            return 1.0
        return learnt

    @property
    def _exits(self) -> range:
        return range(1, self.statistics.num_exits + 1)

    @property
    def _due(self) -> bool:
        return self._planned() > 0 or self._step == 0 or self._idle + 1 >= self.idle_interval

    def _planned(self) -> float:
        """Tokens to draft if controller and budget allow it; the first step keeps to what was configured."""
        return self.plan.length if self.use_planned_length or self.statistics.empty else float("inf")

    def _length(self, budget: int) -> int:
        return int(min(budget, self._planned()))

    def _forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        target, exit_layer = self.request.target, self.plan.exit_layer
        out = target.decoder.forward(
            ids,
            target.cache,
            start=target.cache.length + len(self._outputs),
            layers=(0, exit_layer),
            taps=Taps(residuals=[_after(number) for number in self._exits[: exit_layer - 1]]),
            logits="last",
        )
        self._outputs.append(out)
        assert out.logits is not None
        assert out.normed is not None
        return out.logits[0, -1], out.normed[0, -1]

    def _early(self, number: int) -> Tensor:
        """The draft's residual stream [drafted, d] after `number` layers: of the root and all drafted but the last."""
        used = self._outputs[: self._drafted]
        if number == self.plan.exit_layer:
            return torch.cat([out.hidden[0] for out in used])
        return torch.cat([out.residuals[_after(number)][0] for out in used])

    def _states(self, number: int, result: VerifyResult) -> Tensor:
        """The residual stream [T, d] of all rows of the step after `number` layers."""
        states = result.residuals[_after(number)]
        if number < self.plan.exit_layer and self._drafted:
            return torch.cat([self._early(number), states])
        return states

    def _analyse(self, result: VerifyResult) -> None:
        """Compare every exit's tokens with the last layer's, learn, and plan the next step."""
        started = time.perf_counter()
        assert result.argmax is not None
        columns = self._columns(result)
        states = torch.stack([self._states(number, result)[:columns] for number in self._exits])
        truth = result.argmax[:columns]
        if result.prompt is not None and result.prompt.argmax is not None:
            prompt = torch.stack([result.prompt.residuals[_after(number)] for number in self._exits])
            states, truth = torch.cat([states, prompt], dim=1), torch.cat([truth, result.prompt.argmax])
        token, prob = self._read_out(states.flatten(0, 1))
        shape = states.shape[:2]
        self.statistics.learn(token.view(shape) == truth, prob.view(shape))
        self._idle = 0
        self._install(best_plan(self.statistics.alphas(), len(self._exits) + 1, self.lengths, head=self.head), started)

    def _columns(self, result: VerifyResult) -> int:
        """Rows to learn from: up to the first one where the present exit and the last layer disagree."""
        assert result.argmax is not None
        rows = len(result.argmax)
        if self.plan.length == 0 or rows == 1:
            return rows
        token, _ = self._read_out(self._states(self.plan.exit_layer, result))
        wrong = (token != result.argmax).tolist()
        return wrong.index(True) + 1 if True in wrong else rows

    def _read_out(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return read_out(self.request.target.decoder, states, chunk_rows=self.chunk_rows)

    def _install(self, plan: Plan, started: float) -> None:
        changed = plan[:2] != self.plan[:2] or not self._choices
        self.plan = plan
        if not changed:
            return
        drafts = self._planned() > 0
        skipped = list(range(2 * plan.exit_layer, 2 * len(self._exits) + 2)) if drafts else None
        self._choices.append(
            ChoiceRecord(
                self._step,
                len(self.request.committed),
                "skip_set",
                {
                    "sublayers": skipped,
                    **counts(skipped),
                    "exit_layer": plan.exit_layer,
                    "planned_length": plan.length,
                    "predicted_acceptance": self.statistics.alphas()[plan.exit_layer - 1],
                    "predicted_tokens_per_layer": plan.value,
                    "threshold": self.threshold,
                    "search_s": time.perf_counter() - started,
                },
            )
        )


def _after(number: int) -> int:
    """The last sublayer of the first `number` layers."""
    return 2 * number - 1
