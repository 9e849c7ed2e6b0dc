# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 5. MLA drafts: what conversion loses and reconstruction gives back
#
# A draft whose attention was converted to a latent (MLA) form keeps a smaller cache and loses acceptance. A *cell* is
# a pair, a converter, a budget and a task; in each, the same prompts were drafted for by the original draft, by the
# draft as converted (`none`), and by drafts tuned on keys and values (`kv`) or on the attention's output
# (`functional`).

# %%
import os
from pathlib import Path

import specbench
from specbench.analysis.matched_cells import compare, main_tuning, rates, recovered
from specbench.analysis.mla_tables import known, mla_counts, mla_table, train_params_table
from specbench.figures.show import show
from specbench.results.opening import open_results
from specbench.results.published import load_published

ROOT = Path(specbench.__file__).parents[1]
frozen = open_results(os.environ.get("SPECBENCH_RESULTS", ROOT / "results" / "paper"))
published = load_published(ROOT / "results" / "published")
cells = main_tuning(frozen.cells) if known(frozen) else None  # without the ablation, which comes last
print("no matched cells in this folder" if cells is None else f"{len(cells)} rows of matched cells")

# %% [markdown]
# ## Acceptance in every cell
#
# Read along a row: original is the ceiling, none the floor. The difference `functional - kv` has a bootstrap interval
# over prompts; the published rule calls everything within half a point unchanged and tests nothing, so the two label
# columns may disagree where few prompts stand behind a cell.

# %%
mla_table(frozen, published) if cells is not None else None

# %% [markdown]
# ## Counts, beside the published ones
#
# The paper reports 37 cells up, 26 unchanged and 1 down out of 64. Compare proportions, not counts; and see whether
# the unchanged cells of the published rule are those with a small loss to give back in the first place.

# %%
mla_counts(frozen, published) if cells is not None else None

# %%
show(frozen, "mla_forest", "mla_matched")

# %% [markdown]
# ## How much of the loss comes back?
#
# share = (functional - none) / (original - none), where conversion lost at least two points: 1 would be all of it.

# %%
recovered(cells).round(3) if cells is not None else None

# %% [markdown]
# ## What does a smaller cache cost?
#
# Mean acceptance over the tasks. Budget 1 is the original draft: follow a row from left to right and see where the
# cache begins to cost acceptance, and whether tuning moves that place.

# %%
if cells is not None:
    by_size = rates(cells).assign(percent=lambda frame: 100 * frame["acceptance_rate"])
    rows = ["pair", "converter", "variant"]
    by_size = by_size.pivot_table(index=rows, columns="budget", values="percent").round(1)
by_size if cells is not None else None

# %% [markdown]
# Task by task: where a full line meets the dotted one, the smaller cache costs nothing. Lines that stay
# apart from it at every size lose by more than rank: by the dimensions that are no longer rotated.

# %%
show(frozen, "acceptance_by_cache", "mla_budgets")

# %% [markdown]
# ## Does the layer's error say anything about acceptance?
#
# The error after the output projection is what functional reconstruction minimises, layer by layer. Lower is not
# always better for acceptance: errors of different layers can cancel, and one bad layer can dominate.

# %%
show(frozen, "reconstruction_error", "mla_matched")

# %%
if cells is not None and not frozen.reconstruction.empty:
    keys = ["pair", "converter", "budget", "variant"]
    errors = frozen.reconstruction.groupby(keys)["error_after"].mean().rename("mean error").reset_index()
    accepted = rates(cells).groupby(keys)["acceptance_rate"].mean().reset_index()
    both = errors.merge(accepted, on=keys)
    print(f"rank correlation of error and acceptance over {len(both)} conversions: ", end="")
    print(f"{both['mean error'].corr(both['acceptance_rate'], method='spearman'):.2f}" if len(both) > 2 else "too few")

# %% [markdown]
# ## The other question: against the draft as converted
#
# Functional against none isolates what tuning is worth at all, kv against none what matching keys and values is
# worth.

# %%
if cells is not None:
    for after in ("functional", "kv"):
        pooled = compare(cells, after, "none").pooled
        print(after, "against none:", pooled["label"], f"mean {pooled['mean_delta_pp'] or float('nan'):+.2f} points")

# %% [markdown]
# ## Which parts have to be tuned?
#
# Sources differ on whether queries and keys, or queries, keys and values are tuned. Differences to tuning all of them:

# %%
train_params_table(frozen) if cells is not None else None

# %%
published[published["paper"] == "mla"][["model", "setting", "method", "metric", "text", "quality"]]
