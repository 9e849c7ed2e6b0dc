# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1. Overview: which method is faster than plain decoding, and by how much?
#
# All numbers below come from the frozen rows in `results/paper`: no model is loaded. Every speedup is against
# autoregressive decoding (AR) through the same loop, measured right beside each sample, on `decode_s`
# (`docs/metrics.md`). Set `SPECBENCH_RESULTS` to another folder, frozen or of runs, to look at your own.

# %%
import os
from pathlib import Path

import specbench
from specbench.analysis.all_tables import all_tables
from specbench.analysis.leaderboard import leaderboard_rows
from specbench.analysis.tables import speedup_rows
from specbench.figures.show import show
from specbench.results.opening import open_results
from specbench.results.published import load_published

ROOT = Path(specbench.__file__).parents[1]
frozen = open_results(os.environ.get("SPECBENCH_RESULTS", ROOT / "results" / "paper"))
published = load_published(ROOT / "results" / "published")
tables = {table.name: table for table in all_tables(frozen, published).tables}
frozen.runs["status"].value_counts()

# %% [markdown]
# ## What was measured
#
# One row a task and method. Look at three columns before believing any speedup: `n` (below 8 conversations there is
# no interval), `load` (what else the machine was doing) and `diverged` (turns whose tokens are not AR's; in bfloat16
# ties are normal, a bug would have failed the run).

# %%
tables["runs"]

# %% [markdown]
# ## The leaderboard
#
# Rows are sorted by the overall speedup. A bold number is the fastest of its column *and* its paired interval against
# the second fastest excludes 1; where nothing is bold, the samples do not decide. The published boards follow: other
# models, other hardware, another formula, so compare the order within a board and not the numbers across them. On the
# published boards the order itself changes with the GPU at equal mean accepted tokens (Recycling: 1.40 on a 3090,
# 2.22 on an A100): speed is a property of method *and* machine.

# %%
tables["leaderboard"]

# %% [markdown]
# ## By task
#
# Bars with 95 % intervals; the dashed line is AR. See first which intervals touch it. A method that copies from the
# prompt (prompt lookup) should gain where answers repeat the prompt, and a small draft where answers are predictable.

# %%
show(frozen, "speedup_by_task", "headline")

# %% [markdown]
# The same as numbers: how often is a method above AR beyond its interval, and how often below?

# %%
rows = speedup_rows(frozen)
known = rows.dropna(subset=["ci_low", "ci_high"])
known = known.assign(faster=known["ci_low"] > 1, slower=known["ci_high"] < 1)
verdicts = known.groupby("arm")[["faster", "slower"]].sum().assign(tasks=known.groupby("arm").size())
verdicts.sort_values(["faster", "slower"], ascending=[False, True])

# %% [markdown]
# ## Where the time goes
#
# Milliseconds a token, by phase; the tick on each bar is what its own AR needed. A method loses to AR when drafting
# plus verifying fills more than that tick, whatever its acceptance. `adapt` is learning and searching: it is paid
# inside the answer.

# %%
show(frozen, "time_breakdown", "headline")

# %% [markdown]
# ## Beside the papers
#
# Ours and the published numbers stand in rows of their own, with the quality of each published number as a mark.
# Below each table: where our order differs from the published one, and what a step of each method cost and gave here.

# %%
tables.get("knapspec_main")

# %%
tables.get("confl_main")

# %%
tables.get("pacer_main")

# %% [markdown]
# ## How sure is the order?
#
# Overall speedups with their intervals, from the frame behind the leaderboard. Overlapping intervals do not mean that
# two methods are equal, since they were measured on the same conversations: the paired comparison of the table
# decides.

# %%
board = leaderboard_rows(frozen)
overall = board[board["column"] == "overall"].sort_values("speedup", ascending=False)
overall[["model", "source", "arm", "speedup", "ci_low", "ci_high", "n", "best"]].reset_index(drop=True)
