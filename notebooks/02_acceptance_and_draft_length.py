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
# # 2. Acceptance and draft length
#
# A draft of k tokens pays while the next token is likely to survive. This notebook looks at how acceptance falls
# along the draft, what lengths the controllers chose, what lengths would have been right, and what any other fixed
# length would have given, replayed from the stored steps without a model.

# %%
import os
from pathlib import Path

import numpy as np
import pandas as pd

import specbench
from specbench.analysis.all_tables import ablation_tables
from specbench.analysis.headline import headline, records
from specbench.analysis.replay import Fixed, TokenOracle, replay, step_costs, traces_of
from specbench.analysis.rows import own_steps
from specbench.analysis.run_tables import acceptance_table
from specbench.analysis.theory import alpha_from_rate, curve_of
from specbench.figures.show import show
from specbench.results.opening import open_results
from specbench.results.published import load_published

ROOT = Path(specbench.__file__).parents[1]
frozen = open_results(os.environ.get("SPECBENCH_RESULTS", ROOT / "results" / "paper"))
published = load_published(ROOT / "results" / "published")
tables = {table.name: table for table in ablation_tables(frozen, published).tables}

# %% [markdown]
# ## Acceptance, price and promise
#
# `acceptance` is accepted over drafted tokens along the chain, `mat` the tokens of a verify step with the bonus (AR:
# 1). `predicted` needs nothing but a run's own cost ratio, mat and t(T): where `measured` is lower, the rest went to
# the host and to searching. The last columns are what the papers report for the same method and task.

# %%
acceptance_table(frozen, published)

# %% [markdown]
# ## Along the draft
#
# If each token were accepted with the same probability whatever came before it, the curve would fall geometrically. A
# curve that flattens out says that drafts which survive the first tokens are in easy text: that is what a stop rule
# can use. Confidence rules flatten the curve too, because they stop before the hard token.

# %%
show(frozen, "acceptance_by_position", "headline")

# %% [markdown]
# How far from geometric? `alpha` is the constant probability that gives the run's acceptance rate at its mean length;
# `at 4` is alpha^4 against the share really accepted at the fourth place.

# %%
chosen = headline(frozen.runs)
deep = chosen[[isinstance(places, list) and len(places) >= 4 for places in chosen["acceptance_by_position"]]]
rows = []
for run in records(deep):
    length = max(1, round(run["draft_tokens_per_step"]))
    alpha = alpha_from_rate(run["acceptance_rate"], length)
    fourth = run["acceptance_by_position"][3]
    rows.append({"arm": run["arm"], "task": run["place"], "alpha": alpha, "at 4": alpha**4, "measured": fourth})
pd.DataFrame(rows).round(3)

# %% [markdown]
# ## Lengths
#
# Bars are the lengths that were drafted, lines those of an oracle that drafts exactly what will be accepted. A fixed
# length is one bar; a good rule has the oracle's shape. The oracle's mass at 0 is where drafting was a loss in any
# case.

# %%
show(frozen, "draft_lengths", "pacer_length_distribution")

# %%
show(frozen, "stop_reasons", "pacer_length_distribution")

# %% [markdown]
# ## What other fixed lengths would have given
#
# A greedy draft depends on the tokens before it and on nothing else, so one run with long drafts fixes the steps of
# every shorter length. Costs are the run's own: seconds a drafted token, and t(T). The last row is the oracle: no
# rule that only chooses lengths can beat it on these answers.


# %%
def by_length(run: dict) -> pd.DataFrame | None:
    """Replayed speedup over AR for every length up to the run's own; None where it drafted no chains."""
    samples = frozen.samples[frozen.samples["run_id"] == run["run_id"]]
    steps = own_steps(samples, frozen.steps[frozen.steps["run_id"] == run["run_id"]])
    curve = curve_of(run.get("t_curve"))
    longest = int(steps["num_draft_tokens"].max()) if steps["num_draft_tokens"].notna().any() else 0
    if curve is None or longest == 0 or (steps["num_tree_tokens"] != steps["num_draft_tokens"]).any():
        return None
    traces, costs = traces_of(steps), step_costs(steps, curve)
    policies = {str(k): Fixed(k) for k in range(longest + 1)} | {"oracle": TokenOracle(longest)}
    outcomes = {name: replay(traces, policy, costs) for name, policy in policies.items()}
    plain = outcomes["0"].tokens_per_second
    return pd.DataFrame(
        {name: {"mat": o.mat, "speedup": o.tokens_per_second / plain} for name, o in outcomes.items()}
    ).T.rename_axis("length")


for run in records(chosen[chosen["arm"] == "sps"]):
    table = by_length(run)
    if table is not None:
        best = table["speedup"].drop("oracle").idxmax()
        print(f"{run['place']}: best fixed length {best} ({table.loc[best, 'speedup']:.2f}x), ", end="")
        print(f"oracle {table.loc['oracle', 'speedup']:.2f}x, measured {run['walltime_speedup']:.2f}x")

# %% [markdown]
# ## Ablations of the block-wise rule
#
# PACER-style control: what is known of the paper is in `docs/methods/pacer.md`, and no published sweep could be read,
# so these rows stand alone. See whether block size matters more than the threshold: a larger block asks the gate less
# often but stops later.

# %%
for name in ("pacer_block_size", "pacer_threshold", "pacer_ouroboros"):
    print(tables[name].title if name in tables else f"{name}: not in this folder")

# %%
tables.get("pacer_block_size")

# %%
tables.get("pacer_threshold")

# %% [markdown]
# ## Does the gate know anything?
#
# Left the chances it gave against what was accepted (on the diagonal it is calibrated), right the area under the ROC
# curve at each place of the draft. Pooled over places any gate looks good, because acceptance falls with depth: only
# the curve by place says what it knows about the token.

# %%
show(frozen, "gate_calibration", "pacer_length_distribution")

# %%
spread = chosen.dropna(subset=["acceptance_rate"]).groupby("arm")["acceptance_rate"].agg(["min", "median", "max"])
print(f"acceptance over tasks, {len(spread)} methods, median spread {np.median(spread['max'] - spread['min']):.2f}")
spread.round(3)
