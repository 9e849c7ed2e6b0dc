"""A rule may look at what is drafted and must submit all of it: then the target's distribution is kept, exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from scripts.golden.enumeration import BranchDraws, continued, distribution
from specbench.controllers.adaptive import DraftVerify
from specbench.controllers.base import ControllerBase
from specbench.controllers.block_rules import BlockRule, CostRule
from specbench.controllers.confidence import ConfidenceStop, DynamicConfidence
from specbench.controllers.entropy import EntropyStop
from specbench.controllers.fixed import FixedLength
from specbench.controllers.gate import Gate, GateShape
from specbench.controllers.heads import ScalarHead
from specbench.controllers.pacer import PacerStop
from specbench.controllers.step_gate import StepGate
from specbench.controllers.trained import ScalarStop
from specbench.decoding.protocol import Block, Controller, Request
from specbench.decoding.verification import verify
from specbench.methods.chain import ChainDrafter
from specbench.models.spec import ModelSpec
from specbench.types import Draft, Sampling, VerifyResult
from tests.decoding.exact import Language

CAP, VOCAB, STATE = 3, 3, 4
LENGTH = CAP + 1
SAMPLINGS = {"plain": Sampling(temperature=1.0), "warped": Sampling(temperature=0.8, top_p=0.75)}


class Parity(ControllerBase):
    """Goes on after blocks with an even sum only."""

    def more(self, block: Block) -> bool:
        self.score = float(sum(block.tokens) % 2)
        return self.score == 0.0


def likely_tokens() -> ScalarHead:
    """A classifier that believes in likely tokens."""
    head = ScalarHead()
    with torch.no_grad():
        head.out.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
        head.out.bias.fill_(1.0)
    return head.requires_grad_(False)


def gate(**shape: Any) -> StepGate:
    """A random layer on random embeddings of the three tokens, which believes in one of them and not in another."""
    torch.manual_seed(2)
    spec = ModelSpec("llama", 1, STATE, 2, 1, 2, 8, VOCAB, 64)
    made = Gate(spec, torch.randn(VOCAB, STATE), GateShape(**shape))
    for tensor in made.trained():
        torch.nn.init.normal_(tensor)
    live = StepGate(made.requires_grad_(False), CAP)
    made.offset.fill_(-float(torch.tensor([first_chance(live, token) for token in range(VOCAB)]).logit().median()))
    return live


def first_chance(live: StepGate, token: int) -> float:
    """What it says of a draft's first token, when a second one follows."""
    live.restart([0])
    one = torch.full((2,), 0.5)
    block = Block(0, [token, 0], prob=one, entropy=one, margin=one, hidden=torch.zeros(2, STATE))
    return live.chances(block)[0]


def pacer(block_size: int = 1, agg: str = "mean", **shape: Any) -> PacerStop:
    rule = BlockRule(threshold=0.5, growth=1.2, agg=agg)
    return PacerStop(num_draft_tokens=CAP, block_size=block_size, gate=gate(**shape), rule=rule)


def pacer_by_cost() -> PacerStop:
    controller = pacer(agg="prod")
    controller.cost = CostRule(draft=0.1, check=0.05, rate=1.5)
    return controller


RULES: dict[str, Callable[[], Controller]] = {
    "fixed": lambda: FixedLength(CAP),
    "the tokens, one by one": lambda: Parity(CAP),
    "the tokens, in twos": lambda: Parity(CAP, block_size=2),
    "confidence": lambda: ConfidenceStop(CAP, threshold=0.5),
    "confidence in twos": lambda: ConfidenceStop(CAP, block_size=2, threshold=0.3),
    "dynamic confidence": lambda: DynamicConfidence(CAP, threshold=0.5),
    "entropy": lambda: EntropyStop(CAP, threshold=0.645),
    "entropy of what is sampled": lambda: EntropyStop(CAP, threshold=0.69, distribution="warped"),
    "draft and verify": lambda: DraftVerify(CAP),
    "a classifier": lambda: ScalarStop(num_draft_tokens=CAP, head=likely_tokens(), threshold=0.5),
    "a gate": pacer,
    "a gate in twos, of states that have read": lambda: pacer(2, agg="cumprod", feature="own_state"),
    "a gate's worth": pacer_by_cost,
}


def request(language: Language, draws: BranchDraws, stop_ids: frozenset[int]) -> Request:
    target = SimpleNamespace(decoder=SimpleNamespace(device="cpu"))
    fields = {"target": target, "committed": [0], "sampling": language.sampling, "draws": draws, "timer": None}
    return Request(**cast(Any, fields), stop_ids=stop_ids, max_new_tokens=LENGTH)


def drafted(language: Language, controller: Controller, draws: BranchDraws, stop_ids: frozenset[int]) -> Draft:
    """What the chain drafts after an empty prefix when the draft model is the language's q0."""
    fed: list[int] = []

    def forward(ids: Tensor) -> tuple[Tensor, Tensor]:
        fed.extend(ids[0].tolist())
        return language.logits("q0", tuple(fed[1:])), torch.zeros(STATE)

    asked = request(language, draws, stop_ids)
    controller.begin(asked)
    return ChainDrafter(controller, VOCAB, asked).draft(forward, [0], budget=CAP)


def verdict(language: Language, draft: Draft, draws: BranchDraws) -> tuple[int, ...]:
    tokens = draft.tokens.tolist()
    logits = torch.stack([language.logits("p", tuple(tokens[:row])) for row in range(len(tokens) + 1)])
    return verify(draft, VerifyResult(logits=logits), sampling=language.sampling, draws=draws).tokens


def deviation(language: Language, run: Callable[[BranchDraws], tuple[int, ...]]) -> float:
    """Largest difference between the joint distribution of what comes out and the target's own."""
    found = continued(distribution(run), LENGTH, lambda prefix: language.probs("p", prefix).tolist())
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return max(abs(found.get(sequence, 0.0) - chance) for sequence, chance in language.joint(LENGTH).items())


def mixes() -> list[Any]:
    """Every rule, sampling and stop id; each rule in one mix always, the mixes in turn, the others when slow."""
    settings = list(itertools.product(SAMPLINGS, [(), (1,)]))
    return [
        pytest.param(rule, *mix, marks=() if place == number % len(settings) else pytest.mark.slow)
        for number, rule in enumerate(RULES)
        for place, mix in enumerate(settings)
    ]


@pytest.mark.parametrize(("name", "warping", "stop_ids"), mixes())
def test_content_dependent_stopping_keeps_the_targets_distribution(
    name: str, warping: str, stop_ids: tuple[int, ...]
) -> None:
    lengths = set()
    rule, sampling = RULES[name], SAMPLINGS[warping]
    for seed in (0, 1, 3, 5):
        language = Language(VOCAB, seed=seed, sampling=sampling)

        def run(draws: BranchDraws, language: Language = language) -> tuple[int, ...]:
            draft = drafted(language, rule(), draws, frozenset(stop_ids))
            lengths.add(len(draft))
            return verdict(language, draft, draws)

        assert deviation(language, run) < 1e-12
    assert len(lengths) > 1 or (name == "fixed" and not stop_ids)


def test_dropping_a_token_for_what_it_is_would_be_noticed() -> None:
    """The biased variant: a doubted token is not submitted."""
    language = Language(VOCAB, seed=3)

    def run(draws: BranchDraws) -> tuple[int, ...]:
        draft = drafted(language, ConfidenceStop(CAP, threshold=0.5), draws, frozenset())
        assert draft.q is not None
        if draft.info["stop_reason"] == "rule":
            kept = len(draft) - 1
            draft = Draft(draft.tokens[:kept], q=draft.q[:kept], q_row=tuple(range(kept)), spine=kept)
        return verdict(language, draft, draws)

    assert deviation(language, run) > 1e-3


class Meddling(ControllerBase):
    """Tries to change what was drafted."""

    chain: ChainDrafter | None = None

    def more(self, block: Block) -> bool:
        cast(list[int], block.tokens).clear()
        if self.chain is not None:
            self.chain._tokens.pop()
        return False


def test_a_rule_cannot_take_back_what_is_drafted() -> None:
    language, draws = Language(VOCAB), BranchDraws(())
    assert len(drafted(language, Meddling(CAP), draws, frozenset())) == 1
    controller = Meddling(CAP)
    controller.chain = ChainDrafter(controller, VOCAB, request(language, draws, frozenset()))
    with pytest.raises(AssertionError, match="every drafted token is submitted"):
        controller.chain.draft(lambda ids: (language.logits("q0", ()), torch.zeros(1)), [0], budget=CAP)


class Noting(ControllerBase):
    """Remembers what it was asked and told."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.asked: list[Block] = []
        self.told: list[Block] = []

    def more(self, block: Block) -> bool:
        self.asked.append(block)
        self.score = 0.5 + len(self.asked)
        return len(self.asked) < 3

    def ended(self, block: Block) -> None:
        self.told.append(block)


@pytest.mark.parametrize(
    ("cap", "size", "budget", "reason", "lengths"),
    [
        (5, 2, 9, "cap", (2, 2, 1)),
        (5, 2, 4, "budget", (2, 2)),
        (9, 2, 9, "rule", (2, 2, 2)),
        (4, 4, 9, "cap", (4,)),
        (3, 5, 9, "cap", (3,)),
    ],
)
def test_steps_say_why_they_ended_and_nobody_is_asked_in_vain(
    cap: int, size: int, budget: int, reason: str, lengths: tuple[int, ...]
) -> None:
    language, controller = Language(VOCAB), Noting(num_draft_tokens=cap, block_size=size)
    chain = ChainDrafter(controller, VOCAB, request(language, BranchDraws(()), frozenset()))
    draft = chain.draft(lambda ids: (language.logits("q0", ()), torch.zeros(1)), [0], budget=budget)
    assert draft.info["stop_reason"] == reason
    assert draft.info["block_lengths"] == lengths
    judged = len(lengths) - (reason != "rule")
    assert draft.info["block_scores"] == tuple(1.5 + number for number in range(judged))
    assert len(controller.asked) == judged
    assert [block.first for block in controller.told] == ([] if reason == "rule" else [sum(lengths[:-1])])


@pytest.mark.parametrize(
    ("planned", "cap", "budget", "reason"),
    [(3, 5, 9, "planned"), (3, 2, 9, "cap"), (9, 5, 3, "budget"), (3, 5, 3, "budget"), (None, 5, 3, "budget")],
)
def test_a_planned_length_is_not_the_end_of_the_answer(planned: int | None, cap: int, budget: int, reason: str) -> None:
    language, controller = Language(VOCAB), Noting(num_draft_tokens=cap, block_size=9)
    chain = ChainDrafter(controller, VOCAB, request(language, BranchDraws(()), frozenset()))
    forward = lambda ids: (language.logits("q0", ()), torch.zeros(1))  # noqa: E731
    draft = chain.draft(forward, [0], budget=budget, planned=planned)
    assert draft.info["stop_reason"] == reason
    assert len(draft.tokens) == min(planned or 99, cap, budget)


def test_a_stop_id_ends_the_block_and_is_its_last_token() -> None:
    language, controller = Language(VOCAB), Noting(num_draft_tokens=5, block_size=5)
    chain = ChainDrafter(controller, VOCAB, request(language, BranchDraws(()), frozenset({0})))
    draft = chain.draft(lambda ids: (torch.tensor([9.0, 1.0, 1.0]).double(), torch.zeros(1)), [0], budget=9)
    assert draft.tokens.tolist() == [0]
    assert draft.info["stop_reason"] == "stop_id"
    assert draft.info["block_lengths"] == (1,)
    assert not controller.asked


def test_raw_entropy_is_that_of_temperature_one_and_entropy_that_of_what_is_sampled() -> None:
    language = Language(VOCAB, sampling=Sampling(temperature=2.0, top_k=2))
    controller = Noting(num_draft_tokens=2)
    controller.signals = frozenset({"entropy", "raw_entropy", "prob"})
    drafted(language, controller, BranchDraws(()), frozenset())
    logits = language.logits("q0", ())
    seen = controller.asked[0]

    def entropy(p: Tensor) -> float:
        return float(-sum(x * x.log() for x in p if x > 0))

    assert seen.raw_entropy is not None
    assert seen.entropy is not None
    assert float(seen.raw_entropy) == pytest.approx(entropy(logits.softmax(-1)))
    assert float(seen.entropy) == pytest.approx(entropy(language.probs("q0", ())))
    assert float(seen.entropy) != pytest.approx(float(seen.raw_entropy), abs=0.01)
