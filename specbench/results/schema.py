"""The columns of samples, steps and choices: the one place that says what a stored row holds.

A sample row is one turn decoded once by one arm: its key is (sample_id, turn, arm, attempt, repeat). Seconds are
wall-clock. A row whose finish_reason is `error` or `skipped` carries no measured number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from specbench.types import ChoiceRecord, DataError, StepRecord

METHOD = "method"
BASELINE = "baseline"
ARMS = (METHOD, BASELINE)
FINISH_REASONS = ("stop", "length", "error", "skipped")
WITHOUT_NUMBERS = ("error", "skipped")
KEY = ("sample_id", "turn", "arm", "attempt", "repeat")

Row = Mapping[str, Any]


class Column(NamedTuple):
    """One stored column; `required` columns are never null."""

    name: str
    type: pa.DataType
    doc: str
    required: bool = False


TEXT, INT, FLOAT, BOOL, IDS = pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.list_(pa.int32())
FLOATS = pa.list_(pa.float64())

_KEY_COLUMNS = (
    Column("sample_id", TEXT, "conversation: the unit of resume and the bootstrap cluster", required=True),
    Column("turn", INT, "0 = first user message", required=True),
    Column("arm", TEXT, "method | baseline (the paired AR run)", required=True),
    Column("attempt", INT, "0 = first; a pair whose AR time drifted is repeated, all are kept", required=True),
    Column("repeat", INT, "index among measure.repeats", required=True),
)

SAMPLE_COLUMNS = (
    *_KEY_COLUMNS,
    Column("used", BOOL, "this attempt counts in every metric", required=True),
    Column("category", TEXT, "the task's own label of the sample", required=True),
    Column("ran_first", BOOL, "this arm ran before the other one of its pair"),
    Column("seed", INT, "seed of the sample's generator"),
    Column("prompt_sha256", TEXT, "hash of the rendered prompt"),
    Column("prompt_tokens", INT, "tokens of the prompt"),
    Column("prompt_truncated", BOOL, "the prompt was cut to fit the context"),
    Column("num_tokens", INT, "emitted tokens, the stop id included"),
    Column("tokens", IDS, "emitted ids, cut at the first stop id and at the budget"),
    Column("text", TEXT, "the answer without special tokens"),
    Column("finish_reason", TEXT, "stop | length | error | skipped", required=True),
    Column("error", TEXT, "why a row failed or was skipped"),
    Column("prefill_s", FLOAT, "prefill, the drafter's begin included"),
    Column("decode_s", FLOAT, "propose + verify + adapt + host, up to the last committed token"),
    Column("ttft_s", FLOAT, "time to the first committed token"),
    Column("draft_s", FLOAT, "phase: propose (null without steps, like the three phases below)"),
    Column("verify_s", FLOAT, "phase: target forward"),
    Column("adapt_s", FLOAT, "phase: observe (learn, search, roll back)"),
    Column("host_s", FLOAT, "phase: everything else of decode"),
    Column("num_steps", INT, "verify steps (null without steps, like the four counts below)"),
    Column("num_draft_tokens", INT, "spine tokens drafted (null also without a spine)"),
    Column("num_tree_tokens", INT, "every drafted row that could be accepted"),
    Column("num_accepted", INT, "accepted draft rows"),
    Column("num_accepted_spine", INT, "accepted draft rows of the spine (null also without a spine)"),
    Column("peak_memory_bytes", INT, "peak memory while this row was decoded"),
    Column("load_before", FLOAT, "machine load before"),
    Column("load_after", FLOAT, "machine load after"),
    Column("timed", BOOL, "measured under the exclusive lock: usable for speed", required=True),
    Column("exact_match", BOOL, "ids equal the baseline's (method rows with a baseline, greedy)"),
    Column("divergence_index", INT, "first differing position, null when exact"),
    Column("divergence_gap", FLOAT, "fp32 logit gap of the two candidates at that position"),
    Column("divergence_class", TEXT, "tie | bug, null when exact"),
    Column("teacher_agreement", FLOAT, "share of AR's tokens that are the arm's argmax under AR's own prefix"),
    Column("scores", TEXT, "JSON object: score name -> value in [0, 1], of the whole conversation"),
    Column("repetition_rate", FLOAT, "share of repeated 8-grams in the answer"),
    Column("started_at", FLOAT, "unix seconds"),
)

STEP_COLUMNS = (
    *_KEY_COLUMNS,
    Column("step", INT, "0 = first verify step of the turn", required=True),
    Column("context_length", INT, "committed tokens before the step", required=True),
    Column("num_draft_tokens", INT, "spine length; null without a spine"),
    Column("num_tree_tokens", INT, "every row that could be accepted", required=True),
    Column("num_passengers", INT, "rows that ride along and can never be accepted", required=True),
    Column("num_accepted", INT, "accepted draft rows", required=True),
    Column("num_accepted_spine", INT, "accepted draft rows of the spine", required=True),
    Column("num_emitted", INT, "tokens committed, after the cut at stop and budget", required=True),
    Column("draft_s", FLOAT, "propose", required=True),
    Column("verify_s", FLOAT, "target forward", required=True),
    Column("adapt_s", FLOAT, "observe", required=True),
    Column("host_s", FLOAT, "the rest of the step", required=True),
    Column("draft_tokens", IDS, "drafted ids in row order", required=True),
    Column("info", TEXT, "JSON object: what the drafter noted", required=True),
    Column("stop_reason", TEXT, "why drafting ended: rule, cap, planned, budget, stop_id, or the drafter's own word"),
    Column("block_lengths", IDS, "spine tokens of each drafted block; null without a controller"),
    Column("block_scores", FLOATS, "the stop rule's value after each block that it judged, first block first"),
    Column("oracle_length", INT, "spine tokens worth drafting; null where all were accepted and more might have been"),
)
# Columns that folders written before them lack; there they are null.
LATER = {"steps": ("stop_reason", "block_lengths", "block_scores", "oracle_length")}

CHOICE_COLUMNS = (
    *_KEY_COLUMNS,
    Column("step", INT, "verify step at which the choice was made", required=True),
    Column("context_length", INT, "committed tokens at that moment", required=True),
    Column("kind", TEXT, "what was chosen, e.g. skip_set", required=True),
    Column("values", TEXT, "JSON object: the choice and its score", required=True),
)

# Matched cells of conversion experiments: made from finished runs, so that they are stored only where runs are frozen.
_ARM_COLUMNS = (
    Column("run_id", TEXT, "the run that measured it", required=True),
    Column("pair", TEXT, "target <- draft before conversion", required=True),
    Column("converter", TEXT, "transmla | mha2mla | svd | care | none (the original draft)", required=True),
    Column("budget", FLOAT, "cache of the converted draft as a share of the original's", required=True),
    Column("variant", TEXT, "original | none (as converted) | kv | functional", required=True),
    Column("options", TEXT, "JSON object: the other keys of the conversion", required=True),
    Column("tuning", TEXT, "JSON object: the keys of the tuning; {} where nothing is tuned", required=True),
)
CELL_COLUMNS = (
    *_ARM_COLUMNS,
    Column("task", TEXT, "the task as the run names it", required=True),
    Column("setting", TEXT, "dtype, draft length, answer length: what arms must share", required=True),
    Column("acceptance", TEXT, "replay | decode", required=True),
    Column("sample_id", TEXT, "conversation", required=True),
    Column("prompt_sha256", TEXT, "hash of the first prompt: equal prompts are one cluster", required=True),
    Column("accepted", INT, "accepted draft tokens, over all turns", required=True),
    Column("proposed", INT, "drafted tokens", required=True),
    Column("emitted", INT, "tokens of the answers", required=True),
    Column("steps", INT, "verify steps", required=True),
)
RECONSTRUCTION_COLUMNS = (
    *_ARM_COLUMNS,
    Column("layer", INT, "layer of the draft", required=True),
    Column("rank", INT, "width of its latent"),
    Column("error_before", FLOAT, "held-out relative squared error behind the output projection, as converted"),
    Column("error_after", FLOAT, "the same at the end, in the draft's dtype"),
    Column("seconds", FLOAT, "tuning"),
)

# A failed row must not carry these: a stale number would enter an average.
_NUMBERS = tuple(
    name
    for name in (column.name for column in SAMPLE_COLUMNS)
    if name.startswith(("num_", "divergence_")) or name.endswith("_s") or name in ("exact_match", "teacher_agreement")
)


def _schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(c.name, c.type, nullable=not c.required, metadata={"doc": c.doc}) for c in columns])


TABLES: dict[str, pa.Schema] = {
    "samples": _schema(SAMPLE_COLUMNS),
    "steps": _schema(STEP_COLUMNS),
    "choices": _schema(CHOICE_COLUMNS),
}
DERIVED: dict[str, pa.Schema] = {
    "cells": _schema(CELL_COLUMNS),
    "reconstruction": _schema(RECONSTRUCTION_COLUMNS),
}


def step_row(key: Row, record: StepRecord) -> dict[str, Any]:
    """The steps row of one record; `key` names sample_id, turn, arm, attempt and repeat."""
    return {**key, **_plain_fields(record, "info")}


def choice_row(key: Row, record: ChoiceRecord) -> dict[str, Any]:
    """The choices row of one record; `key` names sample_id, turn, arm, attempt and repeat."""
    return {**key, **_plain_fields(record, "values")}


def _plain_fields(record: StepRecord | ChoiceRecord, json_field: str) -> dict[str, Any]:
    row = {f.name: getattr(record, f.name) for f in fields(record)}
    row[json_field] = json.dumps(dict(row[json_field]), default=_plain)
    return row


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


def to_table(name: str, rows: Iterable[Row]) -> pa.Table:
    """Rows as a table of the named schema; DataError on an unknown or missing column or a value of the wrong type."""
    rows = [dict(row) for row in rows]
    schema = TABLES[name]
    for row in rows:
        _check_row(name, schema, row)
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DataError(f"{name}: a row does not fit the schema: {error}") from error


def _check_row(name: str, schema: pa.Schema, row: Row) -> None:
    where = f"{name} row {row.get('sample_id')!r}"
    unknown = sorted(set(row) - set(schema.names))
    if unknown:
        raise DataError(f"{where}: unknown columns {unknown}; legal: {schema.names}")
    missing = [field.name for field in schema if not field.nullable and row.get(field.name) is None]
    if missing:
        raise DataError(f"{where}: columns {missing} must not be empty")
    if row["arm"] not in ARMS:
        raise DataError(f"{where}: arm {row['arm']!r} is not one of {ARMS}")
    if name == "samples":
        _check_finish(where, row)


def _check_finish(where: str, row: Row) -> None:
    reason = row["finish_reason"]
    if reason not in FINISH_REASONS:
        raise DataError(f"{where}: finish_reason {reason!r} is not one of {FINISH_REASONS}")
    if reason in WITHOUT_NUMBERS:
        stale = [column for column in _NUMBERS if row.get(column) is not None]
        if stale:
            raise DataError(f"{where}: finish_reason {reason!r} must carry no numbers, but has {stale}")


_PANDAS_TYPES = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


def to_frame(table: pa.Table) -> pd.DataFrame:
    """The table as a data frame in which whole numbers and booleans stay what they are beside nulls."""
    frame: pd.DataFrame = table.to_pandas(types_mapper=_PANDAS_TYPES.get)
    return frame


def empty_frame(name: str) -> pd.DataFrame:
    """A frame of the named table without rows."""
    return to_frame(TABLES[name].empty_table())
