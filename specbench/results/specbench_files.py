"""Answer files of Spec-Bench (and of SWIFT's own variant): written, read and scored as their scorers do.

The scorer's convention is not ours: speed is the mean of per-question rates with prefill included, and the baseline's
tokens are counted again from its text. `analysis` has our own definitions; these numbers serve comparison with the
literature. Source: the format and the formulas of hemingkx/Spec-Bench and hemingkx/SWIFT, restated.
"""

from __future__ import annotations

import json
import math
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.results.files import make_folder, write_atomically
from specbench.types import ConfigError, DataError

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
SUBSETS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
OVERALL = "overall"
BASELINE_COUNTS = ("text", "recorded")

CountTokens = Callable[[str], int]

_PER_TURN = ("turns", "decoding_steps", "new_tokens", "wall_time")


@dataclass(frozen=True)
class Conversation:
    """One question's answer: one entry a turn, except `accept_lengths` (tokens committed per step, all turns)."""

    question_id: int
    category: str
    model_id: str
    turns: tuple[str, ...] = ()
    decoding_steps: tuple[int, ...] = ()
    new_tokens: tuple[int, ...] = ()
    wall_time: tuple[float, ...] = ()  # seconds, prefill included
    accept_lengths: tuple[int, ...] = ()
    num_draft_tokens: int | None = None  # only SWIFT's file has a place for it
    error: str | None = None  # a failed question: goes to the side file and carries no numbers
    ext: Mapping[str, Any] = field(default_factory=dict)  # ours; scorers ignore it


def failed_path(path: Path) -> Path:
    """The side file with the questions that failed: `x.jsonl` -> `x.failed.jsonl`."""
    return path.with_suffix(".failed.jsonl")


def export_answers(conversations: Iterable[Conversation], path: Path) -> int:
    """Write Spec-Bench answers sorted by id, failed questions to `failed_path`; returns the answers written.

    DataError, with nothing written, when a conversation would break the scorer or falsify its averages.
    """
    return _export(conversations, path, _answer)


def export_swift(conversations: Iterable[Conversation], path: Path) -> int:
    """Write answers in SWIFT's own format (single-turn, no ids, a summary line last); otherwise as export_answers."""
    conversations = list(conversations)
    several = [c.question_id for c in conversations if c.error is None and len(c.turns) > 1]
    if several:
        raise DataError(f"{path}: SWIFT's format holds one turn a question; several turns in {several[:5]}")
    return _export(conversations, path, _swift_answer, [_swift_summary([c for c in conversations if c.error is None])])


def _export(
    conversations: Iterable[Conversation],
    path: Path,
    to_row: Callable[[Conversation], dict[str, Any]],
    last_rows: Sequence[dict[str, Any]] = (),
) -> int:
    ordered = sorted(conversations, key=lambda c: c.question_id)
    answered = [c for c in ordered if c.error is None]
    _check_ids(path, ordered)
    for conversation in answered:
        _check(path, conversation)
    make_folder(path.parent)
    _write_lines(path, [to_row(c) for c in answered] + [row for row in last_rows if row])
    failed = [{"question_id": c.question_id, "category": c.category, "error": c.error} for c in ordered if c.error]
    if failed:
        _write_lines(failed_path(path), failed)
    else:
        failed_path(path).unlink(missing_ok=True)  # of an earlier export
    return len(answered)


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    write_atomically(path, "".join(lines).encode())


def _check_ids(path: Path, conversations: Sequence[Conversation]) -> None:
    ids = [c.question_id for c in conversations]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise DataError(f"{path}: question_id {twice[:5]} occurs more than once")


def _check(path: Path, conversation: Conversation) -> None:
    c = conversation
    lengths = {name: len(getattr(c, name)) for name in _PER_TURN}
    rules = {
        f"one entry a turn in each of {lengths}": len(set(lengths.values())) == 1 and bool(c.turns),
        "one accept length a step": len(c.accept_lengths) == sum(c.decoding_steps),
        "accept lengths that add up to the new tokens": sum(c.accept_lengths) == sum(c.new_tokens),
        "a time above zero in every turn": all(seconds > 0 and math.isfinite(seconds) for seconds in c.wall_time),
        "at least one token in every turn": all(count > 0 for count in c.new_tokens),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise DataError(f"{path}: question {c.question_id} cannot be exported; it needs {'; '.join(broken)}")


def _answer(conversation: Conversation) -> dict[str, Any]:
    c = conversation
    identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{c.model_id}/{c.question_id}").hex[:22]
    row: dict[str, Any] = {
        "question_id": c.question_id,
        "category": c.category,
        "answer_id": identity,
        "model_id": c.model_id,
    }
    choice = {"index": 0} | {name: list(getattr(c, name)) for name in (*_PER_TURN, "accept_lengths")}
    return row | {"tstamp": time.time(), "choices": [choice]} | ({"ext": dict(c.ext)} if c.ext else {})


def _swift_answer(conversation: Conversation) -> dict[str, Any]:
    c = conversation
    lists = {name: list(getattr(c, name)) for name in ("decoding_steps", "new_tokens", "wall_time", "accept_lengths")}
    choice: dict[str, Any] = {"turns": c.turns[0], **lists, "acceptance_rate": _acceptance([c])}
    return {"model_id": c.model_id, "choices": [choice], "tstamp": time.time()}


def _swift_summary(conversations: Sequence[Conversation]) -> dict[str, Any]:
    accepted = [length for c in conversations for length in c.accept_lengths]
    if not accepted:
        return {}
    return {"Mean accepted tokens": _mean(accepted), "Token acceptance rate": _acceptance(conversations)}


def _acceptance(conversations: Sequence[Conversation]) -> float | None:
    """SWIFT's rate: (committed - steps) / drafted; None when nothing was drafted or drafts were not counted."""
    drafted = sum(c.num_draft_tokens or 0 for c in conversations)
    return sum(sum(c.accept_lengths) - len(c.accept_lengths) for c in conversations) / drafted if drafted else None


def read_answers(path: Path) -> list[Conversation]:
    """The questions of a Spec-Bench answer file in file order; DataError names the file and the line."""
    return [_parse(where, row, swift_id=None) for where, row in _rows(path)]


def read_swift(path: Path) -> list[Conversation]:
    """The questions of a file in SWIFT's format, numbered from 0; its summary line (no `choices`) is left out."""
    rows = [(where, row) for where, row in _rows(path) if "choices" in row]
    return [_parse(where, row, swift_id=number) for number, (where, row) in enumerate(rows)]


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines would also cut at U+2028 inside a text
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path} line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f"{path} line {number}: expected an object, got {type(row).__name__}")
        yield f"{path} line {number}", row


def _parse(where: str, row: Mapping[str, Any], *, swift_id: int | None) -> Conversation:
    choices = row.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise DataError(f"{where}: `choices` must be a list with one object")
    choice = choices[0] if swift_id is None else choices[0] | {"turns": [choices[0].get("turns")]}
    identity = {"question_id": swift_id, "category": ""} if swift_id is not None else row
    return Conversation(
        question_id=_typed(where, identity, "question_id", int),
        category=_typed(where, identity, "category", str),
        model_id=str(row.get("model_id", "")),
        turns=_list(where, choice, "turns", str),
        decoding_steps=_list(where, choice, "decoding_steps", int),
        new_tokens=_list(where, choice, "new_tokens", int),
        wall_time=_list(where, choice, "wall_time", (int, float)),
        accept_lengths=_list(where, choice, "accept_lengths", int),
        ext=row.get("ext") or {},
    )


def _typed(where: str, row: Mapping[str, Any], key: str, kind: type) -> Any:
    if not isinstance(row.get(key), kind):
        raise DataError(f"{where}: `{key}` must be a {kind.__name__}, got {row.get(key)!r}")
    return row[key]


def _list(where: str, row: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> tuple[Any, ...]:
    values = row.get(key)
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise DataError(f"{where}: `choices[0].{key}` is missing or holds a wrong type: {values!r:.80}")
    return tuple(values)


def score(
    method_path: Path,
    baseline_path: Path,
    count_tokens: CountTokens,
    task: str = OVERALL,
    *,
    baseline_count: str = "text",
) -> dict[str, float | int | None]:
    """Speeds, their ratio, and committed tokens per step of one subset; None where the scorer gives NaN.

    `count_tokens` is the length of the tokenizer's ids of a text, special tokens included. `baseline_count`: `text`
    counts the baseline's answers again and takes one off a turn, as the scorer does (a file against itself is above
    1); `recorded` uses its own new_tokens, which is unbiased.
    """
    if baseline_count not in BASELINE_COUNTS:
        raise ConfigError(f"baseline_count={baseline_count!r} is not legal; choose one of {', '.join(BASELINE_COUNTS)}")
    method = _subset(read_answers(method_path), task)
    baseline = _subset(read_answers(baseline_path), task)
    recount = count_tokens if baseline_count == "text" else None
    speed = _mean([_rate(method_path, c) for c in method])
    base = _mean([_rate(baseline_path, c, recount) for c in baseline])
    accepted = [length for c in method for length in c.accept_lengths]
    return {
        "tokens_per_second": speed,
        "tokens_per_second_baseline": base,
        "speedup": None if speed is None or not base else speed / base,
        "mean_accepted_tokens": _mean(accepted),
        "num_steps": len(accepted),
    }


def score_runs(
    pairs: Sequence[tuple[Path, Path]], count_tokens: CountTokens, task: str = OVERALL, *, baseline_count: str = "text"
) -> dict[str, Any]:
    """Each figure of `score` as (mean, sample standard deviation) over (method, baseline) runs, steps pooled."""
    runs = [score(method, base, count_tokens, task, baseline_count=baseline_count) for method, base in pairs]
    pooled = [n for method, _ in pairs for c in _subset(read_answers(method), task) for n in c.accept_lengths]
    figures = ("tokens_per_second", "tokens_per_second_baseline", "speedup")
    return {"mean_accepted_tokens": _mean(pooled)} | {name: _mean_std([run[name] for run in runs]) for name in figures}


def _subset(conversations: Sequence[Conversation], task: str) -> list[Conversation]:
    if task == OVERALL:
        return list(conversations)
    if task not in SUBSETS:
        raise ConfigError(f"task={task!r} is not a Spec-Bench subset; choose one of {', '.join((*SUBSETS, OVERALL))}")
    categories = MT_BENCH if task == "mt_bench" else (task,)
    return [c for c in conversations if c.category in categories]


def _rate(path: Path, conversation: Conversation, count_tokens: CountTokens | None = None) -> float:
    """Tokens per second of one question."""
    seconds = sum(conversation.wall_time)
    if seconds <= 0:
        raise DataError(f"{path}: question {conversation.question_id} has no time, so it has no speed")
    if count_tokens is None:
        return sum(conversation.new_tokens) / seconds
    return sum(count_tokens(text) - 1 for text in conversation.turns) / seconds


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _mean_std(values: Sequence[float | int | None]) -> tuple[float | None, float | None]:
    known = [float(value) for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None, None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None
