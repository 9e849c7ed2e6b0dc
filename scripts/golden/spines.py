"""What the golden data of ConfLayers and SWIFT share: trees of a spine with leaf siblings, and whole generations."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .official import build
from .outcome import Data, close, equal

if TYPE_CHECKING:
    from specbench.decoding.loop import SpeculativeDecoding
    from specbench.methods.layer_skip import LayerSkipDrafter
    from specbench.types import Draft, Generation, Verdict, VerifyResult

PROBABILITY = 1e-4


class Tree:
    """A draft of ours in the published order: the root, then depth by depth, the spine's token first."""

    def __init__(self, root: int, draft: Draft) -> None:
        spine = draft.spine or 0
        parents = list(range(-1, len(draft) - 1)) if draft.parents is None else list(draft.parents)
        beside: dict[int, list[int]] = {depth: [] for depth in range(spine)}
        for row in range(spine, len(draft)):
            beside[parents[row] + 1].append(row)
        self.rows = [row for depth in range(spine) for row in (depth, *beside[depth])]  # ours, in their order
        self.node = {-1: 0} | {row: node for node, row in enumerate(self.rows, start=1)}
        self.tokens = [root, *(int(draft.tokens[row]) for row in self.rows)]
        self.parents = [-1, *(self.node[parents[row]] for row in self.rows)]

    def paths(self) -> list[list[int]]:
        """Every way from the root to a leaf."""
        leaves = set(range(len(self.tokens))) - set(self.parents)
        return sorted(self._path(leaf) for leaf in leaves)

    def _path(self, node: int) -> list[int]:
        return [] if node < 0 else [*self._path(self.parents[node]), node]

    def answers(self, target_argmax: Sequence[int]) -> list[int]:
        """Answers given in their order, in ours."""
        return [target_argmax[self.node[row]] for row in range(-1, len(self.rows))]


def tree_differs(tree: Tree, golden: Data) -> Iterator[str]:
    """Differences between two trees."""
    yield from equal("tokens", tree.tokens, golden["tokens"])
    yield from equal("parents", tree.parents, golden["parents"])
    yield from equal("paths", tree.paths(), sorted([n for n in path if n >= 0] for path in golden["paths"]))


def verdict_differs(tree: Tree, verdict: Verdict, golden: Data) -> Iterator[str]:
    """Differences between what was accepted."""
    yield from equal("accepted nodes", [tree.node[row] for row in verdict.rows], golden["accepted_nodes"])
    yield from equal("accept length", verdict.num_accepted, golden["accept_length"])
    yield from equal("next token", verdict.next_token, golden["next_token"])


def check_tree(root: Path, case: Data, method: str, skip: Iterable[int]) -> Iterator[str]:
    """Draft and verify behind given tokens."""
    import torch

    from specbench.decoding.verification import verify

    generator = _published(root / case["model"], method)
    drafter = _plain(generator, skip)
    with torch.inference_mode():
        draft, result = _one_step(generator, drafter, case)
    tree = Tree(case["root_token"], draft)
    yield from close("top-1", list(draft.info["probs"]), case["draft"]["top1_probs"], absolute=PROBABILITY)
    yield from tree_differs(tree, case["tree"])
    yield from equal("target's answers", result.argmax.tolist(), tree.answers(case["verify"]["target_argmax"]))  # type: ignore[union-attr]
    verdict = verify(draft, result, sampling=generator.sampling, draws=drafter.request.draws)
    yield from verdict_differs(tree, verdict, case["verify"])


@functools.cache
def _published(folder: Path, method: str) -> SpeculativeDecoding:
    return build(folder, f"method={method}")


def _plain(generator: SpeculativeDecoding, skip: Iterable[int]) -> LayerSkipDrafter:
    """The method's own drafting, with a given set."""
    from specbench.methods.layer_skip import LayerSkipDrafter

    drafter: Any = generator.drafter
    return LayerSkipDrafter(drafter.controller, frozenset(skip), drafter.branching)


def _one_step(generator: SpeculativeDecoding, drafter: LayerSkipDrafter, case: Data) -> tuple[Draft, VerifyResult]:
    from specbench.decoding.protocol import Request
    from specbench.decoding.sampling import GeneratorDraws

    committed = [*case["context_ids"], case["root_token"]]
    left = case["max_new_tokens"] - case["new_token_num"] - 1
    request = Request(
        target=generator.target,
        committed=committed,
        sampling=generator.sampling,
        draws=GeneratorDraws(0),
        stop_ids=(),
        max_new_tokens=left,
        timer=generator.timer,
    )
    drafter.begin(request)
    generator.target.prefill(committed, capacity=len(committed) + 256)
    draft = drafter.propose(left)
    return draft, generator.target.verify(case["root_token"], draft, drafter.needs(), greedy=True)


@dataclass
class PublishedEnd:
    """A controller that stops where the published loops do near their token limit: one later than ours, and never
    before the first token."""

    inner: Any
    limit: int

    def begin(self, request: Any) -> None:
        self.request, self.prompt = request, len(request.committed)
        self.inner.begin(request)

    def start_step(self, budget: int) -> int:
        left = self.limit - (len(self.request.committed) - 1 - self.prompt) - 1
        return min(self.inner.start_step(budget), max(1, left))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def generate(generator: SpeculativeDecoding, case: Data, prompt: Data) -> Generation:
    """One prompt as far as the published loop went, which is beyond its limit; its next root is our last token."""
    drafter: Any = generator.drafter
    if not isinstance(drafter.controller, PublishedEnd):
        drafter.controller = PublishedEnd(drafter.controller, case["max_new_tokens"])
    budget = len(prompt["output_ids"]) + 1
    return generator.generate(prompt["prompt_ids"], max_new_tokens=budget, seed=0)


def generation_differs(found: Generation, prompt: Data, name: str) -> Iterator[str]:
    """Differences between tokens and steps. Our step 0 is the published prefill."""
    yield from equal(f"{name}: ids", found.tokens[:-1], prompt["output_ids"])
    steps = (found.steps or ())[1:]
    yield from equal(f"{name}: number of steps", len(steps), len(prompt["steps"]))
    for step, golden in zip(steps, prompt["steps"], strict=False):
        where = f"{name} step {golden['step']}"
        yield from equal(f"{where}: accepted", step.num_accepted, golden["accepted"])
        yield from equal(f"{where}: emitted", step.num_emitted, golden["emitted"])
        if step.num_draft_tokens == 0 and step is steps[-1]:
            continue  # our budget leaves the last step nothing to draft where the published one is rejected
        chain = step.draft_tokens[: step.num_draft_tokens]
        yield from equal(f"{where}: chain", chain, golden["chain"])
        yield from equal(f"{where}: nodes", step.num_tree_tokens + 1, golden["n_nodes"])
        probs = step.info.get("probs", [])
        yield from close(f"{where}: top-1", list(probs), golden["top1_probs"], absolute=PROBABILITY)


def skipped_differs(found: Generation, prompt: Data, before: int, unit: int) -> Iterator[str]:
    """Differences in how many layers (`unit` sublayers each) were left out in each step; `before`: in the first."""
    installed = {record.step: len(record.values["sublayers"]) // unit for record in found.choices}
    for golden in prompt["steps"]:
        before = installed.get(golden["step"], before)  # chosen after the step before, which is our number of this one
        yield from equal(f"step {golden['step']}: layers skipped", before, golden["num_skipped"])
