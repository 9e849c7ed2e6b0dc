"""Experiment files: every job of every one is legal at every size, and the header tells what it is for."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence

import pytest
from omegaconf import OmegaConf

from specbench.config import RunConfig, as_dict, compose, compose_each, experiments, job_key, sweep_jobs
from specbench.config.errors import CONF_DIR
from specbench.config.sizes import SIZES, pick, sized
from specbench.types import ConfigError

OF_THE_PAPERS = [
    "knapspec_main",
    "knapspec_latency_fit",
    "knapspec_decoupling",
    "knapspec_tpt_vs_throughput",
    "confl_main",
    "confl_lambda",
    "confl_window",
    "confl_sensitivity",
    "confl_overhead",
    "confl_vs_swift_cumulative",
    "pacer_main",
    "pacer_block_size",
    "pacer_threshold",
    "pacer_length_distribution",
    "pacer_ouroboros",
    "draft_vocab",
    "mla_matched",
    "mla_train_params",
    "specbench_leaderboard",
    "headline",
    "all_methods",
    "longdoc",
    "demo",
]
FOUR_TASKS = {"gsm8k", "humaneval", "cnn_dm", "mt_bench"}


WHOLE = ("headline", "all_methods", "pacer_length_distribution")  # every job of the embedded size


@functools.cache
def composed(size: str, whole: Sequence[str] = ()) -> dict[str, list[RunConfig | ConfigError]]:
    """Of every experiment the first and the last job, of `whole` ones all; composed together, which is faster."""
    words = {name: chosen_jobs(name, size, whole) for name in experiments()}
    configs = iter(compose_each([job for jobs in words.values() for job in jobs]))
    return {name: [next(configs) for _ in jobs] for name, jobs in words.items()}


def chosen_jobs(name: str, size: str, whole: Sequence[str]) -> list[list[str]]:
    jobs = sweep_jobs([f"experiment={name}", f"size={size}"])
    return jobs if name in whole else [jobs[0], *jobs[1:][-1:]]


def legal(configs: list[RunConfig | ConfigError]) -> list[RunConfig]:
    """The configurations; a job that is not legal fails the test with its own message."""
    assert [str(config) for config in configs if isinstance(config, ConfigError)] == []
    return [config for config in configs if isinstance(config, RunConfig)]


def header(name: str) -> str:
    return "".join(
        line for line in (CONF_DIR / "experiment" / f"{name}.yaml").open(encoding="utf-8") if line.startswith("#")
    )


def mla_words(config: RunConfig) -> list[str | None]:
    return [getattr(config.method, key, None) for key in ("converter", "reconstruction")]


def test_every_table_and_figure_has_its_experiment() -> None:
    assert set(OF_THE_PAPERS) <= set(experiments())


@pytest.mark.parametrize("name", experiments())
def test_the_file_says_how_to_run_it_what_it_feeds_and_how_long_it_takes(name: str) -> None:
    text = header(name)
    assert f"python run.py experiment={name}" in text
    assert re.search(r"Feeds: \w+", text)
    assert re.search(r"Time: .*smoke .*embedded .*published", text.replace("\n# ", " "))


@pytest.mark.slow  # composing takes its time
@pytest.mark.parametrize("name", experiments())
@pytest.mark.parametrize("size", SIZES)
def test_jobs_are_legal_and_belong_to_the_experiment(name: str, size: str) -> None:
    made = legal(composed(size)[name])
    assert {config.experiment_name for config in made} == {name}
    assert {config.size for config in made} == {size}
    # A draft that is not converted or not tuned is one arm of many cells.
    different = [config for config in made if "none" not in mla_words(config)]
    keys = Counter(job_key(as_dict(config)) for config in different)
    assert max(keys.values()) == 1, "two jobs of a sweep are the same run"
    smoke = size == "smoke"
    assert all((config.model.name == "tiny") == smoke for config in made)
    assert all((config.model.name == "smollm2") == (size == "embedded") for config in made)
    assert not smoke or all(
        (config.num_samples or 99) * (config.sampling.max_new_tokens or 99) <= 256 for config in made
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_every_single_job_is_legal(size: str) -> None:
    every = [job for name in experiments() for job in sweep_jobs([f"experiment={name}", f"size={size}"])]
    assert len(legal(compose_each(every))) == len(every)


@pytest.mark.slow
def test_the_headline_is_what_the_leaderboard_shows() -> None:
    made = legal(composed("embedded", WHOLE)["headline"])
    assert {config.task.name for config in made} == FOUR_TASKS
    assert len({config.method.name for config in made}) == 12
    sizes = {(config.method.name, config.num_samples, config.sampling.max_new_tokens) for config in made}
    long = {"knapspec", "confl", "swift"}  # fewer and longer: a search takes a part of the answer
    assert sizes == {(name, *((12, 256) if name in long else (16, 96))) for name, *_ in sizes}
    assert {config.hardware.dtype for config in made} == {"bfloat16"}
    assert {config.measure.baseline for config in made} == {"paired"}


@pytest.mark.slow
def test_every_method_and_every_controller_is_in_some_embedded_experiment() -> None:
    names = ("headline", "all_methods", "pacer_length_distribution")
    made = [config for name in names for config in legal(composed("embedded", WHOLE)[name])]
    files = {
        folder: {path.stem for path in (CONF_DIR / folder).glob("*.yaml")} for folder in ("method", "method/controller")
    }
    assert {config.method.name for config in made} == files["method"]
    assert {config.method.controller.name for config in made} == files["method/controller"]


@pytest.mark.slow
def test_experiments_of_one_paper_share_their_runs() -> None:
    headline = {job_key(as_dict(config)) for config in legal(composed("embedded", WHOLE)["headline"])}
    for name in ("confl_main", "confl_overhead", "confl_vs_swift_cumulative"):
        assert {job_key(as_dict(config)) for config in legal(composed("embedded", WHOLE)[name])} <= headline


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("pacer_ouroboros", "knapspec_decoupling")]


@pytest.mark.parametrize("name", ["headline", "mla_budgets", *SLOW])
def test_jobs_put_together_from_parts_are_what_hydra_composes(name: str) -> None:
    jobs = sweep_jobs([f"experiment={name}", "size=published", "data=local", "data.dir=/x", "hardware=cpu"])
    few = [jobs[0], jobs[len(jobs) // 2], jobs[-1]]
    assert compose_each(few) == [compose(words) for words in few]


def test_what_is_wrong_with_a_job_is_what_hydra_finds() -> None:
    jobs = [["method=sps", "method.max_ngram=3"], ["method=spx"], ["num_samples=0"], ["method=pld", "+method.x=1"]]
    for words, found in zip(jobs, compose_each(jobs), strict=True):
        with pytest.raises(ConfigError) as caught:
            compose(words)
        assert str(found) == str(caught.value)


def test_words_of_the_command_win() -> None:
    words = ["experiment=confl_window", "size=smoke", "method.window_mode=3", "num_samples=5", "task=humaneval,gsm8k"]
    made = legal(compose_each(sweep_jobs(words)))
    assert [config.method.window_mode for config in made] == [3, 3]
    assert [config.task.name for config in made] == ["humaneval", "gsm8k"]
    assert {config.num_samples for config in made} == {5}


@pytest.mark.parametrize("word", ["size=big", "experiment=confl_windo", "num_samples=0"])
def test_what_is_not_legal_is_said_in_one_line(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(sweep_jobs(["experiment=confl_window", word])[0])
    assert "\n" not in str(caught.value)
    assert word in str(caught.value)


def test_sizes_and_picks() -> None:
    cfg = OmegaConf.create(
        {"size": "published", "name": "a", "of_size": "${sized:1,2,null}", "of_name": "${pick:${name},{a:5},7}"}
    )
    assert (cfg.of_size, cfg.of_name) == (None, 5)
    assert sized(1, 2, 3, _root_=OmegaConf.create({"size": "smoke"})) == 1
    assert pick("b", {"a": 5}, 7) == 7
