"""ouroboros/: whole generations of both published variants, with the phrases known after every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .official import build, decoder
from .outcome import Data, Outcome, equal, judge

if TYPE_CHECKING:
    from specbench.decoding.loop import SpeculativeDecoding
    from specbench.decoding.protocol import Request
    from specbench.types import Draft, Verdict

METHODS = {"lib": "ouroboros_official", "specbench": "ouroboros_spec_bench_official"}
SLACK = 64  # tokens by which the published loops may go beyond their limit


def check_ouroboros(root: Path, data: Data) -> Iterator[Outcome]:
    """lib.json and specbench.json: tokens, every step, and the pool of phrases; prompts of a case share it."""
    for case in data.get("cases", []):
        yield judge(case["id"], _case, root, case)


def _case(root: Path, case: Data) -> Iterator[str]:
    generator = build(
        root / case["target_model"],
        f"method={METHODS[case['variant']]}",
        f"method.level={case['lookahead_level']}",
        f"method.window={case['window_size']}",
        f"method.guess_set={case['guess_set_size']}",
        f"method.suffix.k={case['topk_suffixes']}",
        f"method.controller.num_draft_tokens={case['gamma']}",
        draft=decoder(root / case["draft_model"]),
    )
    engine = generator.drafter.model.engine  # type: ignore[attr-defined]
    yield from equal("phrase length", engine.pool.length, case["phrase_len"])
    for number, prompt in enumerate(case["prompts"]):
        yield from _prompt(generator, case, prompt, f"prompt {number}")
    ours, golden = engine.pool.contents(), {int(token): phrases for token, phrases in case["final_pool"].items()}
    yield from equal("tokens with phrases", sorted(ours), sorted(golden))
    for token, phrases in golden.items():
        yield from equal(f"phrases after {token}", [list(phrase) for phrase in ours.get(token, [])], phrases)


@dataclass
class Step:
    """One step of ours: the draft, what was made of it, and what is known after it."""

    draft: Draft
    verdict: Verdict
    rows_filled: int
    keys: int
    phrases: int


def _prompt(generator: SpeculativeDecoding, case: Data, prompt: Data, name: str) -> Iterator[str]:
    import torch

    drafter: Any = generator.drafter
    with torch.inference_mode():
        request = _begin(generator, case, prompt)
        window = drafter.model.engine.window.rows
        yield from equal(f"{name}: first window", window, [prompt["initial_window_row"]])
        for golden in prompt["steps"]:
            where = f"{name} step {golden['step']}"
            yield from equal(f"{where}: context", len(request.committed), golden["prefix_len"])
            yield from _step_differs(_step(generator, request), golden, case["phrase_len"], where)
    found, golden = request.committed[len(prompt["prompt_ids"]) :], prompt["output_ids"]
    end = _end(golden, case)  # beyond it the published loops differ in what they leave
    yield from equal(f"{name}: ids", found[:end], golden[:end])
    yield from equal(f"{name}: pool", _size(drafter), prompt["pool_size_after"])


def _end(ids: Sequence[int], case: Data) -> int:
    """How many tokens count: up to the end token or the limit."""
    stops = [place for place, token in enumerate(ids, start=1) if token == case["eos_id"]]
    return min([*stops, case["max_new_tokens"]])


def _begin(generator: SpeculativeDecoding, case: Data, prompt: Data) -> Request:
    from specbench.decoding.protocol import Request
    from specbench.decoding.sampling import GeneratorDraws

    committed, eos = list(prompt["prompt_ids"]), case["eos_id"]
    budget = case["max_new_tokens"] + SLACK
    request = Request(
        target=generator.target,
        committed=committed,
        sampling=generator.sampling,
        draws=GeneratorDraws(0),
        stop_ids=() if eos is None else (eos,),
        max_new_tokens=budget,
        timer=generator.timer,
    )
    generator.drafter.begin(request)
    generator.target.prefill(committed, capacity=len(committed) + budget + 256)
    return request


def _step(generator: SpeculativeDecoding, request: Request) -> Step:
    """One step as the published loops make it: not shortened by any limit, not cut at an end token."""
    from specbench.decoding.loop import commit
    from specbench.decoding.verification import verify

    drafter: Any = generator.drafter
    needs, root = drafter.needs(), request.committed[-1]
    draft = drafter.propose(SLACK)
    result = request.target.verify(root, draft, needs, greedy=True)
    verdict = verify(draft, result, sampling=request.sampling, draws=request.draws)
    commit(request, verdict)
    drafter.observe(verdict, result)
    size = _size(drafter)
    return Step(draft, verdict, len(drafter.model.engine.window.rows), size["keys"], size["phrases"])


def _size(drafter: Any) -> dict[str, int]:
    contents = drafter.model.engine.pool.contents()
    return {"keys": len(contents), "phrases": sum(map(len, contents.values()))}


def _step_differs(ours: Step, golden: Data, length: int, where: str) -> Iterator[str]:
    draft, verdict = ours.draft, ours.verdict
    count = draft.spine or 0
    tokens, parents = draft.tokens.tolist(), draft.parents or ()
    leaves = [row for row in range(count, len(tokens)) if row not in parents]
    suffixes = [_phrase(row, tokens, parents, count) for row in leaves]
    yield from equal(f"{where}: drafted", tokens[:count], golden["draft_ids"])
    yield from equal(f"{where}: accepted", verdict.num_accepted_spine, golden["accepted"])
    yield from equal(f"{where}: phrases tried", draft.info["num_suffixes"], golden["num_suffixes"])
    yield from equal(f"{where}: phrases", sorted(suffixes), sorted(set(map(tuple, golden["suffixes"]))))
    yield from equal(f"{where}: committed", len(verdict.tokens), golden["committed"])
    yield from equal(f"{where}: draft forwards", draft.info["draft_forwards"], golden["draft_forwards"])
    yield from equal(f"{where}: window rows", ours.rows_filled, golden["window_rows_filled"])
    yield from equal(f"{where}: pool", {"keys": ours.keys, "phrases": ours.phrases}, golden["pool_after"])
    if golden["phrase_index"] >= 0:  # the last token of a phrase does not count there: see the bonus token
        theirs = golden["suffixes"][golden["phrase_index"]][: golden["phrase_tokens"]]
        won = [tokens[row] for row in verdict.rows[count:]][: golden["phrase_tokens"]]
        yield from equal(f"{where}: winning phrase", won, theirs)


def _phrase(row: int, tokens: list[int], parents: tuple[int, ...], count: int) -> tuple[int, ...]:
    return () if row < count else (*_phrase(parents[row], tokens, parents, count), tokens[row])
