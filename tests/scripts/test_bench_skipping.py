"""The benchmark blocks about skipped sublayers, on a tiny model: what is counted and compared; no test on seconds."""

from types import SimpleNamespace

import pytest
import torch

from scripts.bench import answers, host, longdoc, order, search, self_speculation, skipping
from scripts.bench.answers import Answer
from scripts.bench.stage import Settings, Stage
from specbench.methods import knapsack
from specbench.models.tiny import SPEC
from specbench.types import ChoiceRecord, StepRecord

SMALL = Settings(
    rounds=2,
    memory_spec=SPEC,
    search_context=40,
    search_rows=8,
    search_prompts=2,
    skip_sets=3,
    host_tokens=40,
    long_contexts=(48, 96),
    order_samples=2,
    order_tokens=12,
)
LAYERS = SPEC.num_layers


@pytest.fixture(scope="module")
def stage():
    return Stage("tiny:plain", "float32", 1)


@pytest.fixture(scope="module")
def chooser(stage):
    return search.optimiser(stage, "method.profile_lengths=[16,64]", "method.profile_iters=2")


@pytest.fixture(scope="module")
def case(stage):
    return search.verified(stage, stage.prompt(33), 8)


def by_name(figures):
    return {figure.name: figure for figure in figures}


def record(drafted, accepted, emitted):
    return StepRecord(0, 9, drafted, drafted, 0, accepted, accepted, emitted, 0.1, 0.1, 0.1, 0.0)


def answer(method, prompt, seconds, records=(), choices=()):
    tokens = sum(step.num_emitted for step in records) or 10
    return Answer("kind", prompt, method, seconds, tokens, len(records), tuple(range(tokens)), records, choices)


# ---- passes without some sublayers


def test_random_sets_leave_the_first_and_the_last_layer_alone_and_repeat():
    sets = skipping.random_sets(50, 6)
    assert sets == skipping.random_sets(50, 6)
    assert set().union(*sets) == set(range(2, 10))
    assert {len(skip) for skip in sets} == set(range(1, 9))


@pytest.mark.slow
def test_a_draft_step_is_compared_with_a_full_one_and_the_cost_model_with_both(stage):
    figures = by_name(skipping.skipping(stage, SMALL))
    ratio = figures["draft step without layers 1, 3, 5, .."].value / figures["full step"].value
    assert figures["draft step over full step"].value == pytest.approx(ratio)
    assert figures["draft step without layers 1, 3, 5, .."].detail["skipped"] == f"{LAYERS // 2} layers"
    assert figures["error of the cost model, median"].value <= figures["error of the cost model, largest"].value


# ---- one search


def test_a_window_ends_where_the_cache_ends(case):
    assert (case.context, case.window.start, case.window.rows) == (40, 32, 8)


def test_a_set_agrees_with_the_model_as_often_as_the_search_counted(stage, chooser, case):
    with torch.inference_mode():
        found = knapsack.search(stage.decoder, case.target.cache, case.window, chooser.problem(case.context))
        matches = knapsack.acceptance(stage.decoder, found, case.window)
    assert [search.agreement(stage.decoder, case, skip) for skip in found.skips] == matches
    assert len(set(matches)) > 1


def test_the_floor_counts_every_cell_and_every_candidate(stage, chooser, case):
    with torch.inference_mode():
        found = knapsack.search(stage.decoder, case.target.cache, case.window, chooser.problem(case.context))
    calls = search.work(SPEC, found, case)
    assert sum(rows for rows, _ in calls[:-1]) == found.evaluations * 8
    d, width = SPEC.hidden_size, SPEC.num_heads * SPEC.head_dim
    kv = SPEC.num_kv_heads * SPEC.head_dim
    attention = 2 * (2 * d * width + 2 * d * kv) + 4 * 40 * width
    assert calls[0] == (8, 8 * attention)
    assert calls[1][1] / calls[1][0] == 2 * 3 * d * SPEC.intermediate_size
    assert calls[-1] == (len(found) * 8, 2 * len(found) * 8 * d * SPEC.vocab_size)


@pytest.mark.slow
def test_a_search_is_compared_with_its_products_and_with_thinner_ones(stage):
    figures = by_name(search.optimisation(stage, SMALL))
    over = figures["full optimisation over its products"]
    floor = figures["its products at the measured rates"].value
    assert over.value == pytest.approx(figures["one full optimisation"].value / floor)
    assert over.required == search.OVER_FLOOR
    for variant in search.THINNED:
        detail = figures[f"time over full: {variant.name}"].detail
        assert detail["windows"] == 2
        assert detail["loss_%"] <= detail["largest_loss_%"] < 100.0


def test_a_thinner_search_looks_at_less(chooser, case):
    full = search.choose(chooser, case, search.Thinning("full"))
    half = search.choose(chooser, case, search.Thinning("", rows=0.5))
    few = search.choose(chooser, case, search.Thinning("", branches=2))
    assert (full.why["rows"], half.why["rows"]) == (8, 4)
    assert few.why["evaluations"] < full.why["evaluations"]
    assert search.choose(chooser, case, search.Thinning("", threshold=1.0)).skip in (None, frozenset())


def test_worth_is_the_rate_that_the_search_predicted(chooser, case):
    full = search.choose(chooser, case, search.Thinning("full"))
    assert search.worth(chooser, case, full.skip) == pytest.approx(full.why["predicted_tokens_per_second"])


# ---- knapspec against AR


def test_shares_of_speculation_are_counted_over_steps_and_tokens():
    steps = (record(0, 0, 1), record(4, 3, 4), record(2, 0, 1))
    choices = (
        ChoiceRecord(1, 9, "skip_set", {"reason": "search", "search_s": 0.2}),
        ChoiceRecord(2, 9, "skip_set", {"reason": "guard"}),
    )
    found = answers.drafting([answer("knapspec", "a", 1.0, steps, choices)])
    assert found["speculating_steps_%"] == pytest.approx(200 / 3)
    assert found["speculated_tokens_%"] == pytest.approx(500 / 6)
    assert (found["acceptance"], found["mat"]) == (0.5, 2.0)
    assert (found["recorded_searches"], found["guard_stops"]) == (1, 1)
    assert found["adapting_%"] == pytest.approx(30.0)


def test_variants_are_compared_on_their_own_prompts():
    def given():
        for prompt in ("a", "b"):
            yield answer("ar", prompt, 1.0, (record(0, 0, 1),) * 10)
            yield answer("knapspec", prompt, 1.0 if prompt == "a" else 3.0, (record(0, 0, 1),) * 10)
        for name in self_speculation.VARIANTS:
            yield answer(name, "a", 2.0, (record(0, 0, 1),) * 10)

    figures = by_name(self_speculation.figures(list(given()), noisy=False))
    whole = figures["knapspec over ar, search included"]
    assert (whole.value, whole.required, whole.met) == (0.5, self_speculation.OVER_AR, False)
    assert figures["knapspec over ar, the variants' prompts"].value == 1.0
    assert figures["without guard, over ar"].value == 0.5
    assert figures["without guard, over ar"].detail["prompts"] == 1
    assert figures["steps that speculated"].value == 0.0


@pytest.mark.slow
def test_knapspec_answers_every_prompt_and_its_variants_some(stage, monkeypatch):
    monkeypatch.setattr(self_speculation, "figures", lambda found, *, noisy: found)
    small = Settings(memory_spec=SPEC, samples=2, variant_samples=1, sample_tokens=8)
    found = self_speculation.self_speculation(stage, small)
    asked = {name: len(answers.given_by(found, name)) for name in ("ar", "knapspec", *self_speculation.VARIANTS)}
    assert asked == {"ar": 2, "knapspec": 2, **dict.fromkeys(self_speculation.VARIANTS, 1)}
    assert all(one.ids == answers.given_by(found, "ar")[one.prompt].ids for one in found)


# ---- time outside the model


def test_parts_of_the_model_are_counted_once(stage, case):
    decoder, cache = stage.decoder, case.target.cache
    hidden = decoder.embed(torch.zeros(1, 1, dtype=torch.int64))
    with host.model_seconds(decoder) as seconds, torch.inference_mode():
        decoder.forward(torch.zeros(1, 1, dtype=torch.int64), cache, start=cache.length)
        assert len(seconds) == 1
        decoder.sublayer(0, hidden, cache, cache.length)
        decoder.head(hidden)
    assert len(seconds) == 3


@pytest.mark.slow
def test_every_self_drafting_method_drafts_and_searches_while_its_host_time_is_taken(stage):
    figures = by_name(host.host_share_skipping(stage, SMALL))
    assert len(figures) == 5
    for name, figure in figures.items():
        assert figure.detail["speculating_steps_%"] > 0.0, name
        assert figure.detail["recorded_searches"] > 0, name
        assert 0.0 < figure.value < 100.0
        assert figure.required == host.REQUIRED_SKIPPING


# ---- long contexts


@pytest.mark.slow
def test_long_contexts_show_latencies_shares_and_their_change(stage):
    figures = by_name(longdoc.longdoc(stage, SMALL))
    shares = [figures[f"attention skipped at {context}"].value for context in (48, 96)]
    change = figures["attention skipped, longest minus shortest context"].value
    assert change == pytest.approx(shares[1] - shares[0])
    assert figures["tA at 96"].value >= figures["tA at 48"].value
    assert all(figures[f"predicted gain of drafting at {context}"].value > 0.0 for context in (48, 96))


def test_equal_costs_change_weights_and_budget_only(chooser):
    costs = SimpleNamespace(attention=lambda context: 3e-3, mlp=1e-3)
    dear = SimpleNamespace(
        problem=lambda context: knapsack.Problem(knapsack.Weights(3, 1), 12, 0.5),
        options=chooser.options,
        decoder=chooser.decoder,
        latency=costs,
    )
    assert longdoc.equal_costs(dear, 96) == knapsack.Problem(knapsack.Weights(1, 1), LAYERS, 0.5)


# ---- several orders


def test_the_first_order_is_as_given_and_the_others_hold_the_same_samples():
    work = [("kind", number) for number in range(8)]
    assert order.shuffled(work, 0) == work
    assert order.shuffled(work, 1) != work
    assert sorted(order.shuffled(work, 1)) == work
    assert order.shuffled(work, 1) == order.shuffled(work, 1)


@pytest.mark.slow
def test_orders_of_a_method_are_compared(stage):
    figures = by_name(order.order(stage, SMALL))
    for method in order.METHODS:
        first, second = (figures[f"{method} over ar, {name}"] for name in ("as they come", "shuffled 1"))
        assert first.detail["prompts"] == 2
        apart = figures[f"{method}: fastest over slowest order"]
        assert apart.value == pytest.approx(max(first.value, second.value) / min(first.value, second.value))
