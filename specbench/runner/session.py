"""Everything a run needs in memory: models, prompts, generators, threads."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from specbench.config import MethodConfig, RunConfig
from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.profile import profile
from specbench.decoding.target import Target
from specbench.hardware.devices import resolve_device, resolve_dtype
from specbench.hardware.environment import cpu_model, environment
from specbench.hardware.latency import LatencyModel, ProfilePlan, latency_record, load_latency, store_latency
from specbench.hardware.profile import LENGTHS, VerifyCurve, load_curve, store_curve, verify_curve
from specbench.hardware.threads import choose_num_threads, set_num_threads
from specbench.hardware.timer import device_synchronizer
from specbench.methods.ar import Autoregressive
from specbench.methods.build import Parts, build_generator
from specbench.models.artefact import SHIPPED, Artefacts, Key
from specbench.models.chat import Chat, check_pair, prompt_sha256
from specbench.models.checkpoint import LoadedModel, load_model
from specbench.models.draft import find_draft, load_draft
from specbench.models.hub import check_hub
from specbench.runner.converted import Converted, converted_draft
from specbench.runner.replaying import replay_of
from specbench.types import Draft, Generator, ModelError, Needs, SampleError, Sampling

log = logging.getLogger(__name__)

CURVE_CONTEXT = 256  # tokens before the measured rows
CURVE_LENGTHS = tuple(length for length in LENGTHS if length <= 32)  # longer passes cost more than they tell a run
_PROBE_STEPS = 7

_loaded: dict[tuple[Any, ...], LoadedModel] = {}  # the jobs of a sweep mostly share their models


def on_device(config: RunConfig) -> RunConfig:
    """The config with its device resolved (`auto` = the best that is here); ConfigError if it is not there."""
    hardware = dataclasses.replace(config.hardware, device=resolve_device(config.hardware.device))
    return dataclasses.replace(config, hardware=hardware)


@dataclass
class Session:
    """The loaded parts of one run; `device` in the config is resolved already."""

    config: RunConfig
    missing: Callable[[Session, str, Key], Path] | None = None  # makes a trained part that is stored nowhere
    target: Target = field(init=False)
    model: LoadedModel = field(init=False)
    draft: LoadedModel | None = field(init=False, default=None)
    draft_card: Mapping[str, Any] = field(init=False, default_factory=dict)  # how a converted draft was made
    num_threads: int = field(init=False)
    latency_record: dict[str, Any] | None = field(init=False, default=None)  # of the profile that was used, if any

    def __post_init__(self) -> None:
        check_hub(self.config.model.sources, needed=self.config.needed_models)
        self._drop_others()
        self.model = self._load(self.config.model.target, self.config.model.target_revision)
        self._find_draft()
        self.target = Target(self.model.decoder)
        self._probed = Target(self.model.decoder)  # a cache of its own: what the target has read stays there
        self.num_threads = self._choose_threads()
        self.warm_up()

    # ---- models

    @property
    def dtype(self) -> torch.dtype:
        return resolve_dtype(self.config.hardware.dtype, self.config.hardware.device)

    @property
    def chat(self) -> Chat:
        return self._chat_of(self.model)

    @cached_property
    def date(self) -> datetime.date:
        return self.config.model.template_day

    @cached_property
    def sampling(self) -> Sampling:
        chosen = self.config.sampling
        return Sampling(chosen.temperature, chosen.top_k, chosen.top_p)

    def _load(self, source: str, revision: str | None) -> LoadedModel:
        how: dict[str, Any] = {
            "dtype": self.dtype,
            "device": self.config.hardware.device,
            "cache_dir": Path(self.config.paths.cache_dir).expanduser(),
            "revision": revision,
            "chat_template": self.config.model.chat_template,
        }
        key = (source, *how.values())
        if key not in _loaded:
            _loaded[key] = load_model(source, **how)
        return _loaded[key]

    def _find_draft(self) -> None:
        """The draft that the method needs, if it needs one: the model's own, or one that is converted."""
        if not self.config.method.needs_draft:
            return
        model = self.config.model
        if self.config.method.converts:
            found = converted_draft(self.config)
        else:
            assert model.draft is not None, "composing the config has checked it"
            found = Converted(model.draft, model.draft_revision)
        self.draft, self.draft_card = self._load_draft(found.source, found.revision), found.card

    def _load_draft(self, source: str, revision: str | None) -> LoadedModel:
        """A draft that was trained for this target shares its tensors; any other is a model that must pair."""
        trained = find_draft(source)
        if trained is not None:
            return load_draft(trained, self.model, self.config.model.draft_vocab)
        draft = self._load(source, revision)
        check_pair(self.chat, self._chat_of(draft))
        return draft

    def _drop_others(self) -> None:
        """Free the models of an earlier job of this process unless this one uses them too."""
        named = {self.config.model.target, self.config.model.draft}
        for key in [key for key in _loaded if key[0] not in named or key[1] != self.dtype]:
            del _loaded[key]

    @staticmethod
    def _chat_of(model: LoadedModel) -> Chat:
        if model.chat is None:
            raise ModelError(f"{model.folder} holds no tokenizer; prompts cannot be encoded")
        return model.chat

    # ---- generators

    @cached_property
    def baseline(self) -> Generator:
        """AR through the same loop on the same target."""
        return SpeculativeDecoding(self.target, Autoregressive(), self.sampling, timer=self.parts.timer)

    @cached_property
    def method(self) -> Generator:
        built = self.build(self.config.method)
        return built if self.config.measure.acceptance == "decode" else replay_of(built)

    @cached_property
    def parts(self) -> Parts:
        """What any method can be built from."""
        return Parts(
            target=self.target,
            sampling=self.sampling,
            draft=self.draft.decoder if self.draft else None,
            folder=self.model.folder,
            draft_folder=self.draft.folder if self.draft else None,
            curve=lambda: self.curve,
            latency=self.latency,
            model_hash=self.model.revision,
            task=self.config.task.name,
            artefacts=self._artefacts(),
        )

    def _artefacts(self) -> Artefacts:
        """What commands made on this machine comes first, then what is shipped, then what runs made."""
        make = None
        if self.missing is not None and self.config.artefact.if_missing == "build":
            make = partial(self.missing, self)
        return Artefacts(self.artefact_key, (self.artefact_folder, SHIPPED, self.made_folder), make=make)

    @property
    def artefact_folder(self) -> Path:
        """Where parts that were trained by a command on this machine are kept."""
        return Path(self.config.paths.cache_dir).expanduser() / "controllers"

    @property
    def made_folder(self) -> Path:
        """Where runs keep the parts that they had to make."""
        return self.artefact_folder / "made"

    @property
    def artefact_key(self) -> dict[str, str]:
        """What a trained controller must have been made for, but for who drafts."""
        template = str(self.chat.tokenizer.chat_template or "")
        sampling = self.sampling
        drawn = f"temperature={sampling.temperature}, top_k={sampling.top_k}, top_p={sampling.top_p}"
        return {
            "target": self.model.revision,
            "draft": self.draft.revision if self.draft else "none",
            "dtype": self.config.hardware.dtype,
            "template": prompt_sha256(template)[:8],
            "sampling": "greedy" if sampling.greedy else drawn,
        }

    def build(self, method: MethodConfig) -> Generator:
        """Another method on the same models."""
        return build_generator(method, self.parts)

    # ---- speed of this machine

    def warm_up(self) -> None:
        """First calls allocate and pick kernels: let them happen before anything is timed."""
        self._step_seconds(context=8, rows=1)
        self._step_seconds(context=8, rows=8)

    def probe(self) -> float:
        """Seconds of one AR step at a short context, the best of a few: the speed of the machine right now."""
        return min(self._step_seconds(context=8, rows=1) for _ in range(_PROBE_STEPS))

    @cached_property
    def curve(self) -> VerifyCurve:
        """t(T) of the target at a short context; measured once per model, machine and versions, then cached."""
        folder = Path(self.config.paths.cache_dir).expanduser() / "curves"
        known = load_curve(folder, self._curve_key)
        if known is not None:
            return known
        log.info("measuring how long verifying T tokens takes on this machine (once)")
        # A fresh cache is memory that was never touched, which reads faster than keys and values do.
        with torch.inference_mode():
            self.target.prefill([0] * (CURVE_CONTEXT + 1), capacity=CURVE_CONTEXT + 1 + max(CURVE_LENGTHS))
        measured = verify_curve(
            lambda rows: self._forward(self.target, context=CURVE_CONTEXT, rows=rows),
            CURVE_LENGTHS,
            synchronize=device_synchronizer(self.config.hardware.device),
        )
        if not measured.noisy:  # what did not settle is measured again by the next run
            store_curve(folder, self._curve_key, measured)
        return measured

    def latency(self, plan: ProfilePlan, *, again: bool = False) -> LatencyModel:
        """What the parts of a pass cost here; measured once per plan, model, machine and versions, then cached.

        `again` measures even where the cache knows; so does a profile that was taken on a busy machine.
        """
        plan = plan.within(self.model.spec.max_positions)
        folder = Path(self.config.paths.cache_dir).expanduser() / "curves"
        key = {**self._machine_key, "plan": dataclasses.asdict(plan)}
        known = None if again else load_latency(folder, key)
        if known is not None and not known.noisy:
            self.latency_record = latency_record(folder, key)
            return known
        log.info("measuring what the parts of a forward pass take on this machine (once)")
        measured, times = profile(self.target, plan, synchronize=device_synchronizer(self.config.hardware.device))
        store_latency(folder, key, measured, times)
        self.latency_record = latency_record(folder, key)
        return measured

    @property
    def _curve_key(self) -> dict[str, Any]:
        return {**self._machine_key, "context": CURVE_CONTEXT}

    @property
    def _machine_key(self) -> dict[str, Any]:
        return {
            "model": self.model.revision,
            "dtype": self.config.hardware.dtype,
            "device": str(self.config.hardware.device),
            "threads": self.num_threads,
            "cpu": cpu_model(),
            "torch": torch.__version__,
            "linear": self.model.decoder.linear_path,
        }

    def _choose_threads(self) -> int:
        chosen = self.config.hardware.num_threads
        if chosen is None and self.config.hardware.device != "cpu":
            return torch.get_num_threads()
        if chosen is None:
            path = Path(self.config.paths.results_dir) / "threads.json"
            chosen = choose_num_threads(self._seconds_with_threads, path=path)
        set_num_threads(chosen)
        return chosen

    def _seconds_with_threads(self, count: int) -> float:
        set_num_threads(count)
        self.warm_up()
        return self.probe()

    def _step_seconds(self, *, context: int, rows: int) -> float:
        synchronize = device_synchronizer(self.config.hardware.device)
        synchronize()
        start = time.perf_counter()
        self._forward(self._probed, context=context, rows=rows)
        synchronize()
        return time.perf_counter() - start

    @staticmethod
    @torch.inference_mode()
    def _forward(target: Target, *, context: int, rows: int) -> None:
        """One verify pass behind `context` cached rows; what the cache holds does not change its time."""
        target.reserve(context + rows)
        target.cache.length = context
        tokens = torch.zeros(rows - 1, dtype=torch.int64)
        with suppress(SampleError):  # logits that are NaN take as long; the samples say so
            target.verify(0, Draft(tokens=tokens, spine=rows - 1), Needs(), greedy=True)

    def environment(self) -> dict[str, Any]:
        """Versions, hardware, and the choices that were measured here."""
        return {
            **environment(self.config.hardware.device),
            "num_threads": self.num_threads,
            "linear_path": self.model.decoder.linear_path,
            "target": {"name": self.model.name, "revision": self.model.revision},
            "draft": {"name": self.draft.name, "revision": self.draft.revision} if self.draft else None,
            "artefacts": self.parts.artefacts.used,
        }

    # ---- prompts

    def encode(self, messages: Sequence[dict[str, str]], *, raw: bool) -> tuple[list[int], str]:
        """Token ids of a conversation, and its text as it is given to the tokenizer."""
        if raw:
            return self.chat.encode_raw(messages[-1]["content"]), messages[-1]["content"]
        rendered = self.chat.render(messages, date=self.date)
        return self.chat.encode_rendered(rendered), rendered

    def encode_question(self, text: str, *, raw: bool = False) -> list[int]:
        """Token ids of a conversation's first turn."""
        return self.encode([{"role": "user", "content": text}], raw=raw)[0]

    @staticmethod
    def sha256(text: str) -> str:
        """Hash of a rendered prompt."""
        return prompt_sha256(text)
