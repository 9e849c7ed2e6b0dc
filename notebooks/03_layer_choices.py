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
# # 3. Which layers are left out?
#
# KnapSpec, CLaSp, ConfLayers and SWIFT draft with the target itself, minus some sublayers. What they leave out is
# stored as data: a row each time a set is installed, with its reason. Sublayer 2i is the attention of layer i, 2i + 1
# its MLP.

# %%
import json
import os
from itertools import combinations
from pathlib import Path

import pandas as pd

import specbench
from specbench.analysis.all_tables import ablation_tables
from specbench.analysis.headline import headline
from specbench.analysis.rows import own_steps
from specbench.figures.show import show
from specbench.results.opening import open_results
from specbench.results.published import load_published

ROOT = Path(specbench.__file__).parents[1]
frozen = open_results(os.environ.get("SPECBENCH_RESULTS", ROOT / "results" / "paper"))
tables = {t.name: t for t in ablation_tables(frozen, load_published(ROOT / "results" / "published")).tables}
chosen = headline(frozen.runs)
skipping = chosen[chosen["num_attention_skipped"].notna()] if "num_attention_skipped" in chosen else chosen.iloc[:0]

# %% [markdown]
# ## Over the steps of a run
#
# Dark = left out of the draft. Vertical lines are where answers begin. KnapSpec and CLaSp start anew with each
# prompt; ConfLayers and SWIFT carry their set on, so that the picture settles once their search has ended. White
# columns are steps without a draft: before the first choice, or because the plan said that drafting does not pay.

# %%
show(frozen, "skip_heatmap", "knapspec_main", "confl_main")

# %% [markdown]
# ## What was left out, and what the search cost
#
# `search time` is the share of decoding that went into choosing. `steady` is the speedup after the last search: if it
# is above the measured speedup by more than the interval, longer runs would look better than these.

# %%
names = ["arm", "place", "num_attention_skipped", "num_mlp_skipped", "search_share", "acceptance_rate"]
names += ["walltime_speedup", "steady_walltime_speedup"]
skipping[[name for name in names if name in skipping]].round(3).reset_index(drop=True)

# %% [markdown]
# ## Do methods agree?
#
# Jaccard overlap of the last sets of each pair of methods on one task: 1 = the same sublayers, and two random halves
# of the sublayers overlap at 1/3. If overlaps are near chance while acceptance is alike, many sets are about equally
# good and the search matters less than the count.

# %%
overlaps = []
for place, group in skipping.groupby("place"):
    sets = {run["arm"]: set(run["skip_set"]) for run in group.to_dict("records") if isinstance(run["skip_set"], list)}
    for (first, a), (second, b) in combinations(sets.items(), 2):
        if a | b:
            overlaps.append({"task": place, "methods": f"{first}, {second}", "overlap": len(a & b) / len(a | b)})
pd.DataFrame(overlaps, columns=["task", "methods", "overlap"]).round(2)

# %% [markdown]
# Which sublayers are left out most often, over all sets that searches installed?

# %%
made = frozen.choices[frozen.choices["kind"] == "skip_set"].groupby("run_id")
used = [own_steps(frozen.samples[frozen.samples["run_id"] == run_id], choices) for run_id, choices in made]
sets = [json.loads(values).get("sublayers") for choices in used for values in choices["values"]]
counted = pd.Series([sublayer for kept in sets if kept for sublayer in kept], dtype="Int64").value_counts(
    normalize=True
)
counted.rename(lambda s: f"layer {s // 2} {'MLP' if s % 2 else 'attention'}").head(12).rename("share").round(3)

# %% [markdown]
# ## Attention against MLP, by length of context
#
# The cost of attention grows with the context, that of an MLP does not. So a cost-aware choice should leave out more
# attention in long contexts and more MLPs in short ones (this is Figure 3 of the KnapSpec paper, as reported). On a
# machine where attention is cheap at every length that was measured, the two lines stay together.

# %%
show(frozen, "skipped_by_context", "longdoc", "knapspec_decoupling")

# %%
show(frozen, "latency_fit", "knapspec_latency_fit")

# %% [markdown]
# ## What ConfLayers looks at
#
# Standardised confidence per layer, its threshold and its window, of one choice. A layer is left out where the
# confidence lies below the threshold: mostly local minima, because few late layers dominate the scale.

# %%
show(frozen, "layer_confidence", "confl_main")

# %% [markdown]
# ## The search pays or it does not
#
# Speedup so far, prompt after prompt, and where each search ended. A search that costs much is below 1 for many
# prompts even when its set is good: the number of prompts that you report decides the ranking.

# %%
show(frozen, "cumulative_speedup", "confl_vs_swift_cumulative")

# %%
for name in ("confl_lambda", "confl_window", "confl_sensitivity", "knapspec_decoupling"):
    print(f"{name}: {len(tables[name].rows)} rows" if name in tables else f"{name}: not in this folder")

# %%
tables.get("confl_lambda")
