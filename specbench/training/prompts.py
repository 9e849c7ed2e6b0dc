"""What the target is asked when it makes training data: prompts by source, none of them from a benchmark."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench.tasks import TASK_NAMES, build_task, cnn_dm, humaneval
from specbench.tasks.sources import read_jsonl
from specbench.training.documents import documentation, functions
from specbench.training.overlap import Benchmarks
from specbench.types import ConfigError, DataError

log = logging.getLogger(__name__)

_ARTICLE = "Write a long and detailed news article, as a newspaper would print it, about this subject: {}"
_SUMMARISE = (
    cnn_dm.INSTRUCTION + "\n\n{}",
    "Summarize the text below in a few sentences.\n\n{}",
    cnn_dm.INSTRUCTION + "\n\n{}",
    "Summarize: {}",
)
_ARTICLE_WORDS = 80  # a shorter answer is no document


@dataclass(frozen=True)
class Prompt:
    """One user turn and where it comes from."""

    source: str
    text: str


@dataclass
class PromptFilter:
    """Keeps prompts that share no n-gram with a benchmark; counts by source what it saw and what it removed."""

    forbidden: Benchmarks
    seen: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)

    def keep(self, prompts: Iterable[Prompt]) -> list[Prompt]:
        kept = []
        for prompt in prompts:
            self.seen[prompt.source] += 1
            if self.forbidden.overlap(prompt.text):
                self.removed[prompt.source] += 1
            else:
                kept.append(prompt)
        return kept


def benchmark_filter(data_dir: Path | None) -> PromptFilter:
    """The filter against every prompt of every task: embedded sets always, files of `data_dir` where it is given."""
    prompts: list[Sequence[str]] = []
    for name in TASK_NAMES:
        for source in ("embedded", "local") if data_dir is not None else ("embedded",):
            try:
                task = build_task(name, source=source, data_dir=data_dir)
            except (DataError, ConfigError) as error:
                log.warning("no overlap check against %s (%s): %s", name, source, error)
                continue
            prompts.append([turn for sample in task.samples() for turn in sample.turns])
    return PromptFilter(Benchmarks.of(prompts))


def given_prompts(counts: dict[str, int], *, data_dir: Path | None, instructions: Path | None) -> list[Prompt]:
    """Every prompt that exists before the target has written anything, of the sources that `counts` asks for."""
    sources: dict[str, Callable[[], list[str]]] = {
        "summary": lambda: summaries(documentation()),
        "completion": lambda: [f"{humaneval.INSTRUCTION}\n\n```python\n{stub}\n```" for stub in functions()],
    }
    if data_dir is not None:
        sources |= {"gsm8k": lambda: _train_split("gsm8k", data_dir), "mbpp": lambda: _train_split("mbpp", data_dir)}
    if instructions is not None:
        sources["instruction"] = lambda: _instructions(instructions)
    return [Prompt(name, text) for name, texts in sources.items() if counts.get(name) for text in texts()]


def missing_sources(counts: dict[str, int], *, data_dir: Path | None, instructions: Path | None) -> list[str]:
    """Sources that are asked for and cannot be had, for the card."""
    absent = (["gsm8k", "mbpp"] if data_dir is None else []) + (["instruction"] if instructions is None else [])
    return [name for name in absent if counts.get(name)]


def articles(turns: Sequence[str]) -> list[Prompt]:
    """Requests for a news article about each turn."""
    return [Prompt("article", _ARTICLE.format(turn)) for turn in turns]


def own_summaries(answers: Iterable[str]) -> list[Prompt]:
    """Requests to summarise the target's own answers, of those that are long enough."""
    long = [answer for answer in answers if len(answer.split()) >= _ARTICLE_WORDS]
    return [Prompt("own_summary", text) for text in summaries(long)]


def summaries(documents: Sequence[str]) -> list[str]:
    """Each document with a request to summarise it, in turn the task cnn_dm's and others."""
    return [_SUMMARISE[i % len(_SUMMARISE)].format(text) for i, text in enumerate(documents)]


def chosen(prompts: Sequence[Prompt], counts: dict[str, int], *, seed: int) -> list[Prompt]:
    """At most `counts[source]` prompts of each source, all mixed, the same for the same seed."""
    mixed = sorted(set(prompts), key=lambda prompt: (prompt.source, prompt.text))
    random.Random(seed).shuffle(mixed)
    taken: Counter[str] = Counter()
    kept = []
    for prompt in mixed:
        taken[prompt.source] += 1
        if taken[prompt.source] <= counts.get(prompt.source, 0):
            kept.append(prompt)
    return kept


def _train_split(name: str, data_dir: Path) -> list[str]:
    return [sample.turns[0] for sample in build_task(name, source="local", data_dir=data_dir, split="train").samples()]


def _instructions(path: Path) -> list[str]:
    """Instructions of a JSONL file (`instruction`, and the first of `instances` as its input)."""
    texts = []
    for row in read_jsonl(path):
        instances = row.data.get("instances") or [{}]
        given = str(instances[0].get("input") or "").strip()
        texts.append("\n\n".join(part for part in (row.text("instruction").strip(), given) if part))
    return texts
