"""The project agrees with the golden data, and the checkers notice when a number is wrong."""

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.golden.outcome import FAILED, PASSED, SKIPPED, close, equal
from scripts.golden.registry import CHECKERS, check_file, check_folder, data_files


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def golden(shared_data) -> Path:
    return shared_data / "golden"


# Whole answers with official searches take their time; their parts have files of their own.
LONG = ("confl/e2e.json", "swift/e2e.json", "ouroboros/lib.json")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in sorted(CHECKERS)]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_checked_completely_and_nothing_disagrees(golden, name):
    outcomes = check_file(golden, golden / name)
    assert [(outcome.case, outcome.detail) for outcome in outcomes if outcome.status != PASSED] == []
    plain = sum(outcome.case.endswith("plain decoding") for outcome in outcomes)
    assert plain == plain_answers(json.loads((golden / name).read_text()))
    assert len(outcomes) > plain


def plain_answers(data: dict) -> int:
    """How many prompts of a file have a recorded plain answer."""
    return sum("ar_ids" in prompt for case in data.get("cases", []) for prompt in case.get("prompts") or [case])


def test_plain_answers_are_recorded_for_every_family(golden):
    assert sum(plain_answers(json.loads((golden / name).read_text())) for name in CHECKERS) >= 30


def test_every_file_has_a_checker(golden):
    assert {path.relative_to(golden).as_posix() for path in data_files(golden)} == set(CHECKERS)


def nudge(value: Any) -> Any:
    """The same value, wrong in its last digits."""
    return value + 1 if isinstance(value, int) else value * (1 + 1e-8)


def corrupted(golden: Path, folder: Path, name: str, change: Callable[[dict], None]) -> Path:
    """One file, changed, in a folder with whatever it refers to."""
    (folder / "models").symlink_to(golden / "models")  # resolved, these are models that are loaded already
    if name.startswith("specbench_score/"):
        shutil.copytree(golden / "specbench_score", folder / "specbench_score")
    data = json.loads((golden / name).read_text())
    change(data)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(data))
    return folder / name


# what is changed: (file, path to a number in it, the case that must notice)
CORRUPTIONS = [
    ("sampling/cases.json", ["cases", 1, "joint", 3], "case_2 rejection"),
    ("sampling/cases.json", ["cases", 0, "rules", "point_mass", "expected_tokens"], "case_1 point_mass"),
    ("sampling/cases.json", ["cases", 0, "rules", "sample_match", "round_outputs", 2, "prob"], "case_1 sample_match"),
    (
        "sampling/cases.json",
        ["cases", 3, "rules", "rejection", "acceptance_length_distribution", 1],
        "case_4 rejection",
    ),
    ("sampling/cases.json", ["siblings", 0, "accepted_sibling_distribution", 1], "siblings_1"),
    ("sampling/cases.json", ["siblings", 2, "output_distribution", 4], "siblings_3"),
    ("sampling/cases.json", ["logit_processing", 3, "probs", 5], "process_4"),
    ("specbench_score/expected.json", ["pairs", 0, "expected", "rag", "speedup"], "pair_1 rag"),
    ("specbench_score/expected.json", ["pairs", 1, "expected", "overall", "num_steps"], "pair_2 overall"),
    ("specbench_score/expected.json", ["runs", "expected_mean_std", "qa", "speedup", 1], "runs qa"),
    ("clasp/e2e.json", ["cases", 0, "ar_ids", 95], "e2e_1_llama_a prompt 0 plain decoding"),
    ("clasp/dp_cases.json", ["cases", 2, "skip", 4], "dp_3_llama_a_M4"),
    ("clasp/e2e.json", ["cases", 0, "optimizations", 6, "skip", 0], "e2e_1_llama_a"),
    ("clasp/e2e.json", ["cases", 0, "rounds", 30, "accepted"], "e2e_1_llama_a"),
    ("del/e2e.json", ["cases", 0, "rounds", 12, "next_exit_layer"], "e2e_1_llama_exit"),
    ("del/e2e.json", ["cases", 0, "rounds", 5, "draft_ids", 0], "e2e_1_llama_exit"),
    ("swift/e2e.json", ["cases", 0, "prompts", 0, "ar_ids", 0], "frozen_set prompt 0 plain decoding"),
    ("swift/e2e.json", ["cases", 1, "prompts", 0, "evaluations", 3, "tolerance"], "search"),
    ("swift/e2e.json", ["cases", 0, "prompts", 0, "steps", 7, "num_skipped"], "frozen_set"),
    ("swift/matchness.json", ["cases", 0, "evaluations", 1, "matches"], "match_1_llama_deep"),
    ("swift/tree_cases.json", ["cases", 0, "tree", "parents", 6], "tree_frozen_set_0"),
    ("confl/selection_vectors.json", ["cases", 0, "windows", 5], "log_0"),
    ("confl/selection_cases.json", ["cases", 0, "skip", 2], "sel_1_llama_deep"),
    ("confl/tree_units.json", ["cases", 1, "padding_masked", "accept_length"], "unit_1"),
    ("confl/tree_cases.json", ["cases", 0, "verify", "target_argmax", 9], "tree_std_0"),
    ("confl/e2e.json", ["cases", 1, "prompts", 0, "selections", 3, "best_acc"], "cap"),
    ("confl/e2e.json", ["cases", 0, "prompts", 0, "steps", 9, "chain", 0], "std"),
    ("ouroboros/lib.json", ["cases", 0, "final_pool", "20", 2, 1], "lib_p1"),
    ("ouroboros/lib.json", ["cases", 1, "prompts", 0, "steps", 11, "pool_after", "phrases"], "lib_p2_small_level"),
    ("ouroboros/lib.json", ["cases", 0, "prompts", 0, "steps", 3, "draft_forwards"], "lib_p1"),
    ("ouroboros/lib.json", ["cases", 0, "prompts", 0, "steps", 3, "suffixes", 1, 2], "lib_p1"),
    ("ouroboros/specbench.json", ["cases", 0, "prompts", 0, "steps", 3, "draft_ids", 6], "specbench_p1"),
    ("ouroboros/specbench.json", ["cases", 1, "prompts", 1, "steps", 2, "accepted"], "specbench_p2_warm_pool"),
]


def corruptions() -> list[Any]:
    """Whole generations take a second or two: one of each file and of plain decoding always, the others when slow."""
    seen, found = set(), []
    for name, place, case in CORRUPTIONS:
        kind = "plain" if case.endswith("plain decoding") else name
        marks = pytest.mark.slow if kind in seen else ()  # one of each kind is quick enough
        found.append(pytest.param(name, place, case, id=f"{name}-{case}", marks=marks))
        seen.add(kind)
    return found


@pytest.mark.parametrize(("name", "place", "case"), corruptions())
def test_one_wrong_number_is_noticed_by_its_own_case(golden, tmp_path, name, place, case):
    def change(data: dict) -> None:
        *way, last = keep_only(data, place)
        holder = data
        for step in way:
            holder = holder[step]
        holder[last] = nudge(holder[last])

    found = check_file(tmp_path, corrupted(golden, tmp_path, name, change))
    assert case in {outcome.case for outcome in found if outcome.status == FAILED}


def keep_only(data: dict, place: list) -> list:
    """Drop the cases and the later prompts that the change does not touch, to keep the test short; the new place."""
    for key in ("cases", "siblings", "logit_processing", "pairs"):
        if key in data:
            data[key] = [data[key][place[1]]] if key == place[0] else []
    if place[0] == "runs":
        return place
    data.pop("runs", None)
    if place[2] == "prompts":  # a later one may depend on what an earlier one left behind
        data[place[0]][0]["prompts"] = data[place[0]][0]["prompts"][: place[3] + 1]
    return [place[0], 0, *place[2:]]


def test_an_answer_that_lost_its_end_token_is_noticed(golden, tmp_path):
    def change(data: dict) -> None:
        data["cases"] = [case for case in data["cases"] if case["eos_id"] is not None]
        data["cases"][0]["eos_id"] = 0  # never predicted by these models

    found = check_file(tmp_path, corrupted(golden, tmp_path, "knapspec/e2e.json", change))
    assert [outcome.status for outcome in found if outcome.case.endswith("plain decoding")] == [FAILED]


def test_a_damaged_answer_file_fails_its_pair_only(golden, tmp_path):
    file = corrupted(golden, tmp_path, "specbench_score/expected.json", lambda data: data.pop("runs"))
    path = file.parent / "pair_3" / "method.jsonl"
    path.write_text(path.read_text()[:-40])
    found = check_file(tmp_path, file)
    failed = {outcome.case.split()[0]: outcome.detail for outcome in found if outcome.status == FAILED}
    assert set(failed) == {"pair_3"}
    assert "line" in failed["pair_3"]


def test_a_file_without_a_checker_is_counted_as_skipped(tmp_path):
    (tmp_path / "newmethod").mkdir()
    (tmp_path / "newmethod" / "cases.json").write_text('{"source": "x", "cases": [{"id": "a"}, {"id": "b"}]}')
    ((_, found),) = check_folder(tmp_path)
    assert [(o.case, o.status, o.detail) for o in found] == [
        ("a", SKIPPED, "method not built yet"),
        ("b", SKIPPED, "method not built yet"),
    ]


def test_the_command_reports_a_failure_and_exits_with_it(repo_root, tmp_path):
    (tmp_path / "sampling").mkdir()
    case = {"logits": [0.0, 0.0], "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    good, bad = {"id": "good", "probs": [0.5, 0.5]}, {"id": "bad", "probs": [0.5, 0.4]}
    path = tmp_path / "sampling" / "cases.json"
    path.write_text(json.dumps({"logit_processing": [case | good, case | bad]}))
    command = [sys.executable, str(repo_root / "scripts" / "check_golden.py"), str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 1
    assert "failed bad probs[1] is 0.5, golden 0.4" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


@pytest.fixture
def exit_code(repo_root, monkeypatch):
    """Run the command in this process, which saves loading torch again."""
    script = repo_root / "scripts" / "check_golden.py"
    monkeypatch.syspath_prepend(str(script.parent))

    def run(folder: Path) -> object:
        monkeypatch.setattr(sys, "argv", [str(script), str(folder)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(script), run_name="__main__")
        return end.value.code

    return run


def test_skipped_and_passed_cases_are_a_success(exit_code, tmp_path):
    (tmp_path / "newmethod").mkdir()
    (tmp_path / "newmethod" / "cases.json").write_text('{"cases": [{"id": "a"}]}')
    assert exit_code(tmp_path) == 0


def test_a_folder_without_data_is_a_failure(exit_code, tmp_path, capsys):
    assert exit_code(tmp_path) == 1
    assert "no golden data" in capsys.readouterr().out


def test_comparisons_say_where():
    assert list(equal("ids", [1, 2, 3], [1, 2, 4])) == ["ids[2] is 3, golden 4"]
    assert list(equal("ids", [1], [1, 2])) == ["ids has length 1, golden 2"]
    assert list(close("x", [[1.0, 2.0]], [[1.0, 2.1]], absolute=0.05)) == ["x[0][1] is 2.0, golden 2.1"]
    assert list(close("x", 1.0, 1.01, absolute=0.05)) == []
    assert list(close("x", None, 1.0)) == ["x is None, golden 1.0"]
