"""del/e2e.json: whole generations with the exits, thresholds and shares of hits after every step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .official import answer, build, ids, rounds
from .outcome import Data, Outcome, close, equal, judge

STATISTIC = 1e-4  # absolute


def check_del(root: Path, data: Data) -> Iterator[Outcome]:
    """Tokens, steps, and what was learnt after each."""
    for case in data.get("cases", []):
        yield judge(case["id"], _decode, root, case)


def _decode(root: Path, case: Data) -> Iterator[str]:
    generator = build(
        root / case["model"],
        "method=del_official",
        f"method.omega={case['omega']}",
        f"method.planned_length_max={case['gamma_max'] - 1}",
        f"method.controller.num_draft_tokens={case['max_draft']}",
    )
    seen: list[dict[str, Any]] = []
    _watch(generator.drafter, seen)
    found = answer(generator, case)
    yield from ids(found, case)
    yield from rounds(found, case)
    for number, (ours, golden) in enumerate(zip(seen, case["rounds"], strict=True)):
        for name in ("exit_layer", "next_exit_layer", "next_gamma"):
            yield from equal(f"round {number} {name}", ours[name], golden[name])
        for name in ("tau_used", "alpha", "tau"):
            yield from close(f"round {number} {name}", ours[name], golden[name], absolute=STATISTIC)


def _watch(drafter: Any, seen: list[dict[str, Any]]) -> None:
    """Note what the drafter used and learnt in each step."""
    observe = drafter.observe

    def noted(verdict: Any, result: Any) -> None:
        untaught = drafter.statistics.empty  # the official code starts at a threshold of 0, which never stops
        used = {"exit_layer": drafter.plan.exit_layer, "tau_used": 0.0 if untaught else drafter.threshold}
        observe(verdict, result)
        learnt = {"alpha": drafter.statistics.alphas(), "tau": drafter.statistics.thresholds()}
        seen.append(used | learnt | {"next_exit_layer": drafter.plan.exit_layer, "next_gamma": drafter.plan.length})

    drafter.observe = noted
