"""What online searches for a skip set share (ConfLayers, SWIFT): start, generated text, the tree beside the chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import Request
from specbench.hardware.profile import VerifyCurve, seconds
from specbench.methods.build import Parts, build_controller
from specbench.methods.chain import Branching
from specbench.methods.layer_skip import LayerSkipDrafter, uniform_layers
from specbench.methods.skip_sets import given_set
from specbench.models.decoder import Decoder, Output
from specbench.models.kv_cache import KVCache
from specbench.results.files import read_json
from specbench.types import Draft, ModelError, Verdict, VerifyResult

SHIPPED = Path(__file__).parents[1] / "artefacts" / "skip_sets"
# A search pass writes behind the committed rows; the loop keeps so many rows free there.
SEARCH_ROWS = 256
_MOST_NODES = 131  # 25 tokens deep with five candidates each, the last ten: the published trees' largest
_LONGEST_SPINE = 32  # beyond it siblings cost what they cost there


@dataclass(kw_only=True)
class SearchingDrafter(LayerSkipDrafter):
    """A self-drafter that starts with a set and looks for a better one while decoding.

    The first step of a prompt drafts nothing: the published codes take one token from the prefill.
    """

    initial: frozenset[int] | None
    _prompt_length: int = field(init=False, default=0)
    _tried: int = field(init=False, default=0)  # drafted with the present set
    _accepted: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.skip = self.initial
        self.searches = True

    def begin(self, request: Request) -> None:
        super().begin(request)
        self._prompt_length = len(request.committed)
        self.install(self.skip, reason="carried_over" if self.has_searched else "initial")

    @property
    def has_searched(self) -> bool:
        """Whether the present set is a search's."""
        raise NotImplementedError

    def propose(self, budget: int) -> Draft:
        if self._step == 0:
            self._rows = self._drafted = 0
            return empty_draft("prefill", device=self.request.target.decoder.device)
        return super().propose(budget)

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        self._tried += self._drafted
        self._accepted += verdict.num_accepted_spine
        self.search_step(verdict)
        super().observe(verdict, result)

    def search_step(self, verdict: Verdict) -> None:
        """What the search does after a step."""
        raise NotImplementedError

    def install(self, skip: Iterable[int] | None, **why: Any) -> None:
        measured = self._accepted / self._tried if self._tried else None
        if self.skip != (None if skip is None else frozenset(skip)):
            self._tried = self._accepted = 0
        super().install(skip, **why, measured_acceptance=measured)

    def reset(self) -> None:
        super().reset()
        self.skip = self.initial
        self._tried = self._accepted = 0

    @property
    def num_generated(self) -> int:
        """Generated tokens whose rows are in the cache: all but the next root."""
        return len(self.request.committed) - 1 - self._prompt_length

    def look(self, tokens: Sequence[int], prefix: int, **options: Any) -> Output:
        """A pass over `tokens` at positions prefix.. that sees the first `prefix` cache rows and leaves them alone."""
        decoder, cache = self.request.target.decoder, self.request.target.cache
        return look(decoder, cache, tokens, prefix, **options)


def look(decoder: Decoder, cache: KVCache, tokens: Sequence[int], prefix: int, **options: Any) -> Output:
    """`decoder.forward` on `tokens` as if they followed the first `prefix` cache rows; committed rows stay as they are.

    `options` are forward's own. At most SEARCH_ROWS tokens.
    """
    ids = torch.tensor([list(tokens)], device=decoder.device)
    positions = torch.arange(prefix, prefix + len(tokens), device=decoder.device)
    return decoder.forward(ids, cache, start=cache.length, prefix=prefix, positions=positions, **options)


def interior(decoder: Decoder, least: int = 1) -> int:
    """The number of layers between the first and the last, which are never skipped; ModelError below `least`."""
    count = decoder.spec.num_layers - 2
    if count < least:
        raise ModelError(f"a search for layers to skip needs a model of {least + 2} layers or more, not {count + 2}")
    return count


def initial_set(config: Any, parts: Parts) -> frozenset[int] | None:
    """What is skipped before the search has found anything; None = plain steps until then."""
    if config.initial_set == "none":
        return None
    shipped = shipped_set(config.name, parts) if config.initial_set == "auto" else None
    return uniform_layers(parts.target.decoder.spec.num_layers) if shipped is None else shipped


def shipped_set(method: str, parts: Parts, folder: Path = SHIPPED) -> frozenset[int] | None:
    """The stored set of this very model, or None; one that `method` found on this task comes before others."""
    ours = []
    for path in sorted(folder.glob("*.json")) if parts.model_hash is not None else ():
        stored = read_json(path)
        if stored.get("model") == parts.model_hash:
            ours.append((stored.get("method") != method, stored.get("task") != parts.task, str(path)))
    if not ours:
        return None
    return given_set(min(ours)[2], num_sublayers=parts.target.decoder.num_sublayers, model=parts.model_hash)


def with_given_set(config: Any, parts: Parts) -> LayerSkipDrafter | None:
    """With `method.skip_set` a drafter that never searches."""
    if config.skip_set is None:
        return None
    skip = given_set(config.skip_set, num_sublayers=parts.target.decoder.num_sublayers, model=parts.model_hash)
    return LayerSkipDrafter(build_controller(config, parts), skip, branching(config.tree, parts))


def branching(config: Any, parts: Parts) -> Branching | None:
    """The tree of a config's `tree` part; None = a chain.

    `max_nodes=auto`: as many siblings beside a spine as verification takes at most `max_overhead` more time for.
    """
    widths = tuple(config.widths_greedy if parts.sampling.greedy else config.widths_sampling)
    thresholds = tuple(config.thresholds)
    if config.max_nodes != "auto":
        return Branching(thresholds, widths, config.max_nodes) if config.max_nodes > 1 else None
    if parts.curve is None:
        return Branching(thresholds, widths, _MOST_NODES)
    rooms = affordable_siblings(parts.curve(), config.max_overhead)
    return Branching(thresholds, widths, _MOST_NODES, rooms) if any(rooms) else None


def affordable_siblings(curve: VerifyCurve, max_overhead: float) -> tuple[int, ...]:
    """How many siblings add at most the share `max_overhead` to verifying a spine of 1, 2, ... tokens."""
    return tuple(_affordable(curve, spine + 1, max_overhead) for spine in range(1, _LONGEST_SPINE + 1))


def _affordable(curve: VerifyCurve, rows: int, max_overhead: float) -> int:
    limit = (1.0 + max_overhead) * seconds(curve, rows)
    extra = 0
    while rows + extra <= _MOST_NODES and seconds(curve, rows + extra + 1) <= limit:
        extra += 1
    return extra
