from __future__ import annotations

import runpy
import subprocess
import sys

import pytest

from specbench.analysis.metrics import summarise
from specbench.analysis.report import closing_table
from specbench.results.store import RunStore
from specbench.results.summary import load_runs
from tests.analysis.frames import pair_rows
from tests.results.rows import failed, step


def make_run(root, name, *, method="pld", status="finished", error=None, fail=False, summary=None):
    with RunStore(root / name) as store:
        store.write_config(f"model: tiny\nmethod: {{name: {method}, controller: none}}\ntask: gsm8k\n")
        for i in range(8):
            rows = pair_rows(f"s{i}", (10, 1.0), (10, 2.0), scores='{"accuracy": 0.5}')
            rows[0] |= {"exact_match": i > 0, "divergence_class": None if i else "tie"}
            rows[0] |= {"draft_s": 0.1, "num_tree_tokens": 20}
            store.append(f"s{i}", rows, [step(f"s{i}")])
        if fail:
            store.append("f", [failed("f")])
        if status:
            curve = {"t_curve": [[1, 0.02], [8, 0.03]], "dtype": "float32"}
            frames = store.frames()
            known = summarise(frames.samples, frames.steps) | curve | (summary or {})
            store.finalize(known, status=status, error=error)
    return root / name


def test_cells_of_a_finished_run(tmp_path):
    make_run(tmp_path, "r1")
    table = closing_table(load_runs(tmp_path))
    assert table.rows == [[
        "tiny", "pld", "none", "gsm8k", "float32", "8", "10.0", "2.00x [2.00, 2.00]", "3.00", "0.500", "0.88",
        "1 (1/0)", "accuracy 0.500 (AR 0.500)",
    ]]  # fmt: skip
    assert len(table.rows[0]) == len(table.columns)
    assert table.notes[0].startswith("r1: worth it: measured 2.00x")
    assert "predicted" in table.notes[0]


def test_runs_of_a_sweep_say_what_was_swept(tmp_path):
    for name, length in (("a", 2), ("b", 6), ("c", 6)):
        folder, method = make_run(tmp_path, name), "ar" if name == "c" else "pld"
        config = f"model: tiny\nmethod: {{name: {method}, controller: none, num_draft_tokens: {length}}}\ntask: gsm8k\n"
        (folder / "config.yaml").write_text(config + f"paths: {{results_dir: /{name}}}\n")
    runs = load_runs(tmp_path)
    assert list(runs["cfg.method.num_draft_tokens"]) == [2, 6, 6]
    assert not any(column.startswith("cfg.paths") for column in runs)
    table = closing_table(runs)
    place = table.columns.index("settings")
    assert [row[place] for row in table.rows] == ["num_draft_tokens=2", "num_draft_tokens=6", ""]
    assert "settings" not in closing_table(runs[1:]).columns


def test_every_kind_of_run_has_its_line(tmp_path):
    make_run(tmp_path, "a_ar", method="ar")
    make_run(tmp_path, "b_failed", status="failed", error="NaN logits", fail=True)
    make_run(tmp_path, "c_open", status=None)
    make_run(tmp_path, "d_broken")
    (tmp_path / "d_broken" / "status.json").write_text("{")
    table = closing_table(load_runs(tmp_path))
    assert [row[5] for row in table.rows] == ["8", "8 (1 failed)", "interrupted", "corrupt"]
    assert {len(row) for row in table.rows} == {len(table.columns)}
    for note, text in zip(
        table.notes, ["baseline itself", "failed: NaN logits", "interrupted", "status.json"], strict=True
    ):
        assert text in note


def test_figures_of_an_oracle_are_marked_as_a_bound(tmp_path):
    make_run(tmp_path, "r1", summary={"controller": "block_oracle", "bound": True})
    make_run(tmp_path, "r2", summary={"controller": "fixed", "bound": False})
    make_run(tmp_path, "r3")
    names = [row[2] for row in closing_table(load_runs(tmp_path)).rows]
    assert names == ["block_oracle (bound)", "fixed", "none"]


def test_no_runs_give_a_table_without_rows(tmp_path):
    assert closing_table(load_runs(tmp_path)).rows == []


def test_the_command_prints_the_table_of_a_folder(tmp_path, repo_root):
    make_run(tmp_path, "r1")
    make_run(tmp_path, "r2", method="ar")
    command = [sys.executable, "scripts/report.py", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repo_root, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "2.00x [2.00, 2.00]" in done.stdout
    assert "r1: worth it" in done.stdout
    assert "r2: the baseline itself" in done.stdout


@pytest.fixture(scope="module")
def report_main(repo_root):
    return runpy.run_path(str(repo_root / "scripts" / "report.py"))["main"]


def test_the_command_takes_one_run_or_a_choice_of_them(tmp_path, report_main, capsys):
    make_run(tmp_path, "r1")
    make_run(tmp_path, "r2", method="ar")
    for arguments in ([str(tmp_path / "r2")], [str(tmp_path), "--method", "ar"]):
        assert report_main(arguments) == 0
        out = capsys.readouterr().out
        assert "r2: " in out
        assert "r1: " not in out


def test_the_command_reads_frozen_rows(report_main, capsys, repo_root):
    assert report_main([str(repo_root / "results" / "paper"), "--method", "pld"]) == 0
    printed = capsys.readouterr().out
    assert "smollm2" in printed
    assert "worth it: measured" in printed


def test_the_command_fails_clearly_when_nothing_is_there(tmp_path, report_main, capsys):
    assert report_main([str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr() == ("", f"no runs in {tmp_path / 'nowhere'}\n")


def test_no_torch_is_imported(repo_root):
    modules = (
        "specbench.analysis.report, specbench.analysis.replay, specbench.analysis.metrics, specbench.results.summary"
    )
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=repo_root, timeout=120, check=False).returncode == 0
