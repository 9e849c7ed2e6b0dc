"""The target writes its own training data: user turns, then articles about them, then answers to everything.

Every file has a number and a seed of its own, so that a command that was killed continues after its last file, and
what it makes does not depend on where it was killed. Commands started side by side share the work, each writing files
that no other is at: decoding keeps a GPU busy for a small part of its time only.
"""

from __future__ import annotations

import datetime
import json
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from specbench.config import CorpusConfig
from specbench.models.batch import BatchAnswer, BatchRequest, answer_batch
from specbench.models.chat import Chat
from specbench.models.decoder import Decoder
from specbench.results.files import write_json
from specbench.training import prompts as sources
from specbench.training.corpus import Example, in_windows, read_examples, write_examples
from specbench.training.prompts import Prompt, PromptFilter

log = logging.getLogger(__name__)

_WINDOW_FILES = 4  # files whose prompts are sorted by length together
_MOST_TURN_FILES = 4  # times as many files as would do if every turn were new and whole
_TURN_CHARS = 8  # a shorter turn asks nothing


Job = tuple[Path, Callable[[], None]]  # a file, and what writes it


def _made(jobs: Sequence[Job]) -> Iterator[int]:
    """Numbers of the jobs as their files are there: first those that no other command is at, then the rest."""
    waiting = dict(enumerate(jobs))
    for patience in (0, -1):
        for number, (path, write) in list(waiting.items()):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(path.with_suffix(".lock"), timeout=patience):
                    if not path.is_file():
                        write()
            except Timeout:
                continue
            del waiting[number]
            yield number


@dataclass(frozen=True)
class Writer:
    """The target with its chat template; `date` fills the template's dates, `size` answers are made together."""

    decoder: Decoder
    chat: Chat
    date: datetime.date
    size: int

    def encode(self, turn: str) -> list[int]:
        return self.chat.encode_chat([{"role": "user", "content": turn}], date=self.date)

    def turn_header(self) -> list[int]:
        """Token ids of everything before a first user turn's text."""
        return self.chat.encode_rendered(self.chat.turn_frame(date=self.date)[0])

    def answers(self, requests: Sequence[BatchRequest], *, seed: int) -> list[BatchAnswer]:
        return answer_batch(self.decoder, requests, stop_ids=self.chat.stop_ids, seed=seed, size=self.size)

    def turns(self, count: int, *, most_tokens: int, temperature: float, seed: int) -> list[str]:
        """What the target writes after its template's user header, of `count` tries those that came to an end."""
        request = BatchRequest(self.turn_header(), most_tokens, temperature)
        answers = self.answers([request] * count, seed=seed)
        whole = [answer.tokens for answer in answers if answer.tokens[-1] in self.chat.stop_ids]
        texts = [self.chat.decode(tokens).strip() for tokens in whole]
        return [text for text in texts if len(text) >= _TURN_CHARS]


@dataclass
class Collector:
    """Fills a folder: `turns/*.json`, `answers/*.safetensors`, `corpus.json` (what was asked, removed and skipped)."""

    writer: Writer
    config: CorpusConfig
    folder: Path
    seed: int
    data_dir: Path | None
    filter: PromptFilter
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        return self.config.prompts

    def collect(self) -> None:
        """Make what is missing; files that are there are kept as they are."""
        wanted = max(self.counts.get("user", 0), self.counts.get("article", 0))
        turns = self.user_turns(wanted) if wanted else []
        written = self.answer(sources.articles(turns[: self.counts.get("article", 0)]), "article")
        instructions = None if self.config.instructions is None else Path(self.config.instructions).expanduser()
        given = {"data_dir": self.data_dir, "instructions": instructions}
        prompts = [
            *(Prompt("user", turn) for turn in turns),
            *sources.own_summaries(self._texts(written)),
            *sources.given_prompts(self.counts, **given),
        ]
        kept = sources.chosen(self.filter.keep(prompts), self.counts, seed=self.seed)
        self.facts |= {
            "prompts_seen": dict(self.filter.seen),
            "prompts_removed_for_overlap": dict(self.filter.removed),
            "sources_skipped": sources.missing_sources(self.counts, **given),
        }
        with FileLock(self.folder / "corpus.lock"):
            write_json(self.folder / "corpus.json", self.facts)
        self.answer(kept, "mixed")

    def user_turns(self, count: int) -> list[str]:
        """`count` different user turns that the target writes after its template's user header."""
        turns = dict[str, str]()
        least = -(-count // self.config.file_answers)
        with tqdm(total=count, desc="user turns", disable=None) as bar:
            for _ in _made([self._turns_job(number) for number in range(least)]):
                bar.refresh()
            for number in range(_MOST_TURN_FILES * least):
                for text in self._turn_file(number):
                    turns.setdefault(" ".join(text.lower().split()), text)
                bar.update(min(len(turns), count) - bar.n)
                if len(turns) >= count:
                    break
        found = [prompt.text for prompt in self.filter.keep(Prompt("turn", text) for text in turns.values())]
        log.info("%d different user turns, %d of them without overlap", len(turns), len(found))
        return found[:count]

    def _turn_file(self, number: int) -> list[str]:
        job = self._turns_job(number)
        for _ in _made([job]):
            pass
        return list(json.loads(job[0].read_text(encoding="utf-8"))["turns"])

    def _turns_job(self, number: int) -> Job:
        path = self.folder / "turns" / f"{number:05d}.json"
        return path, partial(self._write_turns, path, number)

    def _write_turns(self, path: Path, number: int) -> None:
        turns = self.writer.turns(
            self.config.file_answers,
            most_tokens=self.config.turn_tokens,
            temperature=self.config.temperature,
            seed=self._seed("turns", number),
        )
        write_json(path, {"turns": turns})

    def answer(self, prompts: Sequence[Prompt], kind: str) -> list[Example]:
        """Answers to the prompts that are short enough; gives back the articles, which later prompts are made of."""
        encoded = [(prompt.source, self.writer.encode(prompt.text)) for prompt in prompts]
        fitting = [(source, ids) for source, ids in encoded if len(ids) <= self.config.max_prompt_tokens]
        self.facts[f"{kind}_prompts_too_long"] = len(encoded) - len(fitting)
        groups = self._groups(fitting)
        jobs = [self._answers_job(kind, number, group) for number, group in enumerate(groups)]
        with tqdm(total=len(fitting), desc=f"{kind} answers", disable=None) as bar:
            for number in _made(jobs):
                bar.update(len(groups[number]))
        return [example for path, _ in jobs for example in read_examples(path)] if kind == "article" else []

    def _answers_job(self, kind: str, number: int, group: Sequence[tuple[str, list[int]]]) -> Job:
        path = self.folder / "answers" / f"{kind}-{number:05d}.safetensors"
        return path, lambda: write_examples(path, self._answered(group, kind, number))

    def _groups(self, prompts: Sequence[tuple[str, list[int]]]) -> list[list[tuple[str, list[int]]]]:
        """The prompts of each file: about as long as each other, in an order that is mixed from file to file."""
        size, groups = self.config.file_answers, []
        for window in in_windows([len(ids) for _, ids in prompts], _WINDOW_FILES * size):
            groups += [[prompts[i] for i in window[first : first + size]] for first in range(0, len(window), size)]
        random.Random(self.seed).shuffle(groups)
        return groups

    def _answered(self, group: Sequence[tuple[str, list[int]]], kind: str, number: int) -> list[Example]:
        seed = self._seed(kind, number)
        draws, article = random.Random(seed), kind == "article"
        # Articles are documents for later prompts: greedy ones are too much alike.
        greedy = [not article and draws.random() < self.config.greedy_fraction for _ in group]
        requests = [
            BatchRequest(
                ids,
                self.config.article_tokens if article else self.config.max_new_tokens,
                0.0 if one else self.config.temperature,
            )
            for (_, ids), one in zip(group, greedy, strict=True)
        ]
        answers = self.writer.answers(requests, seed=seed)
        return [
            Example(source, one, torch.tensor(ids), torch.tensor(answer.tokens), answer.states, answer.log_z)
            for (source, ids), one, answer in zip(group, greedy, answers, strict=True)
        ]

    def _texts(self, examples: Sequence[Example]) -> list[str]:
        return [self.writer.chat.decode(example.answer.tolist()).strip() for example in examples]

    def _seed(self, kind: str, number: int) -> int:
        return random.Random(f"{self.seed}/{kind}/{number}").getrandbits(32)
