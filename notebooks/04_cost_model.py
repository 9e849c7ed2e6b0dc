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
# # 4. The cost model: from acceptance and cost ratio to speedup, and to other machines
#
# Three numbers decide: the chance alpha that a drafted token is accepted, the price c of a drafted token in AR
# tokens, and t(T), the time of a verify pass over T tokens. One step of k drafted tokens costs `k c + t(1 + k) /
# t(1)` AR tokens and gives `1 + alpha + ... + alpha^k`. Everything else (host, search) is what lies between predicted
# and measured.

# %%
import os
from pathlib import Path

import pandas as pd

import specbench
from specbench.analysis.headline import headline, records
from specbench.analysis.theory import (
    alpha_from_rate,
    curve_of,
    expected_tokens,
    predicted_speedup,
    prediction,
    step_cost,
)
from specbench.figures.show import show
from specbench.hardware.latency import Kind, LatencyModel
from specbench.hardware.profile import VerifyCurve, seconds
from specbench.results.opening import open_results

ROOT = Path(specbench.__file__).parents[1]
frozen = open_results(os.environ.get("SPECBENCH_RESULTS", ROOT / "results" / "paper"))
chosen = headline(frozen.runs)
measured = chosen[chosen["cost_ratio"].notna() & chosen["walltime_speedup"].notna() & (chosen["arm"] != "ar")]

# %% [markdown]
# ## This machine
#
# How much more does a verify pass cost when it has more rows? A GPU that waits for its weights has ratios near 1 up
# to a hundred rows. On a CPU the ratio leaves 1 early, and that alone caps what any method can give: accepted tokens
# cost as much as they save.

# %%
curves = {run["model"]: curve_of(run.get("t_curve")) for run in records(measured)}
own = {name: curve for name, curve in curves.items() if curve is not None}
pd.DataFrame(
    {name: {n: seconds(curve, n) / seconds(curve, 1) for n in (1, 2, 4, 8, 16, 32)} for name, curve in own.items()}
).rename_axis("rows").round(2)

# %% [markdown]
# ## The surface: expected speedup by alpha and k
#
# For a draft that costs a tenth of an AR token, on this machine. Read along a row: the best k grows with alpha; read
# down a column: too long a draft at low alpha is slower than AR. The whole table moves down as c grows.


# %%
def surface(curve: VerifyCurve, cost_ratio: float) -> pd.DataFrame:
    """Expected speedup for alpha (rows) and num_draft_tokens (columns)."""
    lengths, alphas = (1, 2, 3, 4, 6, 8, 12, 16), (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    costs = {k: step_cost(k, cost_ratio, curve) for k in lengths}
    cells = {k: {a: predicted_speedup(expected_tokens(a, k), costs[k]) for a in alphas} for k in lengths}
    return pd.DataFrame(cells).rename_axis("alpha").rename_axis("k", axis=1)


here = next(iter(own.values()), VerifyCurve({1: 1.0, 128: 1.0}))
surface(here, 0.1).round(2)

# %% [markdown]
# ## Predicted against measured
#
# One point a run; on the dotted diagonal the three numbers explain everything. Points below it spend time on the host
# or in a search. Two predictions are compared in the table: from the run's own steps (`from steps`, mean over the
# real lengths), and from alpha and the mean length alone (`from alpha`), which is all that a paper's table usually
# gives.

# %%
show(frozen, "predicted_speedup", "headline")


# %%
def from_alpha(run: dict) -> float | None:
    """The prediction that needs only acceptance rate, mean draft length, cost ratio and t(T)."""
    k, curve = round(run["draft_tokens_per_step"]), curve_of(run.get("t_curve"))
    if k < 1 or curve is None:
        return None
    tokens = expected_tokens(alpha_from_rate(run["acceptance_rate"], k), k)
    return predicted_speedup(tokens, step_cost(k, run["cost_ratio"], curve))


chains = measured[measured["draft_tokens_per_step"].notna() & measured["acceptance_rate"].notna()]
pd.DataFrame(
    [
        {
            "arm": run["arm"],
            "task": run["place"],
            "acceptance": run["acceptance_rate"],
            "cost": run["cost_ratio"],
            "from alpha": from_alpha(run),
            "from steps": prediction(run, curve_of(run.get("t_curve"))),
            "measured": run["walltime_speedup"],
        }
        for run in records(chains)
    ]
).round(2)

# %% [markdown]
# ## Another machine
#
# Steps do not depend on the machine: which tokens are accepted follows from the models alone (up to ties of low
# precision). So the stored steps can be priced with another machine's profile. Two things change: t(T), and the price
# of a drafted token. The machines below are idealised, and the last one is yours to fill in:
# `scripts/profile_hardware.py` writes both curves for a machine.
#
# - `flat`: verification of up to 128 rows costs as much as one (memory-bound accelerator); a drafted token costs what
#   it costs here.
# - `flat, draft by weights`: the same, and a drafted token costs its share of the target's weights and nothing for
#   launching; only for self-drafting methods, whose share is known from their skip sets.
# - `linear`: every row costs as much as the first (compute-bound): nothing can gain.

# %%
FLAT, LINEAR = VerifyCurve({1: 1.0, 128: 1.0}), VerifyCurve({1: 1.0, 128: 128.0})
# Layers of the target: the largest pass that a profile timed, 30 (SmolLM2-135M) in a folder without profiles.
NUM_LAYERS = int(frozen.profiles["attention"].max()) if len(frozen.profiles) else 30


def on_machine(run: dict, curve: VerifyCurve, cost_ratio: float) -> float | None:
    """Speedup of the stored steps of a run where passes cost `curve` and a drafted token `cost_ratio` AR tokens."""
    other = {**run, "cost_ratio": cost_ratio}
    return prediction(other, curve)


def kept_share(run: dict) -> float | None:
    """Share of the sublayers that the last skip set keeps."""
    left_out = [run.get("num_attention_skipped"), run.get("num_mlp_skipped")]
    return None if None in left_out else 1 - sum(left_out) / (2 * NUM_LAYERS)


rows = []
for run in records(chains):
    share = kept_share(run)
    rows.append(
        {
            "arm": run["arm"],
            "task": run["place"],
            "measured here": run["walltime_speedup"],
            "flat": on_machine(run, FLAT, run["cost_ratio"]),
            "flat, draft by weights": None if share is None else on_machine(run, FLAT, share),
            "linear": on_machine(run, LINEAR, run["cost_ratio"]),
        }
    )
pd.DataFrame(rows).round(2)

# %% [markdown]
# What to see: methods whose `flat` column is far above `measured here` are held back by verification on this machine,
# not by their drafts; methods that stay below 1 even there need a cheaper draft or a better acceptance. No row gains
# on the `linear` machine: speculation lives on passes that are not compute-bound.
#
# ## A self-drafting model elsewhere
#
# With a latency profile of another machine (attention slope and base, MLP, head, fixed, seconds for one pass) the
# price of a draft with any skip set follows. The first profile is the one measured here, if the folder has one. The
# second is made up: attention ten times dearer per cached token, as in a stack that expands KV heads.

# %%
fits = frozen.profiles.filter(like="fit.").drop_duplicates()
profiles = {"idealised": LatencyModel(attention_slope=1e-7, attention_base=2e-4, mlp=3e-4, head=4e-4, fixed=1e-4)}
for number, fit in enumerate(fits.dropna().to_dict("records")[:1]):
    parts = {name.removeprefix("fit."): value for name, value in fit.items()}
    profiles[f"measured here {number}"] = LatencyModel(**parts)
    profiles["dearer attention"] = LatencyModel(**{**parts, "attention_slope": 10 * parts["attention_slope"]})


def draft_price(model: LatencyModel, context: int, attention: int, mlp: int) -> float:
    """Price in AR tokens of a drafted token without so many attention and MLP sublayers."""
    kept = Kind(context, NUM_LAYERS - attention, NUM_LAYERS - mlp)
    return model.predicted(kept) / model.full(context, NUM_LAYERS)


pd.DataFrame(
    {
        (name, context): {
            f"{attention} attention, {mlp} MLP": draft_price(model, context, attention, mlp)
            for attention, mlp in ((15, 0), (0, 15), (15, 15), (20, 10))
        }
        for name, model in profiles.items()
        for context in (512, 4096, 16384)
    }
).rename_axis("left out").round(2)

# %% [markdown]
# Read across contexts: where attention is dear, leaving out attention gets cheaper drafts as the context grows, and
# leaving out MLPs loses its value. The head and the fixed part are paid by every drafted token: on a small model with
# a large vocabulary they set a floor under c that no skip set can break.

# %%
for name, model in profiles.items():
    floor = (model.fixed + model.head) / model.full(512, NUM_LAYERS)
    print(f"{name}: no skip set can draft for less than {floor:.2f} of an AR token at 512 tokens of context")
