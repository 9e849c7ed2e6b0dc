"""A draft for any target, from the target alone: it writes the data, its layers are the start, its states the teacher.

`paths.cache_dir/drafts/NAME/` holds everything: `turns/`, `answers/`, `corpus.json`, `checkpoint.pt`, the best draft so
far in `draft/`, which `model.draft` can name, and the prompts it never saw in `held_out.jsonl`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

import specbench
from specbench.config import TrainDraftConfig
from specbench.hardware.devices import resolve_device
from specbench.hardware.environment import git_state
from specbench.hardware.threads import set_num_threads
from specbench.models.chat import Chat, load_chat
from specbench.models.checkpoint import load_decoder
from specbench.models.decoder import Decoder
from specbench.models.draft import save_draft
from specbench.models.linear import scored_ids
from specbench.models.source import Source, resolve
from specbench.results.files import read_json, write_atomically, write_json
from specbench.training.collect import Collector, Writer
from specbench.training.corpus import Example, batch_files, count_tokens, read_corpus
from specbench.training.distil import (
    Distillation,
    Progress,
    held_out_part,
    is_held_out,
    reduced_vocabulary,
    start_draft,
)
from specbench.training.prompts import benchmark_filter
from specbench.types import ConfigError, DataError, ModelError

log = logging.getLogger(__name__)

_DTYPE = torch.float32  # several times faster than half precision on CPUs without half-precision instructions


@dataclass
class DraftTraining:
    """One draft in the making; `command` is noted in its card."""

    config: TrainDraftConfig
    command: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.config.paths.cache_dir).expanduser() / "drafts" / self.config.name

    @property
    def draft_folder(self) -> Path:
        return self.folder / "draft"

    def run(self) -> Path:
        """Make the data, train, or both; the draft's folder. Continues where an earlier command was stopped."""
        if self.config.hardware.num_threads is not None:
            set_num_threads(self.config.hardware.num_threads)
        self._claim()
        if self.config.stage in ("all", "data"):
            self.collect()
        if self.config.stage in ("all", "train"):
            self.train()
        return self.draft_folder

    def collect(self) -> None:
        """Let the target write and answer prompts."""
        decoder = load_decoder(self.target.folder, dtype=_DTYPE, device=self.device)
        data_dir = None if self.config.data.dir is None else Path(self.config.data.dir).expanduser()
        Collector(
            writer=Writer(decoder, self.chat, self.config.model.template_day, self.config.corpus.batch_size),
            config=self.config.corpus,
            folder=self.folder,
            seed=self.config.seed,
            data_dir=data_dir,
            filter=benchmark_filter(data_dir),
        ).collect()

    def train(self) -> Progress:
        """Train on what was collected so far, whole or not; the best draft by held-out acceptance is kept."""
        examples = read_corpus(batch_files(self.folder / "answers"))
        if not examples:
            raise DataError(f"{self.folder}: no answers to train on yet; run with stage=data first")
        self._store_held_out(examples)
        training, held_out = held_out_part(examples, self.config.training)
        return self.distillation(training, held_out).run()

    def distillation(self, training: Sequence[Example], held_out: Sequence[Example]) -> Distillation:
        """The training run on these examples, whose best draft goes to `draft/` with its card."""
        settings = self.config.training
        decoder = load_decoder(self.target.folder, dtype=_DTYPE, device=self.device)
        ids = reduced_vocabulary(training, settings.vocab_size, decoder.spec.vocab_size)
        draft = start_draft(decoder, settings.layers, ids)
        facts = self._facts(training, held_out, decoder.spec.vocab_size if ids is None else len(ids))

        def keep(progress: Progress) -> None:
            card = {**facts, "scores": progress.curve[-1], "curve": progress.curve}
            save_draft(self.draft_folder, draft, self.target.folder, head_ids=ids, card=card)

        head = draft.head.weight
        assert head is not None
        log.info("%d answers to train on, %d held out, draft of %s", len(training), len(held_out), _size(draft))
        return Distillation(
            draft=draft,
            head=head,
            training=training,
            held_out=held_out,
            config=settings,
            folder=self.folder,
            seed=self.config.seed,
            keep=keep,
        )

    # ---- parts

    @cached_property
    def device(self) -> str:
        return resolve_device(self.config.hardware.device)

    @cached_property
    def target(self) -> Source:
        model = self.config.model
        cache_dir = Path(self.config.paths.cache_dir).expanduser()
        return resolve(model.target, cache_dir=cache_dir, revision=model.target_revision)

    @cached_property
    def chat(self) -> Chat:
        chat = load_chat(self.target.folder, self.target.name, chat_template=self.config.model.chat_template)
        if chat is None:
            raise ModelError(f"{self.target.folder} holds no tokenizer; prompts cannot be encoded")
        return chat

    def _claim(self) -> None:
        """A folder belongs to one target, one seed and one way of generating; anything else needs another name."""
        path = self.folder / "settings.json"
        ours = {"target_revision": self.target.revision, "seed": self.config.seed, **asdict(self.config.corpus)}
        if self.config.stage != "train":
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock")):  # commands side by side may start at once
                if not path.is_file():
                    write_json(path, ours)
        elif not path.is_file():
            return
        theirs = read_json(path)
        differing = [key for key, value in ours.items() if theirs.get(key) != value]
        if differing and self.config.stage != "train":
            raise ConfigError(
                f"name={self.config.name}: the data in {self.folder} was made with another {', '.join(differing)}; "
                "choose another name, or set these keys as they were"
            )
        if "target_revision" in differing:
            raise ConfigError(f"name={self.config.name}: the data in {self.folder} is another target's")

    def _store_held_out(self, examples: Sequence[Example]) -> None:
        """The user turns that the draft is not trained on: what its controllers are trained on."""
        chat, every = self.chat, self.config.training.held_out_every
        day = self.config.model.template_day
        turns = {
            chat.only_turn(example.prompt.tolist(), date=day): example.source
            for example in examples
            if is_held_out(example.prompt.tolist(), every)
        }
        lines = [json.dumps({"prompt": turn, "source": source}, ensure_ascii=False) for turn, source in turns.items()]
        write_atomically(self.folder / "held_out.jsonl", ("\n".join(lines) + "\n").encode())

    def _facts(self, training: Sequence[Example], held_out: Sequence[Example], vocab_size: int) -> dict[str, Any]:
        corpus = self.folder / "corpus.json"
        return {
            "target": self.target.name,
            "target_revision": self.target.revision,
            "settings": asdict(self.config.training),
            "generation": self._generation(),
            "prompts": read_json(corpus) if corpus.is_file() else None,  # None while data is still being made
            "seed": self.config.seed,
            "vocab_size": vocab_size,
            "data": count_tokens(training),
            "held_out": count_tokens(held_out),
            "command": self.command,
            "git": git_state(Path(specbench.__file__).resolve().parent),
        }

    def _generation(self) -> dict[str, Any]:
        """How the data was made; of a file only its name, since a card goes to other machines."""
        made = read_json(self.folder / "settings.json")
        file = made.get("instructions")
        return {**made, "instructions": file and Path(file).name}


def _size(draft: Decoder) -> str:
    ids = scored_ids(draft.head)
    rows = draft.spec.vocab_size if ids is None else len(ids)
    return f"{draft.spec.num_layers} layers and {rows} tokens"
