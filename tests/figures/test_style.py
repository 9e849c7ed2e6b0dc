"""Names, colours and marks: one look a method everywhere, told apart by the colour-blind and in grey."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from specbench.figures.base import looks, named
from specbench.figures.style import (
    CONTROLLERS,
    METHODS,
    PHASES,
    VENUES,
    Look,
    grid,
    look_of,
    panels,
    styled,
    variant,
    venue,
)

CONF = Path(__file__).resolve().parents[2] / "conf" / "method"
# Machado et al. 2009, severity 1: how linear colours look to people without red or green cones.
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def seen(look: Look, kind: str) -> np.ndarray:
    return np.clip(np.array(BLIND[kind]) @ np.array(to_rgb(look.color)), 0, 1)


def test_every_method_and_controller_that_can_be_chosen_has_a_look() -> None:
    methods = {path.stem for path in CONF.glob("*.yaml")}
    assert not [name for name in methods if not look_of(name).name or look_of(name).color == "#666666"]
    controllers = {path.stem for path in (CONF / "controller").glob("*.yaml")}
    assert controllers <= set(CONTROLLERS)


@pytest.mark.parametrize("group", [METHODS, CONTROLLERS, PHASES], ids=["methods", "controllers", "phases"])
def test_looks_differ_in_every_way(group: dict[str, Look]) -> None:
    assert len({look.name for look in group.values()}) == len(group)
    assert len({look.color for look in group.values()}) == len(group)
    assert len({(look.marker, str(look.line)) for look in group.values()}) == len(group)  # in grey


@pytest.mark.parametrize("kind", BLIND)
@pytest.mark.parametrize("group", [METHODS, CONTROLLERS, PHASES], ids=["methods", "controllers", "phases"])
def test_colours_that_look_alike_to_some_have_other_marks(group: dict[str, Look], kind: str) -> None:
    for one, other in itertools.combinations(group.values(), 2):
        if np.linalg.norm(seen(one, kind) - seen(other, kind)) < 0.1:
            assert one.marker != other.marker
            assert one.hatch != other.hatch


def test_a_method_and_its_own_controller_look_the_same() -> None:
    assert look_of("sps").color == look_of("sps/fixed").color
    assert look_of("pacer").color == look_of("sps/pacer").color
    assert look_of("sps/svip").name == "SVIP"
    assert look_of("confl/svip").name == "ConfLayers, SVIP"
    assert look_of("swift_official").name == "SWIFT (official)"
    assert look_of("swift_official").color == look_of("swift").color
    assert look_of("something").name == "something"


def test_points_of_methods_and_their_published_variants_are_told_apart_in_grey() -> None:
    looks = [look_of(path.stem) for path in CONF.glob("*.yaml")]
    assert len({(look.marker, look.fill) for look in looks}) == len(looks)
    assert look_of("ouroboros_official").of_point()["fillstyle"] == "none"
    assert look_of("ouroboros_official").marker == look_of("ouroboros").marker


def test_settings_of_a_method_get_lighter_and_marks_of_their_own() -> None:
    found = [variant(METHODS["confl"], number, 4, str(number)) for number in range(4)]
    brightness = [sum(to_rgb(look.color)) for look in found]
    assert brightness == sorted(brightness)
    assert len({look.marker for look in found}) == 4


def runs(*rows: dict[str, object]) -> pd.DataFrame:
    same = {
        "model": "m",
        "dtype": "float32",
        "task": "gsm8k",
        "method": "sps",
        "controller": "fixed",
        "num_measured": 8,
    }
    return pd.DataFrame([{**same, "run_id": str(number), **row} for number, row in enumerate(rows)])


def test_a_label_says_no_more_than_it_must() -> None:
    assert named(runs({}, {"method": "pld", "controller": "none"}))["label"].tolist() == ["SpS", "PLD"]
    assert named(runs({}, {"controller": "svip"}))["label"].tolist() == ["fixed", "SVIP"]
    key = "cfg.method.controller.num_draft_tokens"
    swept = named(runs({key: 2}, {key: 10}, {"method": "pld", key: 3}))
    assert swept["label"].tolist() == ["SpS, num_draft_tokens=2", "SpS, num_draft_tokens=10", "PLD"]
    assert list(looks(swept)) == ["PLD", "SpS, num_draft_tokens=2", "SpS, num_draft_tokens=10"]  # 10 after 2


def test_settings_of_different_tasks_do_not_tell_runs_apart() -> None:
    key = "cfg.sampling.max_new_tokens"
    found = named(runs({key: 128}, {key: 256, "task": "humaneval"}))
    assert found["label"].tolist() == ["SpS", "SpS"]
    assert found["panel"].tolist() == ["gsm8k", "humaneval"]


def test_models_dtypes_and_contexts_make_panels_where_they_differ() -> None:
    found = named(runs({"dtype": "bfloat16"}, {}))
    assert found["panel"].tolist() == ["gsm8k, bfloat16", "gsm8k, float32"]
    longdoc = {"task": "longdoc", "cfg.task.context_tokens": 512}
    found = named(runs(longdoc, {**longdoc, "cfg.task.context_tokens": 1024}))
    assert found["panel"].tolist() == ["longdoc at 512 tokens", "longdoc at 1024 tokens"]
    assert found["label"].tolist() == ["SpS", "SpS"]


def test_longer_contexts_come_later() -> None:
    names = ["longdoc at 1024 tokens", "gsm8k", "longdoc at 256 tokens"]
    assert panels(pd.DataFrame({"panel": names})) == ["gsm8k", "longdoc at 256 tokens", "longdoc at 1024 tokens"]


def test_of_equal_runs_the_one_with_the_most_samples_is_drawn() -> None:
    found = named(runs({"num_measured": 8}, {"num_measured": 12}, {"num_measured": 4}))
    assert found["run_id"].tolist() == ["1"]


@pytest.mark.parametrize("name", VENUES)
def test_a_figure_is_as_wide_as_the_venues_page_or_column(name: str) -> None:
    with venue(name):
        assert grid(4)[0].get_figwidth() == VENUES[name].page
        assert grid(1)[0].get_figwidth() == VENUES[name].column


@pytest.mark.parametrize("count", [2, 4])
def test_long_titles_stay_beside_each_other_and_inside_the_page(count: int) -> None:
    def build() -> Figure:
        figure, axes = grid(count)
        for axis in axes:
            axis.set_title("ConfLayers\nhumaneval, step 1200, 256 new tokens, and more")
        return figure

    figure = styled(build)()
    figure.draw_without_rendering()
    boxes = [axis.title.get_window_extent() for axis in figure.axes]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    assert boxes[0].x0 >= 0
    assert boxes[-1].x1 <= figure.bbox.x1
    assert figure.axes[0].get_title().replace("\n", " ").endswith("256 new tokens, and more")  # nothing is cut
