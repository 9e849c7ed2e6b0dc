"""Every choice composes into checked plain objects, and what is not legal is refused with one helpful line."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from specbench.config import RunConfig, compose, locate, run_config
from specbench.config.errors import GROUPS
from specbench.config.help import choices
from specbench.types import ConfigError

NEEDED = {
    ("data", "local"): ["data.dir=FOLDER"],
    ("method", "sps"): ["model=tiny"],
    ("method", "hf_assisted"): ["model=tiny"],
}
SWEPT = [group for group in GROUPS if group not in ("hydra", "experiment", "method/controller")]
CHOICES = [(group, name) for group in SWEPT for name in choices(group)]


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_every_choice_composes_and_is_called_as_it_is_typed(group, name):
    config = compose([f"{group}={name}", *NEEDED.get((group, name), [])])
    part = getattr(config, group)
    if hasattr(part, "name"):
        assert part.name == name
    assert type(config) is RunConfig
    assert dataclasses.is_dataclass(part)


@pytest.mark.parametrize("name", [name for name in choices("method/controller") if name != "none"])
def test_every_controller_goes_with_sps(name):
    config = compose(["model=tiny", "method=sps", f"method/controller={name}"])
    assert config.method.controller.name == name
    assert config.method.controller.num_draft_tokens >= 1


@pytest.mark.parametrize("name", choices("experiment"))
def test_every_experiment_composes(name):
    assert type(compose([f"experiment={name}"])) is RunConfig


def test_everything_is_resolved():
    config = compose(["task=humaneval", "hardware.dtype=float32"])
    assert config.data.source == "embedded"
    assert config.sampling.max_new_tokens == 384
    assert config.measure.tie_gap == 1e-3
    assert config.paths.results_dir.startswith("/")
    assert "~" not in config.paths.cache_dir


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (["model=llama3"], "hub"),
        (["model=llama3", "data=embedded"], "embedded"),
        (["model=llama3", "task=longdoc"], "embedded"),
        (["data=local", "data.dir=here"], "local"),
    ],
)
def test_auto_data_is_what_the_model_says(words, source):
    assert compose(words).data.source == source


def test_explicit_values_win_over_defaults():
    config = compose(["sampling.max_new_tokens=7", "measure.tie_gap=0.25", "num_samples=null"])
    assert (config.sampling.max_new_tokens, config.measure.tie_gap, config.num_samples) == (7, 0.25, None)


def test_cache_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    assert compose().paths.cache_dir == str(tmp_path)


BAD = {
    "method=pdl": ["method=pdl", "'pld'", "ar, hf_ar"],
    "mehtod=ar": ["mehtod", "'method'"],
    "methd/controller=none": ["methd/controller", "'method/controller'"],
    "method.max_ngrm=1": ["method.max_ngrm", "'method.max_ngram'", "method.min_ngram"],
    "+method.foo=1": ["method.foo", "method.match"],
    "smapling.temperature=1": ["smapling.temperature", "'sampling.temperature'"],
    "sampling.temperature=warm": ["sampling.temperature", "warm", "Float"],
    "sampling.temperature=-1": ["sampling.temperature=-1", "0 or more"],
    "sampling.temperature=nan": ["sampling.temperature=nan", "0 or more"],
    "sampling.top_p=0": ["sampling.top_p=0", "above 0"],
    "sampling.top_k=-1": ["sampling.top_k=-1"],
    "sampling.max_new_tokens=0": ["sampling.max_new_tokens=0", "null for the task's default"],
    "num_samples=0": ["num_samples=0", "null for all samples"],
    "seed=-1": ["seed=-1"],
    "size=huge": ["size=huge", "smoke, embedded, published"],
    "objective=walltime_speedups": ["'walltime_speedup'"],
    "method.scope=rum": ["method.scope=rum", "'run'", "sample, task, run"],
    "method.verification=x": ["method.verification=x", "rejection, sample_match"],
    "method.match=frist": ["method.match=frist", "'first'"],
    "method.max_ngram=1": ["method.max_ngram=1", "method.min_ngram=2"],
    "method.num_draft_tokens=some": ["method.num_draft_tokens=some", "auto"],
    "method.num_draft_tokens=0": ["method.num_draft_tokens=0"],
    "method/controller=fixed": ["method/controller=fixed", "method=pld", "take one: sps"],
    "method=sps": ["model.draft=null", "method=sps", "model=tiny"],
    "model.target=": ["model.target"],
    "task.context_tokens=5": ["task.context_tokens=5", "128 to 32768"],
    "task.history=mine": ["task.history=mine", "baseline, own"],
    "task.style=cat": ["task.style=cat", "'chat'"],
    "data=local": ["data.dir", "data=local"],
    "data.dir=here": ["data.dir=here", "data=auto"],
    "hardware.device=gpu": ["hardware.device=gpu", "cuda"],
    "hardware.dtype=float23": ["hardware.dtype=float23", "'float32'"],
    "hardware.num_threads=0": ["hardware.num_threads=0", "null"],
    "measure.baseline=pair": ["measure.baseline=pair", "'paired'"],
    "measure.repeats=0": ["measure.repeats=0"],
    "logger.mode=of": ["logger.mode=of", "offline, online, disabled"],
    "artefact.if_missing=biuld": ["artefact.if_missing=biuld", "'build'"],
    "paths.results_dir=": ["paths.results_dir"],
    "method=ar,pld": ["method=ar,pld", "-m"],
    "method=[": ["method=["],
    "~method": ["method", "value is needed"],
    "hydra/launcher=jobs": ["hydra/launcher=jobs", "basic"],
}


@pytest.mark.parametrize("word", BAD)
def test_what_is_not_legal_is_one_line_with_the_key_and_what_is_legal(word):
    with pytest.raises(ConfigError) as caught:
        compose([word])
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    for part in BAD[word]:
        assert part in text


@pytest.mark.parametrize(
    "words",
    [
        ["method/controller=none"],
        ["method.controller.num_draft_tokens=0"],
        ["method/controller=heuristic", "method.controller.start=21"],
        ["method/controller=heuristic", "method.controller.reset=never"],
        ["method/controller=confidence", "method.controller.threshold=1.5"],
    ],
)
def test_controllers_check_their_values(words):
    with pytest.raises(ConfigError, match=r"method[./]controller"):
        compose(["model=tiny", "method=sps", *words])


def test_schemas_are_never_swept():
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from specbench.config.errors import CONF_DIR

    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        options = GlobalHydra.instance().config_loader().get_group_options("method")
    assert sorted(options) == choices("method")


def test_compose_works_inside_another_hydra_context():
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    from specbench.config.errors import CONF_DIR

    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        inner = compose(["method=ar"])
        outer = run_config(hydra_compose("config", ["method=ar"]))
    assert inner == outer


def test_a_target_that_cannot_be_imported_is_named():
    config = compose()
    config.method._target_ = "specbench.types.Nothing"
    with pytest.raises(ConfigError, match=r"specbench\.types\.Nothing.*pld"):
        locate(config.method)
    config.method._target_ = "specbench.types.Draft"
    assert locate(config.method).__name__ == "Draft"


def test_task_defaults_agree_with_the_tasks_themselves():
    tasks = pytest.importorskip("specbench.tasks")
    for name, source in itertools.product(choices("task"), ["embedded"]):
        task = tasks.build_task(name, source=source)
        assert compose([f"task={name}"]).sampling.max_new_tokens == task.default_max_new_tokens


def test_the_vicuna_template_renders_its_conversation_format():
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Environment().from_string(compose(["model=vicuna_7b"]).model.chat_template)
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Bye"},
    ]
    text = template.render(messages=messages, bos_token="<s>", eos_token="</s>", add_generation_prompt=True)
    assert text.startswith("<s>A chat between a curious user and an artificial intelligence assistant. The assistant")
    assert text.endswith("user's questions. USER: Hi ASSISTANT: Yes?</s>USER: Bye ASSISTANT:")
