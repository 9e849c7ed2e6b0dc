"""Matched cells: the same prompts drafted for by two arms, and whether acceptance rose, fell or stayed.

A cell is a pair, converter, budget, task and setting; its arms are the original draft, the draft as converted, and the
draft tuned in one way or another. Acceptance is pooled: sum accepted / sum proposed. Two rules judge a difference:

- the published rule: within 0.5 percentage points is unchanged; descriptive, without a test;
- ours: at least 0.5 points, and the 95 % interval of a paired bootstrap over clusters of equal prompts excludes 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from specbench.analysis.rows import floats
from specbench.analysis.stats import CONFIDENCE, MIN_CONVERSATIONS, Interval
from specbench.types import DataError

DRAWS = 10_000
TOLERANCE = 0.005  # half a percentage point, as published
IMPROVED, UNCHANGED, WORSE, TOO_FEW = "improved", "unchanged", "worse", "too few prompts"
LABELS = (IMPROVED, UNCHANGED, WORSE, TOO_FEW)
CELL = ["pair", "converter", "budget", "options", "task", "setting", "acceptance"]
MAIN_PARTS = "qkv"  # what is tuned by the summaries of the paper; all else is an ablation
OTHER_PARTS = ("qk_down", "qk")
_PARTS = "train_params"
_SHARED = ["pair", "task", "setting", "acceptance"]  # what a cell has in common with the original draft
_CHUNK = 1000  # draws whose weights exist at once

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """How many draws of which seed, and the difference that counts."""

    draws: int = DRAWS
    seed: int = 0
    tolerance: float = TOLERANCE


RULE = Rule()


@dataclass(frozen=True)
class Matched:
    """Two arms on the same prompts, one entry a cluster: [C] accepted and proposed tokens before and after."""

    accepted_before: Array
    proposed_before: Array
    accepted_after: Array
    proposed_after: Array
    num_prompts: int = 0

    @property
    def num_clusters(self) -> int:
        return len(self.proposed_before)

    @property
    def before(self) -> float:
        """Pooled acceptance of the first arm."""
        return float(self.accepted_before.sum() / self.proposed_before.sum())

    @property
    def after(self) -> float:
        """Pooled acceptance of the second arm."""
        return float(self.accepted_after.sum() / self.proposed_after.sum())

    @property
    def delta(self) -> float:
        """Acceptance after minus before."""
        return self.after - self.before


@dataclass(frozen=True)
class Judgement:
    """A cell's difference with its interval, p-value and both labels; `replicates` are the bootstrap's differences."""

    delta: float
    interval: Interval | None
    p: float | None
    published: str
    label: str
    replicates: Array = field(repr=False, default_factory=lambda: np.empty(0))


class Comparison(NamedTuple):
    """One row a cell, and what all cells together say."""

    cells: pd.DataFrame
    pooled: dict[str, Any]


def match(before: pd.DataFrame, after: pd.DataFrame) -> Matched:
    """The two arms' rows (sample_id, prompt_sha256, accepted, proposed) on the prompts that both have.

    DataError where they share none or saw different prompts under one id.
    """
    both = before.merge(after, on="sample_id", suffixes=("_before", "_after"))
    if both.empty:
        raise DataError("the two arms of a cell share no prompt")
    if (both["prompt_sha256_before"] != both["prompt_sha256_after"]).any():
        raise DataError("the two arms of a cell saw different prompts under the same sample id")
    names = ["accepted_before", "proposed_before", "accepted_after", "proposed_after"]
    sums = both.groupby("prompt_sha256_before", sort=True)[names].sum()
    first, second, third, fourth = (floats(sums[name]) for name in names)
    return Matched(first, second, third, fourth, num_prompts=len(both))


def replicates(matched: Matched, rule: Rule, *, stream: str = "") -> Array:
    """Differences [draws] when clusters are drawn anew, the same for both arms.

    `stream`: cells with equal streams (and as many clusters) see the same draws, so that they can be pooled.
    """
    generator = np.random.default_rng([rule.seed, *stream.encode()])
    count, found = matched.num_clusters, []
    for first in range(0, rule.draws, _CHUNK):
        size = min(_CHUNK, rule.draws - first)
        weights = generator.multinomial(count, np.full(count, 1 / count), size=size).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            before = (weights @ matched.accepted_before) / (weights @ matched.proposed_before)
            after = (weights @ matched.accepted_after) / (weights @ matched.proposed_after)
        found.append(after - before)
    return np.concatenate(found)


def judge(matched: Matched, rule: Rule = RULE, *, stream: str = "") -> Judgement:
    """Both labels of one cell; below 8 clusters there is no interval and ours says so."""
    delta = matched.delta
    published = _published(delta, rule.tolerance)
    if matched.num_clusters < MIN_CONVERSATIONS:
        return Judgement(delta, None, None, published, TOO_FEW)
    drawn = replicates(matched, rule, stream=stream)
    interval = percentile_interval(drawn)
    label = UNCHANGED
    if delta >= rule.tolerance and interval.low > 0:
        label = IMPROVED
    elif delta <= -rule.tolerance and interval.high < 0:
        label = WORSE
    return Judgement(delta, interval, two_sided_p(drawn), published, label, drawn)


def _published(delta: float, tolerance: float) -> str:
    if abs(delta) <= tolerance:
        return UNCHANGED
    return IMPROVED if delta > 0 else WORSE


def percentile_interval(drawn: Array) -> Interval:
    """The middle 95 % of bootstrap differences."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(drawn, [tail, 1 - tail])
    return Interval(float(low), float(high))


def two_sided_p(drawn: Array) -> float:
    """Twice the smaller share of bootstrap differences on one side of 0, itself counted; at most 1."""
    tails = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return min(1.0, 2 * (tails + 1) / (len(drawn) + 1))


def arms(cells: pd.DataFrame, variant: str, cell: Mapping[Any, Any], *, tuning: str | None = None) -> pd.DataFrame:
    """Rows of one arm of a cell; the original draft has no converter, so that it serves all cells of its pair."""
    keys = _SHARED if variant == "original" else CELL
    chosen = cells["variant"] == variant
    for key in keys:
        chosen &= cells[key] == cell[key]
    if tuning is not None:
        chosen &= cells["tuning"] == tuning
    return cells[chosen]


def compare(cells: pd.DataFrame, after: str, before: str, rule: Rule = RULE) -> Comparison:
    """Every cell that has both variants: one row each, with Benjamini-Hochberg q-values over the cells, and the pool.

    An arm that was tuned in several ways gives one row a way. Differences and intervals are in percentage points.
    """
    cells = _once(cells)
    rows: list[dict[str, Any]] = []
    judgements: list[Judgement] = []
    found = cells[cells["variant"] == after].drop_duplicates([*CELL, "tuning"])
    for cell in found[[*CELL, "tuning"]].to_dict("records"):
        second = arms(cells, after, cell, tuning=cell["tuning"])
        first = _before(cells, before, cell)
        if first.empty:
            continue
        matched = match(first, second)
        judgements.append(judge(matched, rule, stream=cell["task"]))
        rows.append({str(key): value for key, value in cell.items()} | _row(matched, judgements[-1]))
    frame = pd.DataFrame(rows, columns=[*CELL, "tuning", *_NUMBERS])
    frame["q"] = _q_values([judgement.p for judgement in judgements])
    return Comparison(frame, pooled(judgements))


def _before(cells: pd.DataFrame, variant: str, cell: Mapping[Any, Any]) -> pd.DataFrame:
    """The first arm: tuned like the second where there are several."""
    rows = arms(cells, variant, cell)
    alike = rows[rows["tuning"] == cell["tuning"]]
    return (alike if len(alike) else rows).drop_duplicates("sample_id")


def main_tuning(cells: pd.DataFrame) -> pd.DataFrame:
    """Without the arms of an ablation: what was tuned in other parts than `qkv`, where the cell has `qkv` too."""
    parts = _tuned_parts(cells)
    tuned_whole = (parts == MAIN_PARTS).groupby([cells[key] for key in [*CELL, "variant"]]).transform("any")
    return cells[parts.isin(["", MAIN_PARTS]) | ~tuned_whole]


def by_tuned_parts(cells: pd.DataFrame) -> pd.DataFrame:
    """The arms of functional reconstruction alone, the tuned parts (qkv, qk_down, qk) as their variant."""
    rows = cells[cells["variant"] == "functional"]
    return rows.assign(variant=_tuned_parts(rows), tuning=rows["tuning"].map(_without_parts))


def _tuned_parts(cells: pd.DataFrame) -> pd.Series:
    return cells["tuning"].map(lambda text: json.loads(text).get(_PARTS, ""))


def _without_parts(tuning: str) -> str:
    return json.dumps({key: value for key, value in json.loads(tuning).items() if key != _PARTS})


def differing(texts: pd.Series) -> list[str]:
    """JSON objects in short: only the keys in which two of those that have them differ."""
    objects = [json.loads(text) for text in texts]
    values: dict[str, set[str]] = {}
    for key, value in ((key, value) for each in objects for key, value in each.items()):
        values.setdefault(key, set()).add(json.dumps(value))
    keys = sorted(key for key, found in values.items() if len(found) > 1)
    return [", ".join(f"{key}={each[key]}" for key in keys if key in each) for each in objects]


def _once(cells: pd.DataFrame) -> pd.DataFrame:
    """Runs of one arm may share prompts (one of 8 samples, one of all): each counts once."""
    return cells.drop_duplicates([*CELL, "variant", "tuning", "sample_id"])


_NUMBERS = ("prompts", "clusters", "before", "after", "delta_pp", "low_pp", "high_pp", "p", "q", "published", "label")


def _row(matched: Matched, judged: Judgement) -> dict[str, Any]:
    low, high = judged.interval or (None, None)
    return {
        "prompts": matched.num_prompts,
        "clusters": matched.num_clusters,
        "before": matched.before,
        "after": matched.after,
        "delta_pp": 100 * judged.delta,
        "low_pp": None if low is None else 100 * low,
        "high_pp": None if high is None else 100 * high,
        "p": judged.p,
        "published": judged.published,
        "label": judged.label,
    }


def _q_values(ps: Sequence[float | None]) -> list[float | None]:
    known = [p for p in ps if p is not None]
    adjusted = iter(stats.false_discovery_control(known, method="bh") if known else ())
    return [None if p is None else float(next(adjusted)) for p in ps]


def pooled(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """All cells as one: mean difference with its interval (prompts of a task drawn together), counts and a sign test.

    The mean gives every cell the same weight; cells of one task share prompts, and so do their draws.
    """
    deltas = np.array([judged.delta for judged in judgements])
    drawn = [judged.replicates for judged in judgements if len(judged.replicates)]
    whole = len(drawn) == len(judgements) > 0
    interval = percentile_interval(np.mean(drawn, axis=0)) if whole else None
    up, down = int((deltas > 0).sum()), int((deltas < 0).sum())
    return {
        "cells": len(deltas),
        "mean_delta_pp": 100 * float(deltas.mean()) if len(deltas) else None,
        "low_pp": None if interval is None else 100 * interval.low,
        "high_pp": None if interval is None else 100 * interval.high,
        "up": up,
        "down": down,
        "sign_p": float(stats.binomtest(up, up + down).pvalue) if up + down else None,
        "published": {label: sum(judged.published == label for judged in judgements) for label in LABELS[:3]},
        "label": {label: sum(judged.label == label for judged in judgements) for label in LABELS},
    }


def rates(cells: pd.DataFrame) -> pd.DataFrame:
    """Pooled acceptance, mat and prompts of every arm: one row an arm of a cell, and one an original draft."""
    cells, keys = _once(cells), [*CELL, "variant", "tuning"]
    sums = cells.groupby(keys, sort=False)[["accepted", "proposed", "emitted", "steps"]].sum().astype(np.float64)
    prompts = cells.groupby(keys, sort=False)["sample_id"].nunique()
    return pd.DataFrame(
        {
            "acceptance_rate": sums["accepted"] / sums["proposed"],
            "mat": sums["emitted"] / sums["steps"],
            "prompts": prompts,
        }
    ).reset_index()


def recovered(cells: pd.DataFrame, *, tuned: str = "functional", least_loss: float = 0.02) -> pd.DataFrame:
    """What tuning gives back of the acceptance that conversion lost, cell by cell, where it lost at least `least_loss`.

    share = (tuned - none) / (original - none): 1 = all of it, below 0 = tuning made it worse.
    """
    lost = compare(cells, "none", "original", Rule(draws=1)).cells
    back = compare(cells, tuned, "none", Rule(draws=1)).cells
    both = back.merge(lost[[*CELL, "before"]], on=CELL, suffixes=("", "_original"))
    both["loss_pp"] = 100 * (both["before_original"] - both["before"])
    both["share"] = both["delta_pp"] / both["loss_pp"]
    kept = both[both["loss_pp"] >= 100 * least_loss]
    return kept[[*CELL, "tuning", "before_original", "before", "after", "loss_pp", "share"]].reset_index(drop=True)
