"""Every table that a results folder can give, and why the others are not there."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from specbench.analysis import mla_tables
from specbench.analysis.comparison import AR
from specbench.analysis.leaderboard import leaderboard_table
from specbench.analysis.run_tables import acceptance_table, exactness_table, runs_table
from specbench.analysis.sweep_tables import SWEEPS, sweep_table
from specbench.analysis.table_text import Table
from specbench.analysis.tables import PAPERS, main_table
from specbench.results.frozen import Frozen
from specbench.results.store import FINISHED


class Made(NamedTuple):
    """The tables, and a sentence for each that the folder has no rows for."""

    tables: list[Table]
    missing: list[str]


def all_tables(frozen: Frozen, published: pd.DataFrame) -> Made:
    """Leaderboard, main tables, acceptance, ablations, MLA cells, runs and exactness of a folder."""
    made, missing = [], []
    methods = set(frozen.runs.loc[frozen.runs["status"] == FINISHED, "method"])
    if methods:
        exactness = exactness_table(frozen)
        made = [leaderboard_table(frozen, published), acceptance_table(frozen, published), runs_table(frozen)]
        made += [exactness] if exactness else []
        missing += [] if exactness else ["exactness: no run was compared with AR"]
    else:
        missing.append("leaderboard, acceptance, runs, exactness: no finished run")
    for paper in PAPERS:
        if methods & set(paper.arms) - {AR}:
            made.append(main_table(paper, frozen, published))
        else:
            missing.append(f"{paper.name}_main: no run of {', '.join(paper.arms[1:])}")
    ablations = ablation_tables(frozen, published)
    made += ablations.tables
    missing += ablations.missing
    if mla_tables.known(frozen):
        found = mla_tables.functional_over_kv(frozen)
        made += [mla_tables.mla_table(frozen, published, found), mla_tables.mla_counts(frozen, published, found)]
        parts = mla_tables.train_params_table(frozen)
        made += [parts] if parts else []
        missing += [] if parts else ["mla_train_params: no run of experiment=mla_train_params"]
    else:
        missing.append("mla_main, mla_counts, mla_train_params: no cells of experiment=mla_matched")
    return Made(made, missing)


def ablation_tables(frozen: Frozen, published: pd.DataFrame) -> Made:
    """Only the tables of sweeps."""
    made, missing = [], []
    for sweep in SWEEPS:
        if frozen.of(sweep.experiment).runs.empty:
            missing.append(f"{sweep.experiment}: no run of experiment={sweep.experiment}")
        else:
            made.append(sweep_table(sweep, frozen, published))
    return Made(made, missing)
