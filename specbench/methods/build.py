"""From a method's config to a generator: the config's `_target_` names the class, nothing else is a registry."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.protocol import Controller
from specbench.decoding.target import Target
from specbench.hardware.json_file import digest
from specbench.hardware.latency import LatencyModel, ProfilePlan
from specbench.hardware.profile import VerifyCurve
from specbench.hardware.timer import PhaseTimer, device_synchronizer
from specbench.models.artefact import Artefacts, Key
from specbench.models.decoder import Decoder
from specbench.types import ConfigError, Generator, ModelError, Sampling

_NOT_THE_DRAFTER = ("_target_", "name", "scope", "verification", "controller")


@dataclass
class Parts:
    """What a method may be built from. `folder`s hold the weights in the library's layout, for outside references.

    `curve` measures (or loads) the target's latency t(T) when it is called, `latency` what the parts of a pass cost.
    `model_hash` names the target's weights, `task` what is decoded (for parts stored by task),
    `artefacts` has the trained parts of these models and this setting.
    """

    target: Target
    sampling: Sampling
    draft: Decoder | None = None
    folder: Path | None = None
    draft_folder: Path | None = None
    curve: Callable[[], VerifyCurve] | None = None
    latency: Callable[[ProfilePlan], LatencyModel] | None = None
    model_hash: str | None = None
    task: str | None = None
    artefacts: Artefacts = field(default_factory=Artefacts)
    timer: PhaseTimer = field(init=False)

    def __post_init__(self) -> None:
        self.timer = PhaseTimer(synchronize=device_synchronizer(str(self.target.decoder.device)))

    @property
    def device(self) -> torch.device:
        return self.target.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.target.decoder.dtype

    def require_draft(self) -> Decoder:
        """The draft model, or a ModelError that says how to name one."""
        if self.draft is None:
            raise ModelError("this method needs a draft model: set model.draft=HUB_ID_OR_FOLDER")
        return self.draft


def locate(target: str) -> Any:
    """The class behind a dotted path; a ConfigError names the path when there is none."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"_target_={target!r} names no class: {error}") from error


def build_controller(method: Any, parts: Parts) -> Controller:
    """The controller of a method's config dataclass.

    A class with `build` is given the controller's config and the trained parts of what is being run; for others the
    config's fields but `_target_` and `name` are the arguments.
    """
    config, found = method.controller, locate(method.controller._target_)
    if hasattr(found, "build"):
        drafting = parts.draft if method.needs_draft else parts.target.decoder
        artefacts = replace(parts.artefacts, key=artefact_key(method, parts), drafting=drafting)
        return cast(Controller, found.build(config, artefacts))
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in ("_target_", "name")}
    return cast(Controller, found(**values))


def artefact_key(method: Any, parts: Parts) -> Key:
    """What a trained part must have been made for: models, dtype, template, sampling, and who drafts and how.

    A drafter whose options decide what it drafts (a skip set and how it is found) is named by their hash too.
    """
    fields = () if getattr(method, "drafts_alike", False) else (f.name for f in dataclasses.fields(method))
    own = {name: _plain(getattr(method, name)) for name in fields if name not in _NOT_THE_DRAFTER}
    drafter = method._target_.rpartition(".")[0].rpartition(".")[2].rstrip("_")
    if own:
        drafter += "-" + digest(own)[:8]
    return {**parts.artefacts.key, "drafter": drafter}


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def build_generator(config: Any, parts: Parts) -> Generator:
    """The method of a config dataclass, in the decode loop unless it is a generator of its own."""
    built = locate(config._target_).build(config, parts)
    if hasattr(built, "generate"):
        return cast(Generator, built)
    return SpeculativeDecoding(parts.target, built, parts.sampling, config.verification, parts.timer)
