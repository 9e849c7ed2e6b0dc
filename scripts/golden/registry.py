"""Which checker reads which file, and the walk over a golden folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .clasp import check_clasp, check_layer_search
from .confl import check_confl, check_selection_vectors, check_selections, check_tree_units
from .confl import check_trees as check_confl_trees
from .del_ import check_del
from .knapspec import check_knapspec, check_search
from .ouroboros import check_ouroboros
from .outcome import FAILED, SKIPPED, Checker, Data, Outcome
from .parity import check_plain_decoding
from .sampling import check_sampling
from .scorer import check_scores
from .swift import check_matchness, check_swift
from .swift import check_trees as check_swift_trees

NOT_BUILT = "method not built yet"

# `folder/file` -> its checker. A file of another name is counted as skipped; plain decoding is checked in every file.
CHECKERS: dict[str, Checker] = {
    "clasp/dp_cases.json": check_layer_search,
    "clasp/e2e.json": check_clasp,
    "confl/e2e.json": check_confl,
    "confl/selection_cases.json": check_selections,
    "confl/selection_vectors.json": check_selection_vectors,
    "confl/tree_cases.json": check_confl_trees,
    "confl/tree_units.json": check_tree_units,
    "del/e2e.json": check_del,
    "knapspec/dp_cases.json": check_search,
    "knapspec/e2e.json": check_knapspec,
    "ouroboros/lib.json": check_ouroboros,
    "ouroboros/specbench.json": check_ouroboros,
    "sampling/cases.json": check_sampling,
    "specbench_score/expected.json": check_scores,
    "swift/e2e.json": check_swift,
    "swift/matchness.json": check_matchness,
    "swift/tree_cases.json": check_swift_trees,
}


def data_files(root: Path) -> list[Path]:
    """Every data file `<folder>/<file>.json` below `root`, by name."""
    return sorted(root.glob("*/*.json"))


def check_folder(root: Path) -> Iterator[tuple[str, list[Outcome]]]:
    """(group, outcomes) for every data file below `root`."""
    for path in data_files(root):
        yield path.relative_to(root).as_posix(), check_file(root, path)


def check_file(root: Path, path: Path) -> list[Outcome]:
    """What the checkers say about one data file below `root`."""
    name = path.relative_to(root).as_posix()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [Outcome(name, FAILED, f"not readable JSON: {error}")]
    checkers = (CHECKERS.get(name, _skip), check_plain_decoding)
    return [outcome for checker in checkers for outcome in _guarded(name, checker, root, data)]


def _guarded(name: str, checker: Checker, root: Path, data: Data) -> list[Outcome]:
    outcomes: list[Outcome] = []
    try:
        for outcome in checker(root, data):
            outcomes.append(outcome)
    except Exception as error:  # a file that is not of this format must not hide the other files
        outcomes.append(Outcome(name, FAILED, f"{type(error).__name__}: {error}"))
    return outcomes


def _skip(root: Path, data: Data) -> Iterator[Outcome]:
    """One skipped outcome for every entry of the file's top-level lists of objects."""
    for key, entries in data.items():
        if isinstance(entries, list):
            for number, entry in enumerate(entries):
                if isinstance(entry, dict):
                    yield Outcome(str(entry.get("id", f"{key}[{number}]")), SKIPPED, NOT_BUILT)
