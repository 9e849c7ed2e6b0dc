"""What W&B would be given, read back from the offline files."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from PIL import Image

from specbench.config import compose, run_id
from specbench.loggers import build_logger
from specbench.types import ConfigError
from tests.analysis.frames import frame
from tests.loggers import wandb_file
from tests.loggers.runs import conversation, write_run
from tests.results.rows import sample


@pytest.fixture(scope="module", autouse=True)
def no_account():
    """No key and no settings of whoever runs the tests, and nothing goes out."""
    patch = pytest.MonkeyPatch()
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        patch.delenv(name)
    patch.setenv("NETRC", os.devnull)
    patch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    yield
    patch.undo()


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    config = compose(["logger=wandb", "logger.tags=[mine]", "logger.group=my_sweep"])
    return replace(config, paths=replace(config.paths, results_dir=str(root)))


@pytest.fixture(scope="module")
def offline(config):
    """The .wandb file of one logged run of two conversations, and the folder that syncs."""
    logger = build_logger(config)
    logger.start(config, run_id(config), 2, {"versions": {"torch": "2"}})
    for sample_id in ("s0", "s1"):
        logger.sample(*conversation(sample_id))
    folder, summary = write_run(config)
    logger.finish(summary, folder, "finished")
    logger.close()
    (file,) = (folder.parents[1] / "wandb").glob("offline-run-*/run-*.wandb")
    return file


def test_the_run_is_named_grouped_and_tagged(offline, config):
    run = wandb_file.run(offline)
    assert run.run_id == run.display_name == run_id(config)
    assert run.run_group == "my_sweep"
    assert run.job_type == "pld"
    assert list(run.tags) == ["smollm2", "pld", "humaneval", "bfloat16", "mine"]
    assert run.project == "specbench"


def test_the_config_is_flat_and_resolved(offline):
    config = wandb_file.config(offline)
    assert config["sampling.max_new_tokens"] == 64
    assert config["method.controller.name"] == "none"
    assert config["environment.versions.torch"] == "2"


def test_running_rates_are_logged_once_a_conversation(offline):
    rows = [row for row in wandb_file.history(offline) if "tokens_per_second" in row]
    assert [row["num_samples"] for row in rows] == [1, 2]
    for prefix in ("", "conversation/"):
        assert rows[-1][f"{prefix}tokens_per_second"] == 10.0
        assert rows[-1][f"{prefix}acceptance_rate"] == 0.5
        assert rows[-1][f"{prefix}mat"] == 2.5
        assert rows[-1][f"{prefix}walltime_speedup"] == 2.0


def test_a_continued_run_goes_on_counting_where_it_stopped(config, tmp_path):
    config = replace(config, paths=replace(config.paths, results_dir=str(tmp_path)))
    logger = build_logger(config)
    logger.start(config, "the-run", 1, {})
    logger.resume(frame([sample("s0", decode_s=3.0), sample("s0", arm="baseline", decode_s=3.0)]))
    logger.sample(*conversation("s1"))
    logger.close()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    (row,) = [row for row in wandb_file.history(file) if "tokens_per_second" in row]
    assert (row["num_samples"], row["tokens_per_second"], row["walltime_speedup"]) == (2, 5.0, 1.25)
    assert row["conversation/walltime_speedup"] == 2.0


def test_the_summary_is_the_runs_own(offline):
    summary = wandb_file.summary(offline)
    assert summary["status"] == "finished"
    assert summary["walltime_speedup"] == 2.0
    assert summary["num_measured"] == 2


def test_the_samples_table_is_in_the_folder_that_syncs(offline):
    rows = [row for row in wandb_file.table(offline, "samples") if row["used"]]
    assert [(row["sample_id"], row["arm"], row["num_tokens"]) for row in rows] == [
        ("s0", "method", 10),
        ("s0", "baseline", 10),
        ("s1", "method", 10),
        ("s1", "baseline", 10),
    ]
    assert {row["text"] for row in rows} == {"an answer"}
    assert "tokens" not in rows[0]


def test_the_choices_are_a_table_with_their_numbers(offline):
    rows = [row for row in wandb_file.table(offline, "choices") if row["attempt"] == 0]
    names = ("sample_id", "step", "sublayers", "num_attention_skipped", "predicted_acceptance", "search_s", "reason")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("s0", 1, "[2, 4, 5]", 2, 0.75, 0.5, "better"),
        ("s1", 1, "[2, 4, 5]", 2, 0.75, 0.5, "better"),
    ]
    assert rows[0]["predicted_tokens_per_second"] is None
    assert json.loads(rows[0]["values"])["matchness"] == 0.75


def test_choices_of_layers_that_count_are_lines_over_the_choices(offline):
    rows = [row for row in wandb_file.history(offline) if "layers/num_attention_skipped" in row]
    assert [row["choice"] for row in rows] == [1, 2]
    assert (rows[0]["layers/num_attention_skipped"], rows[0]["layers/num_mlp_skipped"]) == (2, 1)
    assert rows[0]["layers/predicted_acceptance"] == 0.75
    assert "layers/predicted_tokens_per_second" not in rows[0]


def test_choices_of_layers_are_an_image(offline):
    (file,) = (offline.parent / "files" / "media" / "images" / "layers").glob("heatmap_*.png")
    logged = [row["layers/heatmap.path"] for row in wandb_file.history(offline) if "layers/heatmap.path" in row]
    assert logged == [f"media/images/layers/{file.name}"]
    with Image.open(file) as image:
        assert min(image.size) > 300
        assert len(image.getcolors(maxcolors=1 << 20) or ()) > 10  # something is drawn


@pytest.mark.parametrize(
    ("key", "definition", "rows"),
    [
        (
            "acceptance_by_position",
            "line",
            [{"position": n, "acceptance_rate": 1.0 if n < 3 else 0.0, "num_drafted": 8} for n in range(1, 5)],
        ),
        ("verify_cost", "line", [{"rows": 1, "relative_cost": 1.0}, {"rows": 8, "relative_cost": 1.5}]),
        (
            "time_by_phase",
            "bar",
            [
                {"phase": phase, "ms_per_token": pytest.approx(milliseconds)}
                for phase, milliseconds in (
                    ("draft", 10.0),
                    ("verify", 80.0),
                    ("adapt", 0.0),
                    ("host", 10.0),
                    ("AR, whole token", 200.0),
                )
            ],
        ),
    ],
)
def test_custom_charts_have_their_data(offline, key, definition, rows):
    chart = wandb_file.charts(offline)[f"charts/{key}"]
    assert chart["panel_config"]["panelDefId"] == f"wandb/{definition}/v0"
    fields = chart["panel_config"]["fieldSettings"].values()
    found = wandb_file.table(offline, f"{key}_table")
    assert found == rows
    assert {field for field in fields if field is not None} <= set(found[0])


def test_the_run_folder_is_an_artifact(offline, config):
    files = wandb_file.artifacts(offline)["results", run_id(config)]
    assert sorted(files) == [
        "choices.parquet",
        "config.yaml",
        "environment.json",
        "samples.parquet",
        "status.json",
        "steps.parquet",
        "summary.json",
    ]


def test_the_summary_says_what_was_skipped(offline):
    summary = wandb_file.summary(offline)
    assert summary["skip_set"] == [2, 4, 5]
    assert (summary["num_attention_skipped"], summary["num_mlp_skipped"], summary["search_ended"]) == (2, 1, True)
    assert summary["search_share"] == 0.0
    assert summary["steady_tokens_per_second"] > 0


def test_step_histograms_cover_the_methods_steps_that_count(offline):
    logged = {key: value for row in wandb_file.history(offline) for key, value in row.items()}
    assert logged["steps/num_accepted.values"] == [0, 0, 8]
    assert logged["steps/num_draft_tokens.values"] == [0, 0, 0, 0, 8]
    assert sum(logged["steps/seconds.values"]) == 8


def test_online_without_a_login_is_refused_before_anything_is_measured(config, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    online = replace(config, logger=replace(config.logger, mode="online"))
    with pytest.raises(ConfigError, match=r"logger\.mode=online.*wandb login"):
        build_logger(online)
