"""Every figure builds from stored rows, shows what the rows say, and refuses to draw an empty picture."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from specbench.figures import (
    acceptance_by_cache,
    acceptance_by_position,
    cumulative_speedup,
    draft_lengths,
    gate_calibration,
    mla_forest,
    predicted_speedup,
    quality_pareto,
    reconstruction_error,
    skip_heatmap,
    speedup_by_task,
    sweep,
    time_breakdown,
)
from specbench.figures.base import NotEnoughData, each_run, finished_runs
from specbench.figures.catalogue import FIGURES
from specbench.figures.style import NOISY_MARK, NOISY_REMARK
from specbench.results.frozen import Frozen, freeze, load_frozen
from specbench.results.opening import open_results
from tests.figures.made_up import MadeUp, write


def module(name: str) -> Any:
    return importlib.import_module(f"specbench.figures.{name}")


def usable(frozen: Frozen, name: str) -> Frozen:
    """The rows of the fixture that a figure is made for: a sweep for the sweep, all but the sweep for the others."""
    if name in ("mla_forest", "reconstruction_error"):
        return frozen
    if name == "acceptance_by_cache":
        small = frozen.cells.assign(budget=0.25, accepted=frozen.cells["accepted"] // 2)
        return replace(frozen, cells=pd.concat([frozen.cells, small], ignore_index=True))
    of_sweep = frozen.of("confl_lambda")
    if name == "sweep":
        return of_sweep
    return frozen.where(frozen.runs[~frozen.runs["run_id"].isin(of_sweep.runs["run_id"])])


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_builds_from_stored_rows(frozen: Frozen, name: str) -> None:
    frame = module(name).select(usable(frozen, name))
    assert len(frame)
    assert frame["run_id"].notna().all()
    before = frame.copy(deep=True)
    figure = module(name).build(frame)
    assert isinstance(figure, Figure)
    pd.testing.assert_frame_equal(frame, before)  # what is saved as CSV is what was given
    for axis in figure.axes:
        assert axis.has_data()
    assert figure.axes[-1].get_xlabel()


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_to_draw_is_said_not_drawn(empty: Frozen, name: str) -> None:
    with pytest.raises(NotEnoughData, match="no "):
        module(name).select(empty)


NEED_NO_DRAFTS = {
    *("speedup_by_task", "time_breakdown", "latency_fit"),
    *("acceptance_by_cache", "mla_forest", "reconstruction_error"),  # of stored cells alone
}


@pytest.mark.parametrize("name", sorted(set(FIGURES) - NEED_NO_DRAFTS))
def test_runs_of_ar_alone_are_not_enough(frozen: Frozen, name: str) -> None:
    only_ar = frozen.where(frozen.runs[frozen.runs["method"] == "ar"])
    with pytest.raises(NotEnoughData):
        module(name).select(only_ar)


def test_unfinished_runs_are_not_drawn(frozen: Frozen) -> None:
    broken = replace(frozen, runs=frozen.runs.assign(status="interrupted"))
    with pytest.raises(NotEnoughData, match="no finished runs"):
        speedup_by_task.select(broken)


def test_no_figure_needs_torch() -> None:
    imports = "; ".join(f"import specbench.figures.{name}" for name in ("catalogue", *FIGURES))
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- what is drawn is what was measured


def test_bars_begin_at_zero_and_end_at_the_speedup(frozen: Frozen) -> None:
    frame = speedup_by_task.select(usable(frozen, "speedup_by_task"))
    assert "ar" not in set(frame["method"])
    figure = speedup_by_task.build(frame)
    for axis in figure.axes:
        rows = frame[frame["panel"] == axis.get_title()]
        assert sorted(bar.get_width() for bar in axis.patches) == pytest.approx(sorted(rows["walltime_speedup"]))
        assert {bar.get_x() for bar in axis.patches} == {0.0}
        assert axis.get_xlim()[0] == 0.0
        assert axis.get_xlim()[1] > frame[["walltime_speedup", "ci_high"]].max().max()  # the same axis for all
    assert "fewer than 8" in figure.get_supxlabel()  # pld has 4 samples


@pytest.mark.parametrize(
    ("name", "method"), [("speedup_by_task", "sps"), ("predicted_speedup", "sps"), ("sweep", "confl")]
)
def test_a_noisy_speedup_has_a_quiet_mark_and_a_remark(frozen: Frozen, name: str, method: str) -> None:
    rows = usable(frozen, name)
    noisy = rows.runs["run_id"] == rows.runs.loc[rows.runs["method"] == method, "run_id"].iloc[0]
    for runs, marks in ((rows.runs.assign(noisy=False), 0), (rows.runs.assign(noisy=noisy), 1)):
        frame = module(name).select(replace(rows, runs=runs))
        assert frame["noisy"].sum() == marks
        figure = module(name).build(frame)
        assert sum(text.get_text() == NOISY_MARK for axis in figure.axes for text in axis.texts) == marks
        titles = [legend.get_title().get_text() for legend in figure.legends]
        said = " ".join([figure.get_supxlabel(), *titles]).replace("\n", " ")
        assert (NOISY_REMARK in said) == bool(marks)


def test_phases_add_up_to_the_time_of_a_token(frozen: Frozen) -> None:
    frame = time_breakdown.select(usable(frozen, "time_breakdown"))
    runs = frozen.runs.set_index("run_id")
    for run_id, rows in frame.groupby("run_id"):
        assert rows["ms_per_token"].sum() == pytest.approx(1e3 * runs.loc[run_id, "tpot_s"])


def test_places_with_few_tokens_are_left_out(frozen: Frozen) -> None:
    frame = acceptance_by_position.select(usable(frozen, "acceptance_by_position"))
    assert frame["num_drafted"].min() >= acceptance_by_position.LEAST
    assert frame["position"].min() == 1


def test_the_oracle_has_a_histogram_of_its_own(frozen: Frozen) -> None:
    frame = draft_lengths.select(usable(frozen, "draft_lengths"))
    for _, rows in frame.groupby(["run_id", "source"]):
        assert rows["share"].sum() == pytest.approx(1.0)
    pacer = frame[frame["method"] == "pacer"]
    assert set(pacer["source"]) == {"policy", "oracle"}
    assert pacer["length"].max() == pacer[pacer["source"] == "policy"]["length"].max()


def test_the_last_prompt_has_the_speedup_of_the_run(frozen: Frozen) -> None:
    frame = cumulative_speedup.select(usable(frozen, "cumulative_speedup"))
    last = frame.groupby("run_id").last()
    runs = frozen.runs.set_index("run_id").loc[last.index]
    np.testing.assert_allclose(last["speedup"], runs["walltime_speedup"].astype(float))
    ends = last.set_index("method")["search_end"]
    assert (ends["confl"], ends["swift"]) == (1, 3)
    assert ends[["sps"]].isna().all()


def test_points_of_runs_without_an_interval_have_no_whisker(frozen: Frozen) -> None:
    frame = predicted_speedup.select(usable(frozen, "predicted_speedup"))
    assert frame.set_index("method").loc["pld", ["ci_low", "ci_high"]].isna().all()
    assert (frame["predicted_speedup"] > frame["walltime_speedup"]).mean() > 0.5  # host time is not predicted


@pytest.mark.parametrize(("name", "method"), [("skipped_by_context", "knapspec"), ("layer_confidence", "confl")])
def test_attempts_that_do_not_count_are_not_drawn(tmp_path: Path, name: str, method: str) -> None:
    drawn = []
    for repeated in (None, 0):
        run = MadeUp(method, searches=method, tokens=200, samples=2, repeated=repeated)
        write(run, tmp_path / f"{repeated}")
        rows = open_results(tmp_path / f"{repeated}")
        drawn.append(module(name).select(rows))
    assert len(rows.choices) > len(rows.choices[rows.choices["attempt"] == 0])
    pd.testing.assert_frame_equal(*drawn)


def test_a_heat_map_shows_the_sets_at_their_steps(frozen: Frozen) -> None:
    runs = finished_runs(usable(frozen, "skip_heatmap"), "num_choices")
    rows = next(rows for rows in each_run(frozen, runs) if rows.run["method"] == "swift")
    frame = skip_heatmap.run_frame(rows)
    assert frame["first_step"].iloc[0] == 0
    assert frame["last_step"].iloc[-1] == len(rows.steps)
    assert (frame["first_step"].iloc[1:].to_numpy() == frame["last_step"].iloc[:-1].to_numpy()).all()
    assert list(frame["sublayers"].iloc[0]) == [2, 3, 6, 7, 10, 11]
    assert list(frame["sublayers"].iloc[1]) == [4, 8, 9, 15]
    assert frame["first_step"].iloc[1] == 4  # chosen in step 3, used from the next one on
    mesh = skip_heatmap.build(frame).axes[0].collections[0].get_array()
    assert mesh[:, 1].nonzero()[0].tolist() == [4, 8, 9, 15]


def test_a_heat_map_can_be_drawn_of_one_run_folder(results: Path, frozen: Frozen) -> None:
    frame = skip_heatmap.folder_frame(results / "runs" / "tiny-swift-fixed-gsm8k")
    drawn = skip_heatmap.select(usable(frozen, "skip_heatmap"))
    same = drawn[drawn["run_id"] == "tiny-swift-fixed-gsm8k"].reset_index(drop=True)
    pd.testing.assert_series_equal(frame["sublayers"], same["sublayers"])
    assert skip_heatmap.build(frame).axes[0].has_data()
    with pytest.raises(NotEnoughData, match="chose no layers"):
        skip_heatmap.folder_frame(results / "runs" / "tiny-sps-fixed-gsm8k")


def test_calibrated_chances_lie_near_the_diagonal(frozen: Frozen) -> None:
    frame = gate_calibration.select(usable(frozen, "gate_calibration"))
    assert set(frame["method"]) == {"pacer"}
    bins = frame[frame["part"] == "calibration"]
    assert (bins["mean_chance"] - bins["accepted_share"]).abs().max() < 0.2
    assert frame["ece"].iloc[0] < 0.1
    assert (frame[frame["part"] == "auc"]["auc"] > 0.5).all()


def test_a_line_joins_the_sizes_of_one_converters_cache(frozen: Frozen) -> None:
    frame = acceptance_by_cache.select(usable(frozen, "acceptance_by_cache"))
    figure = acceptance_by_cache.build(frame)
    assert len(figure.axes) == frame["task"].nunique() == 3
    for axis in figure.axes:
        own = frame[frame["task"] == axis.get_title()].sort_values("budget")
        for line in axis.lines:
            variant = "none" if line.get_linestyle() == "--" else "functional"
            drawn = own.loc[own["variant"] == variant, "acceptance_percent"]
            assert list(line.get_xdata()) == [25, 50]
            assert line.get_ydata() == pytest.approx(drawn.to_numpy())
        assert len(axis.lines) == 2
    with pytest.raises(NotEnoughData, match="two sizes"):
        acceptance_by_cache.select(frozen)


def test_cells_are_judged_by_the_projects_own_rule(frozen: Frozen) -> None:
    frame = mla_forest.select(frozen)
    assert set(frame["comparison"]) == set(mla_forest.COMPARISONS.values())
    judged = frame[frame["comparison"] == "functional − as converted"].set_index("task")["label"]
    assert judged.to_dict() == {"gsm8k": "improved", "humaneval": "worse", "cnn_dm": "unchanged"}
    assert frame["run_id"].str.contains("mla-functional").all()


def test_errors_are_drawn_once_a_tuned_draft(frozen: Frozen) -> None:
    """Runs of several tasks share a draft, and one that was not tuned has nothing to show beside it."""
    layers = frozen.reconstruction
    twice = pd.concat([layers, layers.assign(run_id="other task"), layers.assign(variant="none", tuning="{}")])
    drawn = reconstruction_error.select(replace(frozen, reconstruction=twice))
    assert len(drawn) == len(layers)
    assert set(drawn["variant"]) == {"functional"}
    assert len(reconstruction_error.select(replace(frozen, reconstruction=layers.assign(variant="none")))) == len(
        layers
    )


def test_ways_of_tuning_one_conversion_share_a_panel(frozen: Frozen) -> None:
    layers = frozen.reconstruction
    ways = [
        layers.assign(tuning=f'{{"train_params": "{parts}"}}', error_after=0.1 * layers["error_before"])
        for parts in ("qkv", "qk")
    ]
    kv = layers.assign(variant="kv", error_after=layers["error_before"])
    rows = pd.concat([*ways, kv, ways[0].assign(converter="svd")], ignore_index=True)
    figure = reconstruction_error.build(reconstruction_error.select(replace(frozen, reconstruction=rows)))
    lines = {
        axis.get_title(): {str(line.get_label()) for line in axis.lines if len(line.get_xdata())}
        for axis in figure.axes
    }
    tuned = {"as converted", "functional, train_params=qkv"}
    assert lines == {
        "svd, 50% of the cache": tuned,
        "transmla, 50% of the cache": tuned | {"functional, train_params=qk", "kv"},
    }
    for axis in figure.axes:
        for line in axis.lines:
            factor = 0.1 if str(line.get_label()).startswith("functional") else 1.0
            assert line.get_ydata() == pytest.approx(factor * layers["error_before"][line.get_xdata().astype(int)])


def test_lines_of_a_sweep_stand_in_the_order_of_their_numbers(frozen: Frozen) -> None:
    frame = sweep.select(usable(frozen, "sweep"))
    lines = [frame.assign(line=f"gsm8k, context_window={size}") for size in (100, 10, 50.5)]
    (legend,) = sweep.build(pd.concat(lines, ignore_index=True)).legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [f"gsm8k, context_window={size}" for size in (10, 50.5, 100)]


def test_a_sweep_finds_what_was_swept(frozen: Frozen) -> None:
    frame = sweep.select(usable(frozen, "sweep"))
    assert set(frame["setting"]) == {"method.lam"}
    assert frame["value"].tolist() == [0.0, 0.1, 0.2]
    with pytest.raises(NotEnoughData, match="no method was run with 3 values"):
        sweep.select(usable(frozen, "speedup_by_task"))


def drawn_of(tmp_path: Path, *runs: MadeUp) -> Frozen:
    for run in runs:
        write(run, tmp_path)
    freeze(tmp_path, tmp_path / "frozen")
    return load_frozen(tmp_path / "frozen")


def test_a_run_of_another_vocabulary_is_no_twin(tmp_path: Path) -> None:
    own, full = (MadeUp("sps", model={"draft_vocab": name}, experiment="draft_vocab") for name in ("own", "full"))
    labels = speedup_by_task.select(drawn_of(tmp_path, own, full))["label"]
    assert sorted(labels) == ["SpS, draft_vocab=full", "SpS, draft_vocab=own"]


def test_an_untimed_twin_hides_nothing(tmp_path: Path) -> None:
    frame = speedup_by_task.select(drawn_of(tmp_path, MadeUp("pld"), MadeUp("pld", timed=False)))
    assert list(frame["run_id"]) == [MadeUp("pld").run_id]


def test_answers_of_another_length_say_so(tmp_path: Path) -> None:
    long = MadeUp("knapspec", tokens=256)
    frame = speedup_by_task.select(drawn_of(tmp_path, MadeUp("pld"), MadeUp("sps"), long)).set_index("method")
    assert frame["label"].to_dict() == {"pld": "PLD", "sps": "SpS", "knapspec": "KnapSpec, 256 new tokens"}


def test_another_condition_is_said_once(tmp_path: Path) -> None:
    base = {"top_p": 1.0}
    runs = [MadeUp("pld", sampling=base), MadeUp("sps", sampling=base), MadeUp("sps", sampling={"top_p": 0.5})]
    labels = speedup_by_task.select(drawn_of(tmp_path, *runs))["label"]
    assert sorted(labels) == ["PLD", "SpS", "SpS, top_p=0.5"]


def test_quality_is_compared_at_one_length(tmp_path: Path) -> None:
    runs = [MadeUp("pld", accuracy=0.1), MadeUp("sps", accuracy=0.2), MadeUp("swift", tokens=256, accuracy=0.9)]
    panels = quality_pareto.select(drawn_of(tmp_path, *runs)).set_index("method")["panel"].to_dict()
    assert panels["pld"] == panels["sps"] == "gsm8k, 64 new tokens"
    assert panels["swift"] == "gsm8k, 256 new tokens"


def test_the_front_leaves_out_what_is_beaten_in_both() -> None:
    rows = pd.DataFrame({"walltime_speedup": [1.0, 1.5, 2.0, 1.4], "score": [0.6, 0.5, 0.4, 0.5]})
    assert quality_pareto.front(rows)["walltime_speedup"].tolist() == [1.0, 1.5, 2.0]
