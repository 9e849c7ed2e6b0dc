"""The text that converters and reconstruction learn from: never a sample that a benchmark measures on.

Train splits and the standard library's documentation, checked for shared wording with every benchmark. Texts of tasks
are conversations in the model's chat template, with the reference as answer; the others are plain text. Every sequence
starts where a text starts, as a prompt does, and goes on with further texts to its full length: nothing is padded.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.config import DataConfig
from specbench.config.methods_mla import CalibrationConfig
from specbench.conversion.files import tensor_digest
from specbench.models.chat import Chat
from specbench.tasks import WITH_TRAIN_SPLIT, build_task
from specbench.training.documents import documentation, functions
from specbench.training.prompts import Prompt, PromptFilter, benchmark_filter
from specbench.types import ConfigError, DataError, Sample

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibration:
    """Token ids to learn from [S, T] and to judge by [S', T]; `card` says where they come from."""

    training: Tensor
    held_out: Tensor
    card: Mapping[str, Any]

    @property
    def every(self) -> Tensor:
        return torch.cat([self.training, self.held_out])


def check_disjoint(config: CalibrationConfig, task: str) -> None:
    """Raise ConfigError where the task that is measured has no split of its own to calibrate on."""
    if task in config.sources and task not in WITH_TRAIN_SPLIT:
        raise ConfigError(
            f"method.calibration.sources: {task} has no train split, so a draft that is measured on task={task} "
            "must not be calibrated on it; leave it out"
        )


def read_calibration(config: CalibrationConfig, chat: Chat, *, data: DataConfig, date: datetime.date) -> Calibration:
    """The sequences that `config` describes, the same for the same seed; DataError where the texts are too few."""
    texts, missing = _texts(config, chat, data, date)
    ids = sequences(_mixed(texts, config.seed), chat, config)
    training, held_out = ids[: config.num_sequences], ids[config.num_sequences :]
    card = {
        "texts": {name: len(found) for name, found in texts.items()},
        "not_available": missing,
        "data": data.source,
        "sequences": [config.num_sequences, config.held_out],
        "sequence_length": config.sequence_length,
        "seed": config.seed,
        "sha256": [tensor_digest(training), tensor_digest(held_out)],
    }
    return Calibration(training, held_out, card)


def sequences(texts: Sequence[str], chat: Chat, config: CalibrationConfig) -> Tensor:
    """Token ids [num_sequences + held_out, sequence_length]; each text is used once, cut where its sequence ends."""
    wanted, length = config.num_sequences + config.held_out, config.sequence_length
    rows: list[list[int]] = []
    row: list[int] = []
    for text in texts:
        row += chat.tokenizer.encode(text, add_special_tokens=False) if row else chat.encode_rendered(text)
        if len(row) >= length:
            rows.append(row[:length])
            row = []
        if len(rows) == wanted:
            return torch.tensor(rows)
    raise DataError(
        f"method.calibration: {len(texts)} texts give {len(rows)} of {wanted} sequences of {length} tokens; name more "
        "method.calibration.sources, or lower num_sequences, held_out or sequence_length"
    )


def _texts(
    config: CalibrationConfig, chat: Chat, data: DataConfig, date: datetime.date
) -> tuple[dict[str, list[str]], list[str]]:
    """Texts by source as they are encoded, and the sources that the data source does not have."""
    folder = None if data.dir is None else Path(data.dir).expanduser()
    allowed = benchmark_filter(folder)
    found: dict[str, list[str]] = {}
    missing = []
    for name in dict.fromkeys(config.sources):
        try:
            conversations = list(_conversations(name, data))
        except (ConfigError, DataError) as error:
            log.debug("calibration without %s: %s", name, error)
            missing.append(name)
            continue
        # longdoc is a benchmark itself: its texts would all be found in it.
        kept = conversations if name == "longdoc" else _clean(conversations, name, allowed)
        found[name] = [_text(turns, chat, date) for turns in kept]
    if not any(found.values()):
        raise DataError(f"method.calibration.sources: none of {', '.join(config.sources)} is available here")
    if missing:
        log.warning("calibration text without %s, which data=%s does not have", ", ".join(missing), data.source)
    return found, missing


def _conversations(name: str, data: DataConfig) -> Iterator[tuple[str, ...]]:
    """Turns of each text, user first; a single turn is a plain text."""
    if name == "documentation":
        for text in [*documentation(), *functions()]:
            yield (text,)
        return
    split = "train" if name in WITH_TRAIN_SPLIT else "test"
    task = build_task(name, source=data.source, data_dir=data.dir, split=split)
    yield from (_answered(sample) for sample in task.samples())


def _answered(sample: Sample) -> tuple[str, ...]:
    return (sample.turns[0], sample.reference) if sample.reference else (sample.turns[0],)


def _clean(conversations: list[tuple[str, ...]], name: str, allowed: PromptFilter) -> list[tuple[str, ...]]:
    """Those whose texts share no wording with a benchmark."""
    kept = allowed.keep(Prompt(name, "\n\n".join(turns)) for turns in conversations)
    texts = {prompt.text for prompt in kept}
    return [turns for turns in conversations if "\n\n".join(turns) in texts]


def _text(turns: tuple[str, ...], chat: Chat, date: datetime.date) -> str:
    if len(turns) == 1 or not chat.has_template:
        return "\n\n".join(turns) + "\n\n"
    roles = itertools.cycle(("user", "assistant"))
    return chat.transcript(
        [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)], date=date
    )


def _mixed(texts: Mapping[str, list[str]], seed: int) -> list[str]:
    """All texts, each source in random order, the sources taking turns."""
    orders = []
    for name in sorted(texts):
        order = sorted(set(texts[name]))
        random.Random(f"{seed} {name}").shuffle(order)
        orders.append(order)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*orders))
    return [text for text in turns if text is not None]
