"""CLaSp: self-speculation that skips a fixed number of whole layers, chosen anew while decoding."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import Request
from specbench.methods.build import Parts, build_controller
from specbench.methods.layer_dp import choose_layers
from specbench.methods.layer_skip import LayerSkipDrafter, layers_to_sublayers
from specbench.methods.skip_sets import given_set
from specbench.types import ConfigError, Draft, Needs, Verdict, VerifyResult

SEARCH_STEP = 1  # of every `optimize_interval` steps; step 0 stands for the prefill of the published code


@dataclass
class Clasp(LayerSkipDrafter):
    """Skips `num_skip_layers` layers; the last token that a verify pass leaves in the cache is the search's reference.

    Nothing is drafted in step 0, and `before_first_set` says what happens until the first search. With `carry_over` a
    set outlives its prompt, as long as `method.scope` says.
    """

    num_skip_layers: int = 1
    optimize_interval: int = 64
    before_first_set: str = "ar"
    carry_over: bool = True
    searches: bool = True
    _end: int = field(init=False, default=0)
    _tried: int = field(init=False, default=0)  # drafted with the present set
    _accepted: int = field(init=False, default=0)

    @classmethod
    def build(cls, config: Any, parts: Parts) -> LayerSkipDrafter:
        """With `skip_set` a drafter that never searches."""
        decoder, controller = parts.target.decoder, build_controller(config, parts)
        if config.skip_set is not None:
            skip = given_set(config.skip_set, num_sublayers=decoder.num_sublayers, model=parts.model_hash)
            return LayerSkipDrafter(controller, skip)
        return cls(
            controller,
            num_skip_layers=_num_skip(config, decoder.spec.num_layers),
            optimize_interval=config.optimize_interval,
            before_first_set=config.before_first_set,
            carry_over=config.carry_over,
        )

    def begin(self, request: Request) -> None:
        super().begin(request)
        if not self.carry_over:
            self.skip = None
        if self.skip is not None:
            self.install(self.skip, reason="carried_over")
        self._end = len(request.committed) + request.max_new_tokens
        self._tried = self._accepted = 0

    def needs(self) -> Needs:
        if self._step % self.optimize_interval != SEARCH_STEP:
            return Needs()
        return Needs(residuals=tuple(range(-1, self.request.target.decoder.num_sublayers, 2)))

    def propose(self, budget: int) -> Draft:
        if self._step == 0:
            self._drafted = 0
            return empty_draft("first_step")
        return super().propose(budget)

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        self._tried += self._drafted
        self._accepted += verdict.num_accepted_spine
        over = verdict.stopped or len(self.request.committed) >= self._end
        if result.residuals and not over:
            self._search(verdict, result)
        elif self._step == 0 and self.skip is None and self.before_first_set == "full_model":
            self.install((), reason="full_model")
        super().observe(verdict, result)

    def reset(self) -> None:
        super().reset()
        self.skip = None

    def _search(self, verdict: Verdict, result: VerifyResult) -> None:
        started = time.perf_counter()
        target = self.request.target
        states = torch.stack([state[verdict.num_accepted] for _, state in sorted(result.residuals.items())])
        found = choose_layers(target.decoder, target.cache, states, self.num_skip_layers)
        self.install(
            layers_to_sublayers(found.layers),
            cosine=found.cosine,
            measured_acceptance=self._accepted / self._tried if self._tried else None,  # of the set before
            search_s=time.perf_counter() - started,
        )
        self._tried = self._accepted = 0


def _num_skip(config: Any, num_layers: int) -> int:
    auto = config.num_skip_layers == "auto"
    wanted = max(1, round(config.skip_share * num_layers)) if auto else int(config.num_skip_layers)
    if wanted >= num_layers:
        raise ConfigError(
            f"method.num_skip_layers={wanted}: must be from 1 to {num_layers - 1} for a model of {num_layers} layers"
        )
    return wanted
