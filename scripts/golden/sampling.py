"""sampling/cases.json: the exact distributions of verification, sibling acceptance and logit processing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.sampling import probabilities
from specbench.decoding.verification import verify
from specbench.types import Draft, Sampling, VerifyResult

from .enumeration import BranchDraws, all_sequences, continued, distribution
from .outcome import Data, Outcome, close, judge

TOLERANCE = 1e-12
PLAIN = Sampling(temperature=1.0)
RULES = {"rejection": "rejection", "point_mass": "rejection", "sample_match": "sample_match"}


class Round(NamedTuple):
    """What one verify step can end in."""

    num_accepted: int
    rows: tuple[int, ...]
    tokens: tuple[int, ...]


def check_sampling(root: Path, data: Data) -> Iterator[Outcome]:
    """Cases per rule, siblings and logit processing, each against full enumeration of our own code in float64."""
    for case in data.get("cases", []):
        for rule, golden in case["rules"].items():
            yield judge(f"{case['id']} {rule}", _rule, case, rule, golden)
    for case in data.get("siblings", []):
        yield judge(case["id"], _siblings, case)
    for case in data.get("logit_processing", []):
        yield judge(case["id"], _logits, case)


def verify_round(draft: Draft, p: Tensor, rule: str, draws: BranchDraws) -> Round:
    """Our verification of `draft` when the target's distributions are exactly p [T, V]."""
    verdict = verify(draft, VerifyResult(logits=p.log()), sampling=PLAIN, draws=draws, rule=rule)
    return Round(verdict.num_accepted, verdict.rows, verdict.tokens)


class Tables:
    """p and q of a case as functions of the prefix."""

    def __init__(self, case: Data) -> None:
        self.vocab = int(case["vocab"])
        self.gamma = int(case["gamma"])
        self._tables = {name: [torch.tensor(rows, dtype=torch.float64) for rows in case[name]] for name in "pq"}

    def row(self, name: str, prefix: Sequence[int]) -> Tensor:
        index = 0
        for token in prefix:
            index = index * self.vocab + token
        return self._tables[name][len(prefix)][index]

    def rows(self, name: str, path: Sequence[int]) -> Tensor:
        """The distributions [len(path) + 1, V] after every prefix of `path`, the empty one first."""
        return torch.stack([self.row(name, path[:length]) for length in range(len(path) + 1)])


def one_round(tables: Tables, rule: str, draws: BranchDraws) -> Round:
    """Draft gamma tokens as `rule` says, then verify them."""
    path: list[int] = []
    for _ in range(tables.gamma):
        q = tables.row("q", path)
        path.append(int(q.argmax()) if rule == "point_mass" else draws.categorical(q))
    draft = Draft(tokens=torch.tensor(path), spine=tables.gamma)
    if rule == "rejection":
        draft = replace(draft, q=tables.rows("q", path[:-1]), q_row=tuple(range(tables.gamma)))
    return verify_round(draft, tables.rows("p", path), RULES[rule], draws)


def _rule(case: Data, rule: str, golden: Data) -> Iterator[str]:
    tables = Tables(case)
    rounds = distribution(lambda draws: one_round(tables, rule, draws))
    lengths, outputs = _marginals(rounds, tables.gamma)
    expected = sum(length * probability for length, probability in enumerate(lengths))
    tokens = sum(len(output) * probability for output, probability in outputs.items())
    whole = continued(outputs, tables.gamma + 1, lambda prefix: tables.row("p", prefix).tolist())
    joint = [whole.get(sequence, 0.0) for sequence in all_sequences(tables.vocab, tables.gamma + 1)]
    yield from _close("acceptance_length_distribution", lengths, golden["acceptance_length_distribution"])
    yield from _close("expected_accepted", expected, golden["expected_accepted"])
    yield from _close("expected_tokens", tokens, golden["expected_tokens"])
    yield from _same_outputs(outputs, {tuple(one["tokens"]): one["prob"] for one in golden["round_outputs"]})
    yield from _close("joint", joint, case["joint"])
    if rule == "rejection":
        yield from _close("first_position_acceptance", 1.0 - lengths[0], case["first_position_acceptance"])


def _marginals(rounds: dict[Round, float], gamma: int) -> tuple[list[float], dict[tuple[int, ...], float]]:
    lengths = [0.0] * (gamma + 1)
    outputs: dict[tuple[int, ...], float] = defaultdict(float)
    for end, probability in rounds.items():
        lengths[end.num_accepted] += probability
        outputs[end.tokens] += probability
    return lengths, outputs


def _same_outputs(ours: dict[tuple[int, ...], float], golden: dict[tuple[int, ...], float]) -> Iterator[str]:
    for output in sorted(ours.keys() | golden.keys()):
        yield from _close(f"round output {list(output)}", ours.get(output, 0.0), golden.get(output, 0.0))


def _siblings(case: Data) -> Iterator[str]:
    p = torch.tensor(case["p"], dtype=torch.float64)
    q = torch.tensor(case["q"], dtype=torch.float64)
    count = int(case["num_siblings"])
    # What follows an accepted sibling does not matter here, so it is one certain token.
    certain = torch.zeros(count, p.shape[0], dtype=torch.float64)
    certain[:, 0] = 1.0
    target = torch.cat([p[None], certain])

    def run(draws: BranchDraws) -> Round:
        left, tokens = q.clone(), []
        for _ in range(count):
            tokens.append(draws.categorical(left))
            left[tokens[-1]] = 0.0
        draft = Draft(torch.tensor(tokens), parents=(-1,) * count, q=q[None], q_row=(0,) * count)
        return verify_round(draft, target, "rejection", draws)

    accepted, output = [0.0] * (count + 1), [0.0] * p.shape[0]
    for end, probability in distribution(run).items():
        accepted[end.rows[0] if end.rows else count] += probability
        output[end.tokens[0]] += probability
    yield from _close("accepted_sibling_distribution", accepted[:count], case["accepted_sibling_distribution"])
    yield from _close("none_accepted", accepted[count], case["none_accepted"])
    yield from _close("output_distribution", output, case["output_distribution"])


def _logits(case: Data) -> Iterator[str]:
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    sampling = Sampling(temperature=case["temperature"], top_k=case["top_k"], top_p=case["top_p"])
    yield from _close("probs", probabilities(logits, sampling).tolist(), case["probs"])


def _close(what: str, ours: float | Sequence[float], golden: float | Sequence[float]) -> Iterator[str]:
    return close(what, ours, golden, absolute=TOLERANCE)
