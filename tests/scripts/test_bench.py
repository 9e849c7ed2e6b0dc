"""The benchmark measures what it says, on a tiny model, and its page tells what was not reached; no test on seconds."""

import importlib
import json
import runpy

import pytest
import torch

from scripts.bench import fresh, fresh_process, host, lookup, measure, report, runs, speed
from scripts.bench.measure import Block, Bound, Figure
from scripts.bench.stage import PrefilledTarget, Prefixes, Settings, Stage
from specbench.decoding.target import Target
from specbench.hardware.profile import LENGTHS
from specbench.models.linear import Linear
from specbench.models.tiny import SPEC

SMALL = Settings(
    contexts=(24, 48), rounds=2, new_tokens=3, prompts=1, answer_tokens=6, growth_samples=8, memory_spec=SPEC
)


@pytest.fixture(scope="module")
def stage():
    return Stage("tiny:plain", "float32", 1)


def by_name(figures):
    return {figure.name: figure for figure in figures}


@pytest.mark.parametrize(
    ("sense", "value", "met"), [(">=", 2.0, True), (">=", 1.9, False), ("<=", 2.0, True), ("<", 2.0, False)]
)
def test_a_bound_holds_at_its_own_side(sense, value, met):
    assert Figure("f", value, required=Bound(sense, 2.0)).met is met


def test_turns_alternate_and_the_first_round_does_not_count():
    calls = []

    def action(name):
        return lambda: calls.append(name) or float(len(calls))

    samples = measure.in_turns({"a": action("a"), "b": action("b")}, rounds=2)
    assert calls == ["a", "b", "a", "b", "b", "a"]
    assert samples == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


@pytest.mark.parametrize(("values", "noisy"), [([1.0, 1.0, 1.05, 1.05], False), ([1.0, 1.0, 1.3, 1.3], True)])
def test_halves_that_disagree_make_a_figure_noisy(values, noisy):
    made = measure.figure("f", {"a": values}, lambda medians: medians["a"])
    assert made.noisy is noisy
    assert measure.halves_differ(values) is noisy


def test_foreign_load_makes_a_block_noisy():
    loads = ({"before": 0.0, "during": 0.1, "after": 0.2}, {"before": 0.0, "during": 1.0, "after": 0.0})
    assert [Block("b", (), 1.0, load, "").noisy for load in loads] == [False, True]


def test_a_prompt_taken_from_a_prefix_leaves_what_reading_it_leaves(stage):
    prompt = stage.prompt(40)
    copied = PrefilledTarget(stage.decoder, Prefixes(stage.decoder))
    read = Target(stage.decoder)
    with torch.inference_mode():
        for target in (copied, read):
            target.prefill(prompt, capacity=64)
    assert copied.cache.length == read.cache.length == 39
    for ours, theirs in zip(copied.cache.layers, read.cache.layers, strict=True):
        assert torch.equal(ours["k"][:, :39], theirs["k"][:, :39])


def test_the_library_decodes_the_same_from_handed_over_keys(stage):
    """Greedy tokens in float32 agree with our AR only if the library really sees the prompt."""
    prompt = stage.prompt(40)
    tokens = {
        name: stage.generator(name).generate(prompt, max_new_tokens=12, seed=0).tokens
        for name in ("ar", "hf_ar", "hf_pld")
    }
    assert tokens["hf_ar"] == tokens["ar"]
    assert tokens["hf_pld"] == tokens["ar"]


def test_speed_figures_cover_every_context(stage):
    figures = by_name(speed.ar_against_library(stage, SMALL))
    assert {f"ar over hf_ar at {context}" for context in SMALL.contexts} <= set(figures)
    ratio = figures["hf_ar at 24"].value / figures["ar at 24"].value
    assert figures["ar over hf_ar at 24"].value == pytest.approx(ratio)


def test_the_floor_calls_every_linear_layer_of_a_step(stage):
    calls = speed.linear_calls(stage.decoder)
    assert len(calls) == 4 * SPEC.num_layers + 1
    assert [call().shape[-1] for call in calls[-2:]] == [SPEC.hidden_size, SPEC.vocab_size]
    figures = by_name(speed.floor(stage, SMALL))
    assert all(figure.value > 0 for figure in figures.values())
    assert "ar step over its floor at 24" in figures


def test_the_curve_has_every_length_and_judges_its_order(stage):
    figures = by_name(speed.verify_cost(stage, SMALL))
    assert {f"t({length}) at 48" for length in LENGTHS} <= set(figures)
    expected = figures["t(1) at 48"].value / figures["t(2) at 48"].value
    assert figures["t(1) over t(2) at 48"].value == pytest.approx(expected)
    assert figures["t(1) over t(2) at 48"].required == speed.ORDER


def test_forward_time_is_collected_and_the_decoder_is_left_as_it_was(stage):
    with host.model_seconds(stage.decoder) as seconds:
        answer = stage.generator("ar").generate(stage.prompt(24), max_new_tokens=5, seed=0)
    assert len(seconds) >= 5  # the prompt may have been read, too
    assert "forward" not in vars(stage.decoder)
    assert isinstance(stage.decoder.head, Linear)
    assert len(answer.tokens) == 5


def test_lookup_pools_by_sums_and_gives_no_interval_below_eight():
    def answers(prompts):
        for number in range(prompts):
            for method in lookup.METHODS:
                seconds, tokens = (0.5 if method == "pld" else 1.0 + number % 2), (10, 40)[number % 2]
                yield lookup.Answer("kind", str(number), method, seconds, tokens, tokens, tuple(range(tokens)))

    few = [a for a in answers(2) if (a.method, a.prompt) != ("hf_pld", "1")]
    figures = by_name(lookup.figures(few, noisy=False))
    pooled = figures["pld over ar, pooled"]
    assert pooled.value == pytest.approx(3.0)
    assert pooled.met is True
    assert "ci_low" not in pooled.detail
    # Only the first prompt has an answer of the library: 1.0 s for 10 tokens against 0.5 s.
    assert figures["pld over hf_pld, pooled"].value == pytest.approx(2.0)
    assert figures["pld over hf_pld, pooled"].detail["prompts"] == 1
    many = by_name(lookup.figures(list(answers(10)), noisy=False))["pld over ar, pooled"]
    assert many.detail["ci_low"] <= 3.0 <= many.detail["ci_high"]


def test_a_checkpoint_is_read_back_and_its_memory_is_measured(tmp_path):
    fresh.write_checkpoint(tmp_path, SPEC)
    used = fresh_process.peak(str(tmp_path), "3", "1")
    assert used["weights"] > 2 * SPEC.vocab_size * SPEC.hidden_size
    limit = 1.15 * (used["weights"] + used["cache"]) / 2**20 + 64
    assert fresh.peak_figure(used).required.limit == pytest.approx(limit, abs=0.1)


@pytest.mark.parametrize(("step", "met"), [(0, True), (64 * 1024, False)])
def test_growth_is_a_trend(step, met):
    readings = [2**28 + (2**27 if number < 20 else 0) + number * step for number in range(200)]
    assert fresh.growth_figure(readings).met is met


def result(name, met_value, **machine):
    figure = {"name": f"{name} figure", "value": met_value, "unit": "x", "noisy": False, "detail": {"mat": 1.5}}
    figure |= {"required": {"sense": ">=", "limit": 1.0}, "met": met_value >= 1.0}
    load = {"before": 0.0, "during": 0.01, "after": 0.0}
    block = {"name": name, "figures": [figure], "load": load, "noisy": False, "seconds": 1.0, "date": "2026-01-01"}
    block |= {"command": "python scripts/bench.py", "commit": "abc", "dirty": False}
    environment = {"target": {"name": "tiny"}, "linear_path": "library", "python": "3.11"}
    environment |= {"cpu": {"model": "CPU", "usable_cores": 2, "flags": {"avx2": True}}}
    environment |= {"versions": {"torch": "2", "transformers": "5"}}
    chosen = {"model": "m", "dtype": "float32", "threads": 1, "size": "full", **machine}
    return {"machine": chosen, "settings": {"contexts": (1, 2)}, "environment": environment, "block": block}


def test_a_later_run_of_one_block_replaces_only_that():
    stored = runs.merge(runs.merge({}, result("host", 2.0)), result("ar", 2.0))
    stored = json.loads(json.dumps(stored))
    assert list(stored["blocks"]) == ["ar", "host"]
    merged = runs.merge(stored, result("ar", 0.5))
    assert [merged["blocks"][name]["figures"][0]["value"] for name in ("ar", "host")] == [0.5, 2.0]


def test_a_setting_that_is_new_does_not_part_a_file_from_its_results():
    stored, new = runs.merge({}, result("host", 2.0)), result("ar", 2.0)
    new["settings"] = {**new["settings"], "later": 3}
    assert list(runs.merge(stored, new)["blocks"]) == ["ar", "host"]
    new["settings"]["nested"] = {"old": 1, "added": None}
    stored["settings"]["nested"] = {"old": 1}
    assert list(runs.merge(stored, new)["blocks"]) == ["ar", "host"]
    new["settings"]["contexts"] = (1, 3)
    with pytest.raises(Exception, match="another settings"):
        runs.merge(stored, new)


def test_results_of_other_machines_are_not_mixed():
    with pytest.raises(Exception, match="another machine"):
        runs.merge(runs.merge({}, result("ar", 2.0)), result("ar", 2.0, threads=2))


def test_the_page_says_what_was_not_reached_and_keeps_remarks():
    stored = runs.merge(runs.merge({}, result("ar", 0.5)), result("host", 2.0))
    page = report.render(stored)
    assert "1 of 2 required figures reached" in page
    assert "**not reached**: ar figure: 0.5 x, required >= 1" in page
    assert report.remarks(page) == "None."
    written = page.replace("None.", "Two paths were tried.\n\nNeither helped.")
    assert report.render(stored, written) == written


def test_every_block_has_a_title_and_a_note():
    assert list(runs.BLOCKS) == list(report.TITLES) == list(report.NOTES)


@pytest.fixture
def command(repo_root, tmp_path, monkeypatch):
    """The command in this process, which saves loading torch again; its quick run is shorter still."""
    monkeypatch.syspath_prepend(str(repo_root / "scripts"))
    monkeypatch.setenv("SPECBENCH_LOCK_DIR", str(tmp_path))  # whoever holds the device is not waited for
    package = importlib.import_module("bench.stage")
    monkeypatch.setattr(package, "QUICK", package.Settings(**vars(SMALL)))
    main = runpy.run_path(str(repo_root / "scripts" / "bench.py"))["main"]
    return lambda *words: main([*map(str, words)])


@pytest.mark.slow
def test_the_command_measures_a_block_and_renders_the_page(command, tmp_path, capsys):
    small = ["--model", "tiny:plain", "--dtype", "float32", "--threads", "1", "--quick", "--only", "host"]
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    assert command(*small, "--out", out) == 0
    assert "host share of pld" in capsys.readouterr().out
    assert list(json.loads(out.read_text())["blocks"]) == ["host"]
    assert command("--render", out, "--page", page) == 0
    assert "host share of ar" in page.read_text()
    with pytest.raises(SystemExit) as end:
        command("--only", "nothing")
    assert end.value.code == 2
