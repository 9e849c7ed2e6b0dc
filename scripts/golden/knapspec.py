"""knapspec/: the search on a given window, the choice among its candidates, and whole generations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .official import answer, build, decoder, ids, rounds
from .outcome import Data, Outcome, close, equal, judge

if TYPE_CHECKING:
    from specbench.methods.draft_plan import Choice
    from specbench.methods.knapsack import Candidates

COSINE_SUM, RATIO = 1e-3, 1e-6  # absolute
RATE = 1e-6  # relative


def check_search(root: Path, data: Data) -> Iterator[Outcome]:
    """dp_cases.json: table, candidates, their acceptance, and the choice with and without candidate 0."""
    for case in data.get("cases", []):
        yield judge(case["id"], _search, root, case)


def check_knapspec(root: Path, data: Data) -> Iterator[Outcome]:
    """e2e.json: tokens, every step, and every optimisation."""
    for case in data.get("cases", []):
        yield judge(case["id"], _decode, root, case)


def candidates_of(folder: Path, case: Data) -> tuple[Candidates, list[int]]:
    """What the search finds on a case's window, and at how many positions each candidate agrees."""
    import torch

    from specbench.decoding.target import Target
    from specbench.methods.knapsack import Problem, Window, acceptance, integer_weights, search
    from specbench.types import Draft, Needs

    target, window = Target(decoder(folder)), case["window_ids"]
    after = tuple(range(1, target.decoder.num_sublayers))
    with torch.inference_mode():
        target.prefill([*case["prefix_ids"], window[0]], capacity=case["n"])
        draft = Draft(tokens=torch.tensor(window[1:]), spine=len(window) - 1)
        seen = target.verify(window[0], draft, Needs(residuals=after), greedy=True)
        target.cache.keep(range(len(window)))
        rows = Window(torch.stack([seen.residuals[index] for index in after]), case["n"] - case["r"])
        weights = integer_weights(case["t_attn"], case["t_mlp"], 5)
        problem = Problem(weights, weights.total(case["num_layers"]) // 2, case["tau"])
        found = search(target.decoder, target.cache, rows, problem)
        return found, acceptance(target.decoder, found, rows)


def _search(root: Path, case: Data) -> Iterator[str]:
    from specbench.methods.knapsack import integer_weights

    found, matches = candidates_of(root / case["model"], case)
    weights = integer_weights(case["t_attn"], case["t_mlp"], 5)
    yield from equal("weights", list(weights), [case["w_attn"], case["w_mlp"]])
    yield from equal("total weight", weights.total(case["num_layers"]), case["total_weight"])
    yield from equal("evaluations", found.evaluations, case["branch_evaluations"])
    yield from _table(found, case)
    golden = case["candidates"]
    yield from equal("skipped weights", found.used, [one["j"] for one in golden])
    for ours, one in zip(found.skips, golden, strict=False):
        yield from equal(f"skip set of weight {one['j']}", _flags(ours, len(one["skip"])), one["skip"])
    yield from close("cosine sums", found.scores, [one["cos_sum"] for one in golden], absolute=COSINE_SUM)
    yield from equal("matches", matches, [one["matches"] for one in golden])
    yield from _choices(found, matches, case)


def _table(found: Candidates, case: Data) -> Iterator[str]:
    occupied = {"2": 1} | {str(sublayers): len(row) for sublayers, row in enumerate(found.rows, start=3)}
    yield from equal("occupied cells", occupied, case["cells_per_row"])
    for sublayers, row in enumerate(found.rows, start=3):
        ours = [row.get(weight) for weight in range(case["budget_K"] + 1)]
        yield from close(f"scores after {sublayers}", ours, case["score_table"][sublayers], absolute=COSINE_SUM)


def _choices(found: Candidates, matches: Sequence[int], case: Data) -> Iterator[str]:
    from specbench.hardware.latency import LatencyModel
    from specbench.methods.draft_plan import CostModel, acceptance_rates, first_best, tokens_per_time

    latency = LatencyModel(attention_slope=case["c2"], attention_base=case["c3"], mlp=case["c1"])
    alphas = acceptance_rates(matches, case["r"], "mean")
    yield from close("alphas", alphas, [one["alpha"] for one in case["candidates"]], absolute=RATIO)
    costs = CostModel(latency, case["num_layers"])(case["n"], found.skips, 17)
    rates = tokens_per_time(alphas, costs)
    yield from close("tokens per time", rates.tolist(), case["tpt_table"], relative=RATE)
    yield from close("plain rate", costs.plain_rate, case["with_candidate0"]["ar_rate"], relative=RATE)
    yield from _choice("official", first_best(rates, (0, 17), first=1), case["official"], "chosen_index")
    for name, lengths in (("d_0_17", (0, 17)), ("d_1_10", (1, 10))):
        yield from _choice(name, first_best(rates, lengths), case["with_candidate0"][name], "index")


def _choice(name: str, ours: Choice, golden: Data, index: str) -> Iterator[str]:
    yield from equal(f"{name} candidate and length", [ours.index, ours.length], [golden[index], golden["d"]])
    yield from close(f"{name} tokens per time", ours.rate, golden["tpt"], relative=RATE)


def _decode(root: Path, case: Data) -> Iterator[str]:
    generator = build(
        root / case["model"],
        "method=knapspec_official",
        f"method.optimize_interval={case['optimize_interval']}",
        f"method.accumulation_steps={case['accumulation_rounds']}",
        f"method.sim_threshold={case['tau']}",
        f"method.latency=[{case['c1']},{case['c2']},{case['c3']}]",
        f"method.controller.num_draft_tokens={case['gamma']}",
        f"method.controller.threshold={case['confidence_stop']}",
    )
    found = answer(generator, case)
    yield from ids(found, case)
    yield from rounds(found, case)
    yield from _sizes(found, case)
    yield from equal(
        "optimisations after", [c.step for c in found.choices], [o["after_round"] for o in case["optimizations"]]
    )
    for record, golden in zip(found.choices, case["optimizations"], strict=False):
        yield from _optimisation(f"after round {golden['after_round']}", record.values, golden)


def _sizes(found: Any, case: Data) -> Iterator[str]:
    """The size of the set in force in every round."""
    installed = {record.step + 1: len(record.values["sublayers"]) for record in found.choices}
    size = 0
    for golden in case["rounds"]:
        size = installed.get(golden["round"], size)
        yield from equal(f"skipped sublayers in round {golden['round']}", size, golden["skipped_sublayers"])


def _optimisation(name: str, ours: Data, golden: Data) -> Iterator[str]:
    yield from equal(f"set {name}", _flags(ours["sublayers"], len(golden["skip"])), golden["skip"])
    same = {
        "cached": "n",
        "rows": "r",
        "attention_weight": "w_attn",
        "mlp_weight": "w_mlp",
        "skip_budget": "budget_K",
        "used": "js",
        "chosen": "chosen_index",
        "planned_length": "d",
    }
    for key, theirs in same.items():
        yield from equal(f"{key} {name}", ours[key], golden[theirs])
    yield from close(f"alphas {name}", ours["alphas"], golden["alphas"], absolute=RATIO)
    yield from close(f"tokens per time {name}", ours["predicted_tokens_per_second"], golden["tpt"], relative=RATE)


def _flags(skip: Iterable[int], count: int) -> list[int]:
    skipped = set(skip)
    return [int(index in skipped) for index in range(count)]
