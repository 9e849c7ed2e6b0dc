"""Every choice composes into checked plain objects, and what is not legal is refused with one helpful line."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from specbench.config import RunConfig, compose, compose_each, compose_train_draft, run_config, run_id
from specbench.config.controllers import (
    BlockOracleConfig,
    ConfidenceConfig,
    DynamicConfidenceConfig,
    FixedConfig,
    HeuristicConfig,
    NoControllerConfig,
)
from specbench.config.errors import CONF_DIR, GROUPS
from specbench.config.help import choices
from specbench.config.methods import SpsConfig
from specbench.tasks import TASK_NAMES, build_task
from specbench.types import ConfigError

# Hydra takes half a second to compose, so each composition tries one choice of every group at once.
SWEPT = [group for group in GROUPS if group not in ("hydra", "experiment", "method/controller")]
ROUNDS = range(max(len(choices(group)) for group in SWEPT))


@pytest.mark.parametrize("number", ROUNDS)
def test_every_choice_composes_and_is_called_as_it_is_typed(number):
    picked = {group: choices(group)[number % len(choices(group))] for group in SWEPT}
    words = [f"{group}={name}" for group, name in picked.items()]
    config = compose([*words, "model.draft=some/draft", *(["data.dir=FOLDER"] if picked["data"] == "local" else [])])
    assert type(config) is RunConfig
    for group, name in picked.items():
        part = getattr(config, group)
        assert dataclasses.is_dataclass(part)
        assert getattr(part, "name", name) == name


def test_every_controller_goes_with_sps():
    names = [name for name in choices("method/controller") if name != "none"]
    made = compose_each([["model=tiny", "method=sps", f"method/controller={name}"] for name in names])
    assert [config.method.controller.name for config in made] == names
    assert all(config.method.controller.num_draft_tokens >= 1 for config in made)


@pytest.fixture(scope="module")
def base():
    return compose()


def test_everything_is_resolved():
    config = compose(["task=humaneval", "hardware.dtype=float32"])
    assert config.data.source == "embedded"
    assert config.sampling.max_new_tokens == 64
    assert config.measure.tie_gap == 1e-3
    assert config.paths.results_dir.startswith("/")
    assert "~" not in config.paths.cache_dir


def test_only_answers_on_embedded_sets_are_short_unless_a_length_is_given():
    assert compose(["task=humaneval", "data=local", "data.dir=x"]).sampling.max_new_tokens == 384
    assert compose(["task=humaneval", "sampling.max_new_tokens=200"]).sampling.max_new_tokens == 200


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (["model=llama3"], "hub"),
        (["model=llama3", "task=longdoc"], "embedded"),
        (["data=local", "data.dir=here"], "local"),
    ],
)
def test_auto_data_is_what_the_model_says(words, source):
    assert compose(words).data.source == source


@pytest.mark.parametrize(
    ("target", "name", "shown", "source"),
    [
        ("/models/Own-Model 7b/", "Own_Model_7b", "Own-Model 7b", "hub"),
        ("owner/Qwen3-8B", "Qwen3_8B", "Qwen3-8B", "hub"),
        ("./files/small.q4.gguf", "small.q4", "small.q4", "hub"),
        ("tiny:plain", "tiny_plain", "tiny:plain", "embedded"),
    ],
)
def test_a_target_without_a_model_file_is_called_what_it_is(target, name, shown, source):
    config = compose([f"model.target='{target}'"])
    assert (config.model.name, config.model.display_name, config.model.draft) == (name, shown, None)
    assert config.data.source == source
    assert run_id(config).startswith(f"{name}-pld-humaneval-")


def test_what_is_said_about_an_own_target_stays():
    said = ["model.target=x/y", "model.name=mine", "model.draft=x/z", "data=embedded"]
    config = compose(said)
    assert (config.model.name, config.model.draft, config.data.source) == ("mine", "x/z", "embedded")
    assert compose([*said[:1], "model.draft=artefact:smollm2_v1"]).model.draft == "artefact:smollm2_v1"
    (assembled,) = compose_each([["method=ar", "model.target=x/y"]])
    assert assembled == compose(["method=ar", "model.target=x/y"])
    assert compose_train_draft(["model.target=x/y"]).name == "y"


def test_a_chosen_model_file_keeps_its_name_wherever_its_weights_are():
    for words in (["model=llama3", "model.target=/local/copy"], ["model.target=embedded:smollm2"]):
        model = compose(words).model
        file = compose(words[:1] if len(words) > 1 else []).model
        assert (model.name, model.display_name, model.draft) == (file.name, file.display_name, file.draft)
    with pytest.raises(ConfigError, match="method=sps needs a draft model and model=copy names none"):
        compose(["method=sps", "model.target=/local/copy"])


def test_explicit_values_win_over_defaults():
    config = compose(["sampling.max_new_tokens=7", "measure.tie_gap=0.25", "num_samples=null"])
    assert (config.sampling.max_new_tokens, config.measure.tie_gap, config.num_samples) == (7, 0.25, None)


def test_cache_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    assert compose().paths.cache_dir == str(tmp_path)


BAD_WORDS = {
    "method=pdl": ["method=pdl", "'pld'", "Legal: ar, "],
    "mehtod=ar": ["mehtod", "'method'"],
    "methd/controller=none": ["methd/controller", "'method/controller'"],
    "method.max_ngrm=1": ["method.max_ngrm", "'method.max_ngram'", "method.min_ngram"],
    "+method.foo=1": ["method.foo", "method.match"],
    "smapling.temperature=1": ["smapling.temperature", "'sampling.temperature'"],
    "sampling.temperature=warm": ["sampling.temperature", "warm", "Float"],
    "sampling.temperature=-1": ["sampling.temperature=-1", "0 or more"],
    "method/controller=fixed": ["method/controller=fixed", "method=pld", "methods that take one: ", "sps"],
    "method=sps model.draft=null": ["model.draft=null", "method=sps", "model=tiny"],
    "data=local": ["data.dir", "data=local"],
    "data.dir=here": ["data.dir=here", "data=auto"],
    "method=ar,pld": ["method=ar,pld", "-m"],
    "method=[": ["method=["],
    "~method": ["method", "value is needed"],
    "hydra/launcher=jobs": ["hydra/launcher=jobs", "basic"],
}


@pytest.mark.parametrize("word", BAD_WORDS)
def test_a_bad_word_is_one_line_with_the_key_and_what_is_legal(word):
    with pytest.raises(ConfigError) as caught:
        compose(word.split())
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    for part in BAD_WORDS[word]:
        assert part in text


BAD_VALUES = [
    ("sampling.temperature", math.nan, "0 or more"),
    ("sampling.top_p", 0.0, "above 0"),
    ("sampling.top_k", -1, "0 or more"),
    ("sampling.max_new_tokens", 0, "null for the task's default"),
    ("num_samples", 0, "null for all samples"),
    ("seed", -1, "0 or more"),
    ("size", "huge", "smoke, embedded, published"),
    ("objective", "walltime_speedups", "'walltime_speedup'"),
    ("method.scope", "rum", "'run'"),
    ("method.verification", "x", "rejection, sample_match"),
    ("method.match", "frist", "'first'"),
    ("method.max_ngram", 1, "method.min_ngram=2"),
    ("method.num_draft_tokens", "some", "auto"),
    ("method.num_draft_tokens", 0, "1 or more"),
    ("method.prior_acceptance", 2.0, "from 0 to 1"),
    ("model.target", "", "must not be empty"),
    ("model.draft", " ", "must not be empty"),
    ("model.draft_vocab", "half", "own, full"),
    ("model.template_date", "today", "26 Jul 2024"),
    ("task.context_tokens", 5, "128 to 32768"),
    ("task.history", "mine", "baseline, own"),
    ("task.style", "cat", "'chat'"),
    ("hardware.device", "gpu", "cuda"),
    ("hardware.dtype", "float23", "'float32'"),
    ("hardware.num_threads", 0, "null"),
    ("measure.baseline", "pair", "'paired'"),
    ("measure.repeats", 0, "1 or more"),
    ("measure.drift_repeats", -1, "0 or more"),
    ("measure.drift_share", -0.1, "0 or more"),
    ("measure.tie_gap", -1.0, "0 or more"),
    ("logger.mode", "of", "offline, online, disabled"),
    ("artefact.if_missing", "biuld", "'build'"),
    ("paths.results_dir", "", "must not be empty"),
]


@pytest.mark.parametrize(("key", "value", "told"), BAD_VALUES)
def test_a_bad_value_is_refused_with_its_full_key_and_what_is_legal(base, key, value, told):
    group, _, name = key.rpartition(".")
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(getattr(base, group) if group else base, **{name: value})
    assert str(caught.value).startswith(f"{key}={value}")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("controller", "values", "key"),
    [
        (FixedConfig, {"num_draft_tokens": 0}, "num_draft_tokens=0"),
        (HeuristicConfig, {"num_draft_tokens": 20, "start": 21, "grow": 2, "shrink": 1}, "start=21"),
        (HeuristicConfig, {"num_draft_tokens": 20, "start": 5, "grow": 2, "shrink": -1}, "shrink=-1"),
        (HeuristicConfig, {"num_draft_tokens": None, "start": 0, "grow": 2, "shrink": 1}, "start=0"),
        (ConfidenceConfig, {"num_draft_tokens": 20, "threshold": 1.5}, "threshold=1.5"),
        (
            DynamicConfidenceConfig,
            {"num_draft_tokens": 20, "threshold": 0.4, "miss_cost": 3.0, "min_history": 5, "max_history": 5},
            "max_history=5",
        ),
        (BlockOracleConfig, {"num_draft_tokens": 4, "block_size": 5}, "block_size=5"),
    ],
)
def test_controllers_check_their_values(controller, values, key):
    with pytest.raises(ConfigError, match=rf"method\.controller\.{key}: must"):
        controller(name="x", **values)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["method/controller=svip", "method.controller.distribution=wraped"], "raw, warped"),
        (["method/controller=kangaroo", "method.controller.probability=best"], "token, top"),
        (["method/controller=adaedl", "method.controller.threshold_memory=2"], "from 0 to 1"),
        (["method/controller=block_oracle", "sampling.temperature=0.5"], "sampling.temperature=0 "),
        (["method/controller=block_oracle", "measure.baseline=none"], "paired, stored"),
    ],
)
def test_controllers_say_what_is_legal(overrides, told):
    with pytest.raises(ConfigError, match=told):
        compose(["model=tiny", "method=sps", *overrides])


def test_a_length_without_a_cap_may_start_anywhere():
    words = ["method/controller=heuristic", "method.controller.num_draft_tokens=null", "method.controller.start=50"]
    assert compose(["model=tiny", "method=sps", *words]).method.controller.num_draft_tokens is None


def test_a_method_that_needs_a_controller_refuses_none():
    with pytest.raises(ConfigError, match="method/controller=none: method=sps needs a controller"):
        SpsConfig(name="sps", controller=NoControllerConfig(name="none"))


def test_schemas_are_never_swept():
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        options = GlobalHydra.instance().config_loader().get_group_options("method")
    assert sorted(options) == choices("method")


def test_compose_works_inside_another_hydra_context():
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        inner = compose(["method=ar"])
        outer = run_config(hydra_compose("config", ["method=ar"]), ["method=ar"])
    assert inner == outer


def test_task_defaults_agree_with_the_tasks_themselves():
    assert sorted(TASK_NAMES) == choices("task")
    for name in TASK_NAMES:
        ours = OmegaConf.load(CONF_DIR / "task" / f"{name}.yaml")
        assert ours.default_max_new_tokens == build_task(name, source="embedded").default_max_new_tokens


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


@pytest.mark.parametrize("method", ["hf_ar", "hf_pld", "hf_assisted"])
def test_the_librarys_attention_has_legal_values(method):
    words = ["model=tiny", f"method={method}"]
    assert compose(words).method.attn_implementation == "sdpa"
    with pytest.raises(ConfigError, match=r"method\.attn_implementation=fast.*sdpa, eager, flash_attention_2"):
        compose([*words, "method.attn_implementation=fast"])
