"""Every method x legal controller of `conf/method`, built on the tiny pairs; a new method is found by itself."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from specbench.config import compose_each
from specbench.config.controllers import STATES
from specbench.config.errors import CONF_DIR
from specbench.controllers.gate import Gate, GateShape
from specbench.controllers.heads import ResidualHead, ScalarHead
from specbench.controllers.pacer import gate_key
from specbench.conversion.build import convert
from specbench.conversion.calibration import Calibration
from specbench.decoding.target import Target
from specbench.hardware.latency import LatencyModel
from specbench.hardware.profile import VerifyCurve
from specbench.methods.build import Parts, artefact_key, build_generator
from specbench.models.artefact import Artefact, Artefacts
from specbench.models.checkpoint import load_decoder, load_model
from specbench.models.decoder import Decoder
from specbench.models.tiny import SPEC, VARIANTS, write_pair
from specbench.types import ConfigError, Generation, Sampling
from tests.decoding.tinies import tiny_draft, tiny_target

TOKENS = 24
GREEDY = Sampling()
END = 260  # the tiny pairs' end-of-turn id
CURVE = VerifyCurve({1: 1.0, 8: 1.2, 32: 2.0})
LATENCY = LatencyModel(attention_slope=1e-4, attention_base=0.08, mlp=0.08, head=0.02, fixed=0.02)
# Answers here are short: what learns while decoding must learn from less.
QUICK: dict[str, tuple[str, ...]] = {
    "confl": ("context_window=4", "search_interval=2"),
    "confl_official": ("context_window=4", "search_interval=2"),
    "swift": ("context_window=4",),
    "swift_official": ("context_window=4",),
    "mla": ("freqfold=1", "reconstruct.updates=4"),
    "knapspec": ("window_tokens=4", "interval_tokens=8", "search_budget=null", "guard=none"),
}
OF_EACH_KIND = ("block_oracle", "confidence", "heuristic", "hf_dynamic", "specdecpp", "svip")
TRAINED = ("pacer", "scalars", "specdecpp", "tuned")
PROMPTS: dict[str, tuple[int, ...]] = {
    "text": (256, 258, *b"once more, and once more,", 260, 259),
    "one repeated token": (65,) * 24,
    "one token": (90,),
    "zeros": (256, *(0,) * 12),
}


@dataclass(frozen=True)
class Case:
    """A method with a controller."""

    method: str
    controller: str

    def __str__(self) -> str:
        return self.method if self.controller == "none" else f"{self.method}-{self.controller}"

    @property
    def bound(self) -> bool:
        """Whether it looks at AR's answer, and decodes greedily only."""
        return bool(schema_class("method/controller", self.controller).bound)

    @property
    def outside(self) -> bool:
        """Whether the method is a reference that shows no steps."""
        return self.method.startswith("hf_")


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


@functools.cache
def config(case: Case) -> Any:
    """The method's checked config; raises ConfigError where it does not take the controller."""
    quick = [f"method.{override}" for override in QUICK.get(case.method, ())]
    words = ["model=tiny", f"method={case.method}", f"method/controller={case.controller}", *quick]
    (found,) = compose_each([words])
    if isinstance(found, ConfigError):
        raise found
    return found.method


@functools.cache
def defaults(file: str) -> dict[str, str]:
    """The defaults list of `conf/method/<file>.yaml`, that of the file it extends below it.

    Collecting reads files, since composing takes half a second each.
    """
    found: dict[str, str] = {}
    for entry in yaml.safe_load((CONF_DIR / "method" / f"{file}.yaml").read_text(encoding="utf-8"))["defaults"]:
        if isinstance(entry, dict):
            found |= {key.removeprefix("override "): value for key, value in entry.items()}
        elif entry != "_self_":
            found |= defaults(entry)
    return found


def own_controller(method: str) -> str:
    """The controller that the method's file names."""
    return defaults(method)["controller"]


@functools.cache
def schema_class(group: str, name: str) -> Any:
    """The dataclass of a method or a controller."""
    folder = "" if group == "method" else "controller/"
    schema = defaults(f"{folder}{name}")[f"/schema/{group}@_here_"]
    return OmegaConf.get_type(ConfigStore.instance().load(f"schema/{group}/{schema}.yaml").node)


def legal(case: Case) -> bool:
    """Whether the method takes the controller; the tests compose what is legal and would see a wrong answer."""
    takes_one: bool = schema_class("method", case.method).takes_controller
    return takes_one == (case.controller != "none")


@functools.cache
def cases() -> tuple[Case, ...]:
    """All that the configuration allows, methods in name order."""
    folder = CONF_DIR / "method"
    every = [Case(method, name) for method in names(folder) for name in names(folder / "controller")]
    return tuple(case for case in every if legal(case))


@functools.cache
def folders(variant: str) -> tuple[Path, Path]:
    return write_pair(Path(tempfile.mkdtemp(prefix="specbench-tiny-")), variant)


@functools.cache
def generator(case: Case, variant: str = "plain", sampling: Sampling = GREEDY) -> Any:
    """The method on a tiny pair, as the runner would build it."""
    outside = folders(variant) if case.outside else (None, None)
    chosen = config(case)
    parts = Parts(
        target=Target(tiny_target(variant)),
        sampling=sampling,
        draft=latent_draft(variant) if type(chosen).converts else tiny_draft(variant),
        folder=outside[0],
        draft_folder=outside[1],
        curve=lambda: CURVE,
        latency=lambda plan: LATENCY,
    )
    if case.controller in TRAINED:
        parts.artefacts = untrained(artefact_key(chosen, parts))
    return build_generator(chosen, parts)


@functools.cache
def latent_draft(variant: str) -> Decoder:
    """The tiny draft as method=mla would convert it, from a little random text."""
    source = folders(variant)[1]
    base = load_model(str(source), dtype=torch.float32, device="cpu", cache_dir=source)
    ids = torch.randint(256, (12, 32), generator=torch.Generator().manual_seed(0))
    settings = config(Case("mla", own_controller("mla")))
    work = Path(tempfile.mkdtemp(prefix="specbench-latent-"))
    folder = convert(base, settings, Calibration(ids[:8], ids[8:], {}), work / "draft", work=work)
    return load_decoder(folder, dtype=torch.float32, device="cpu")


def untrained(key: Mapping[str, str]) -> Artefacts:
    """Trained parts that know nothing: whatever they say, what comes out must be right."""
    folder = Path(tempfile.mkdtemp(prefix="specbench-heads-"))
    torch.manual_seed(0)
    scalars, states = ScalarHead(4), ResidualHead(SPEC.hidden_size, 2)
    values = {"label": "conditional", "threshold": 0.2}
    Artefact("tuned", key, {"num_draft_tokens": 3}).save(folder / "tuned.json")
    Artefact("scalars", key, {**scalars.values(), **values}, {}, scalars.state_dict()).save(folder / "scalars.json")
    for state in STATES:
        part = Artefact("specdecpp", {**key, "state": state}, {**states.values(), **values}, {}, states.state_dict())
        part.save(folder / f"specdecpp_{state}.json")
    gate = Gate(SPEC, tiny_draft().embedding, GateShape())
    for tensor in gate.trained():
        torch.nn.init.normal_(tensor, std=0.3)
    chosen = {**gate.values(), "label": "survive", "block_size": 2, "threshold": 0.4}
    part = Artefact("pacer", {**key, **gate_key(config(Case("sps", "pacer")).controller)}, chosen, {}, gate.tensors())
    part.save(folder / "pacer.json")
    return Artefacts({name: value for name, value in key.items() if name != "drafter"}, (folder,))


def decode(built: Any, prompt: Sequence[int], **changes: Any) -> Generation:
    """One answer of a generator that has forgotten what it learnt."""
    built.reset()
    return built.generate(prompt, **({"max_new_tokens": TOKENS, "seed": 0} | changes))


AR = Case("ar", "none")


@functools.cache
def reference(variant: str, prompt: tuple[int, ...], tokens: int = TOKENS) -> tuple[int, ...]:
    """AR's answer without a stop id."""
    return decode(generator(AR, variant), prompt, max_new_tokens=tokens).tokens


@functools.cache
def greedy(case: Case, variant: str, prompt: tuple[int, ...]) -> Generation:
    """The method's answer without a stop id, shared by the tests that look at it from different sides."""
    answer = reference(variant, prompt)
    return decode(generator(case, variant), prompt, reference_ids=answer)


def usual(case: Case) -> bool:
    """Whether it is a method with its own controller."""
    return case.controller == own_controller(case.method)


def always(case: Case) -> bool:
    """Run in every test run: each method with its own controller, and sps with one of each kind; the rest is slow.

    An `_official` file has its method's code with other numbers, and golden data of its own.
    """
    if case.method.endswith("_official"):
        return False
    return usual(case) or (case.method == "sps" and case.controller in OF_EACH_KIND)


def params(chosen: Sequence[Case]) -> list[Any]:
    return [pytest.param(case, marks=marks(quick=always(case))) for case in chosen]


def marks(*, quick: bool) -> list[Any]:
    """What is not quick is slow."""
    return [] if quick else [pytest.mark.slow]


def answers() -> list[Any]:
    """Every case with every prompt and pair; quick is every prompt on one pair and one prompt on all, of what runs
    always, and of an official file a single one."""
    return [
        pytest.param(case, PROMPTS[prompt], variant, marks=marks(quick=bool(quick)), id=f"{case}-{prompt}-{variant}")
        for case in cases()
        for prompt in PROMPTS
        for variant in VARIANTS
        for first in [(prompt == "text") + (variant == "plain")]
        for quick in [(always(case) and first) or (usual(case) and first == 2)]
    ]


every_answer = pytest.mark.parametrize(("case", "prompt", "variant"), answers())
every_case = pytest.mark.parametrize("case", params(cases()), ids=str)
every_own_case = pytest.mark.parametrize("case", params([case for case in cases() if not case.outside]), ids=str)
every_sampled_case = pytest.mark.parametrize("case", params([case for case in cases() if not case.bound]), ids=str)
every_sampled_own_case = pytest.mark.parametrize(
    "case", params([case for case in cases() if not case.bound and not case.outside]), ids=str
)
every_variant = pytest.mark.parametrize("variant", VARIANTS)
