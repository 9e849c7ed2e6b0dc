"""swift/: scores of sets, random proposals, the trees, and whole generations with their searches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .official import build, decoder
from .outcome import Data, Outcome, close, equal, judge
from .spines import check_tree, generate, generation_differs, skipped_differs

OFFICIAL = "method=swift_official"
MATCHNESS = 1e-6


def check_matchness(root: Path, data: Data) -> Iterator[Outcome]:
    """matchness.json: how many tokens a model without some sublayers predicts; which sets are drawn."""
    for case in data.get("cases", []):
        yield judge(case["id"], _matchness, root, case)
    for case in data.get("random_search", []):
        yield judge(f"random_search seed {case['seed']}", _draws, case)


def check_trees(root: Path, data: Data) -> Iterator[Outcome]:
    """tree_cases.json: trees drafted and verified by a model."""
    for case in data.get("cases", []):
        skip = sublayers(case["skip_attn"], case["skip_mlp"])
        yield judge(case["id"], check_tree, root, case, "swift_official", skip)


def check_swift(root: Path, data: Data) -> Iterator[Outcome]:
    """e2e.json: tokens, every step, every scored candidate, and what the search knows after each prompt."""
    for case in data.get("cases", []):
        yield judge(case["id"], _decode, root, case)


def sublayers(attention: Iterable[int], mlp: Iterable[int]) -> frozenset[int]:
    """Our numbers of the sublayers of layers."""
    return frozenset([*(2 * layer for layer in attention), *(2 * layer + 1 for layer in mlp)])


def _matchness(root: Path, case: Data) -> Iterator[str]:
    import torch

    from specbench.decoding.target import Target

    folder = root / case["model"]
    overrides = [f"method.{key}={case[key]}" for key in ("context_window", "skip_ratio")]
    drafter: Any = build(folder, OFFICIAL, *overrides).drafter
    yield from equal("sublayers a candidate", drafter.search.num_skip, case["num_sublayers_per_candidate"])
    target = Target(decoder(folder))
    committed = [*case["prompt_ids"], *case["generated_ids"], 0]
    with torch.inference_mode():
        target.prefill(committed, capacity=len(committed) + 256)
        drafter.request = SimpleNamespace(target=target, committed=committed)
        drafter._prompt_length = len(case["prompt_ids"])
        for number, golden in enumerate(case["evaluations"]):
            found = drafter.matchness(sublayers(golden["attn"], golden["mlp"]))
            yield from close(f"matchness[{number}]", found, golden["matchness"], absolute=MATCHNESS)
            yield from equal(f"matches[{number}]", round(found * case["context_window"]), golden["matches"])


def _draws(case: Data) -> Iterator[str]:
    from specbench.methods.swift_search import SetSearch

    limits = {"max_opt_iter": 1000, "max_tolerance": 300, "max_score": 1.0}
    search = SetSearch(case["num_hidden_layers"] - 2, case["num_skip"], case["seed"], **limits)
    for number, golden in enumerate(case["draws"]):
        ours = search.propose().sublayers
        yield from equal(f"draw {number}", sorted(ours), sorted(sublayers(golden["attn"], golden["mlp"])))


def _decode(root: Path, case: Data) -> Iterator[str]:
    same = ("context_window", "opt_interval", "skip_ratio", "max_opt_iter", "max_score", "bayes")
    generator = build(
        root / case["model"],
        OFFICIAL,
        *(f"method.{key}={case[key]}" for key in same),
        f"method.max_tolerance={case['max_tolerance_iter']}",
        f"method.candidate_seed={case['numpy_seed']}",
        f"method.search={case['optimization']}",
        f"method.controller.num_draft_tokens={case['max_draft']}",
        f"method.controller.threshold={case['stop_prob']}",
    )
    drafter: Any = generator.drafter
    initial = sublayers(case["initial_attn"], case["initial_mlp"])
    yield from equal("initial set", sorted(drafter.skip), sorted(initial))
    for number, prompt in enumerate(case["prompts"]):
        name, seen = f"prompt {number}", observed(drafter)
        skipped = len(drafter.skip)
        found = generate(generator, case, prompt)
        yield from generation_differs(found, prompt, name)
        yield from skipped_differs(found, prompt, skipped, unit=1)
        yield from _evaluations_differ(seen, prompt)
        golden = sublayers(prompt["installed_attn"], prompt["installed_mlp"])
        yield from equal(f"{name}: installed at the end", sorted(drafter.skip), sorted(golden))
        search, state = drafter.search, prompt["state_after"]
        ours = (search.opt_iter, search.best, search.tolerance, search.active)
        theirs = tuple(state[key] for key in ("opt_iter", "best", "tolerance", "optimization_active"))
        yield from equal(f"{name}: state", ours, theirs)


def observed(drafter: Any) -> list[dict[str, Any]]:
    """A list that fills with every candidate that the drafter's search judges."""
    search, seen = drafter.search, []
    judge_it = type(search).judge

    def watched(proposal: Any, score: float) -> bool:
        before = search.best
        improved = judge_it(search, proposal, score)
        after = {"best_after": search.best, "tolerance": search.tolerance, "optimization_active": search.active}
        where = {"num_generated": drafter.num_generated, "opt_iter": search.opt_iter - 1, "best_before": before}
        seen.append({"set": proposal.sublayers, "matchness": score, "improved": improved, **where, **after})
        return improved

    search.judge = watched
    return seen


def _evaluations_differ(seen: list[dict[str, Any]], prompt: Data) -> Iterator[str]:
    generated, total = {}, 0
    for step in prompt["steps"]:
        total += step["emitted"]
        generated[step["step"]] = total
    yield from equal("number of candidates", len(seen), len(prompt["evaluations"]))
    for ours, golden in zip(seen, prompt["evaluations"], strict=False):
        where = f"candidate {golden['opt_iter']}"
        candidate = sublayers(golden["candidate"]["attn"], golden["candidate"]["mlp"])
        yield from equal(f"{where}: set", sorted(ours["set"]), sorted(candidate))
        yield from equal(f"{where}: after tokens", ours["num_generated"], generated[golden["after_step"]])
        for key in ("opt_iter", "improved", "tolerance", "optimization_active"):
            yield from equal(f"{where}: {key}", ours[key], golden[key])
        for key in ("matchness", "best_before", "best_after"):
            yield from close(f"{where}: {key}", ours[key], golden[key], absolute=MATCHNESS)
