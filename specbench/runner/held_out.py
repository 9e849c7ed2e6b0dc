"""The prompts that controllers learn from: none that a benchmark measures on, none that the draft was trained on."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from specbench.config import RunConfig
from specbench.models.draft import find_draft, held_out_every
from specbench.runner.planning import make_task, ordered_samples
from specbench.runner.session import Session
from specbench.training.collect import Writer
from specbench.training.distil import is_held_out
from specbench.training.prompts import Prompt, PromptFilter, benchmark_filter, chosen, given_prompts
from specbench.types import DataError

log = logging.getLogger(__name__)

MIX = "mix"  # in the place of a file of prompts
_MIXED = 200  # prompts of a mix of which no number is given
_LONGEST_PROMPT = 448  # tokens; longer ones only cost time here
_TURN_TOKENS, _TURN_TEMPERATURE = 96, 1.0  # as train_draft.py lets a target write them by default
_SIDE_BY_SIDE = 64  # turns that are written together
_TRIES = 4  # turns written for one that is wanted, at most

Texts = Iterator[str]


def held_out(config: RunConfig, session: Session, file: Path | None = None) -> list[list[int]]:
    """Prompts (token ids) to learn from: the task's train split, or the lines of a JSONL file.

    A line has `prompt`, or `instruction` and `instances` as in self-instruct files. DataError names a line without.
    The name `mix` means prompts of several kinds.
    """
    if str(file) == MIX:
        return mixed_prompts(config, session, config.num_samples or _MIXED)
    if file is None:
        samples = ordered_samples(config, make_task(config, "train"))
        texts = [(sample.turns[0], sample.raw) for sample in samples]
    else:
        lines = file.read_text(encoding="utf-8").splitlines()[: config.num_samples]
        texts = [(_prompt(line, f"{file}:{number}"), False) for number, line in enumerate(lines, start=1)]
    return [session.encode_question(text, raw=raw) for text, raw in texts]


def _prompt(line: str, where: str) -> str:
    try:
        fields = json.loads(line)
        if "prompt" in fields:
            return str(fields["prompt"])
        given = [instance["input"] for instance in fields.get("instances", ())][:1]
        return "\n\n".join([fields["instruction"], *filter(None, given)])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: needs `prompt`, or `instruction` and `instances` ({error!r})") from error


def mixed_prompts(config: RunConfig, session: Session, count: int) -> list[list[int]]:
    """At most `count` prompts (token ids), the kinds taking turns, the same for the same seed.

    Kinds: turns that the target writes itself, texts to summarise and functions to complete of the Python standard
    library; with data=local also the train splits. A prompt that a draft of scripts/train_draft.py was trained on (by
    the rule in its card) is left out, and so are long ones and those that share 13 words with a benchmark.
    """
    data_dir = None if config.data.dir is None else Path(config.data.dir)
    allowed = benchmark_filter(data_dir)
    kinds = [_usable("user", _own_turns(config, session, count), session, allowed, lambda ids: True)]
    unseen = _unseen(config)
    for source, texts in _given(config, data_dir, count):
        kinds.append(_usable(source, texts, session, allowed, unseen))
    in_turns = (ids for prompts in itertools.zip_longest(*kinds) for ids in prompts if ids is not None)
    return list(itertools.islice(in_turns, count))


def _usable(
    source: str, texts: Iterable[str], session: Session, allowed: PromptFilter, unseen: Callable[[list[int]], bool]
) -> Iterator[list[int]]:
    for text in texts:
        ids = session.encode_question(text)
        if len(ids) <= _LONGEST_PROMPT and unseen(ids) and allowed.keep([Prompt(source, text)]):
            yield ids


def _given(config: RunConfig, data_dir: Path | None, count: int) -> Iterator[tuple[str, Texts]]:
    """The kinds that are there before anybody writes anything, in an order of their own."""
    for source in ("summary", "completion") if data_dir is None else ("summary", "completion", "gsm8k", "mbpp"):
        try:
            given = given_prompts({source: count}, data_dir=data_dir, instructions=None)
        except DataError as error:
            log.info("no held-out prompts of the kind %s: %s", source, error)
            continue
        yield source, (prompt.text for prompt in chosen(given, {source: len(given)}, seed=config.seed))


def _own_turns(config: RunConfig, session: Session, count: int) -> Texts:
    """User turns as the target writes them, each once; nothing where it has no template or its turns never end."""
    if not session.chat.has_template or session.model.spec.mla is not None:
        return
    size = min(count, _SIDE_BY_SIDE)
    writer, known = Writer(session.model.decoder, session.chat, session.date, size), set[str]()
    for number in range(_TRIES * -(-count // size)):
        seed = random.Random(f"{config.seed}/held_out/{number}").getrandbits(32)
        turns = writer.turns(size, most_tokens=_TURN_TOKENS, temperature=_TURN_TEMPERATURE, seed=seed)
        if not turns:
            return
        yield from (turn for turn in dict.fromkeys(turns) if turn not in known)
        known.update(turns)


def _unseen(config: RunConfig) -> Callable[[list[int]], bool]:
    """Whether the run's draft was never trained on a prompt, as far as its card can tell."""
    folder = find_draft(config.model.draft) if config.method.needs_draft and config.model.draft else None
    every = None if folder is None else held_out_every(folder)
    return (lambda ids: True) if every is None else (lambda ids: is_held_out(ids, every))
