"""The thread count is measured once per machine and results folder."""

import json
import threading

import pytest
import torch

from specbench.hardware import threads
from specbench.hardware.threads import candidates, choose_num_threads, set_num_threads


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(threads, "physical_cores", lambda: 4)


class Measure:
    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds
        self.asked: list[int] = []

    def __call__(self, count: int) -> float:
        self.asked.append(count)
        return self.seconds[count]


def test_the_fastest_count_wins(tmp_path):
    measure = Measure({1: 4.0, 2: 2.0, 3: 1.0, 4: 3.0})
    assert choose_num_threads(measure, path=tmp_path / "threads.json") == 3
    assert set(measure.asked) == {1, 2, 3, 4}


def test_more_threads_must_pay(tmp_path):
    assert choose_num_threads(Measure({1: 2.0, 2: 1.01, 3: 1.0, 4: 1.0}), path=tmp_path / "threads.json") == 2


def test_the_second_job_reads_the_answer(tmp_path):
    path = tmp_path / "root" / "threads.json"
    choose_num_threads(Measure({1: 4.0, 2: 2.0, 3: 1.0, 4: 3.0}), path=path)
    second = Measure({})
    assert choose_num_threads(second, path=path) == 3
    assert second.asked == []


def test_another_machine_measures_again_and_both_are_kept(tmp_path, monkeypatch):
    path = tmp_path / "threads.json"
    choose_num_threads(Measure({1: 4.0, 2: 2.0, 3: 1.0, 4: 3.0}), path=path)
    monkeypatch.setattr(threads, "cpu_model", lambda: "some other CPU")
    assert choose_num_threads(Measure({1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}), path=path) == 1
    assert len(json.loads(path.read_text())) == 2


def test_a_damaged_file_is_measured_again(tmp_path):
    path = tmp_path / "threads.json"
    path.write_text('{"half": ')
    assert choose_num_threads(Measure({1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}), path=path) == 1


def test_jobs_that_start_together_measure_once(tmp_path):
    measure = Measure({1: 4.0, 2: 2.0, 3: 1.0, 4: 3.0})
    answers: list[int] = []
    jobs = [
        threading.Thread(target=lambda: answers.append(choose_num_threads(measure, path=tmp_path / "threads.json")))
        for _ in range(3)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(timeout=20)
    assert answers == [3, 3, 3]
    assert len(measure.asked) == threads.ROUNDS * 4


def test_many_cores_are_sampled_not_scanned():
    assert candidates(96) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
    assert candidates(5) == [1, 2, 3, 4, 5]


def test_set_num_threads_can_be_called_again():
    before = torch.get_num_threads()
    try:
        set_num_threads(2)
        set_num_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
