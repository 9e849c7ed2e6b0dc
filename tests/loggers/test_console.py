from __future__ import annotations

import io
import logging
import sys
from dataclasses import replace

import pytest

from specbench.analysis.report import COLUMNS, ClosingTable
from specbench.config import compose
from specbench.loggers import build_logger, render
from specbench.loggers.base import Loggers
from specbench.loggers.console import ConsoleLogger
from tests.analysis.frames import frame
from tests.loggers.runs import conversation, write_run
from tests.results.rows import sample


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def composed():
    return compose()


@pytest.fixture
def config(composed, tmp_path):
    return replace(composed, paths=replace(composed.paths, results_dir=str(tmp_path)))


def run_logger(logger, config):
    logger.start(config, "the-run", 2, {})
    for sample_id in ("s0", "s1"):
        logger.sample(*conversation(sample_id))
    folder, summary = write_run(config)
    logger.finish(summary, folder, "finished")
    logger.close()


def test_the_bar_goes_to_a_terminal_and_the_table_to_stdout(config, monkeypatch, capsys):
    bar = Terminal()
    monkeypatch.setattr(sys, "stderr", bar)
    run_logger(build_logger(config), config)
    for words in ("the-run", "2/2", "10.0 tok/s", "acceptance 0.50", "2.00x AR"):
        assert words in bar.getvalue()
    header, row, *notes = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "model"
    assert "2.00x" in row
    assert row.startswith("smollm2  pld")
    assert len(notes) == 1


def test_a_continued_run_shows_the_rates_of_the_whole_run(config, monkeypatch):
    bar = Terminal()
    monkeypatch.setattr(sys, "stderr", bar)
    logger = ConsoleLogger()
    logger.start(config, "the-run", 1, {})
    earlier = [sample("s0", decode_s=3.0), sample("s0", arm="baseline", decode_s=3.0)]
    logger.resume(frame(earlier))
    logger.sample(*conversation("s1"))
    logger.close()
    for words in ("1/1", "5.0 tok/s", "1.25x AR"):
        assert words in bar.getvalue()


def test_a_log_file_gets_no_bar(config, capsys):
    run_logger(build_logger(config), config)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "2.00x" in captured.out


def test_logger_none_and_disabled_wandb(config, capsys):
    run_logger(build_logger(replace(config, logger=replace(config.logger, name="none"))), config)
    assert capsys.readouterr().out == ""


def test_disabled_wandb_is_the_console(config, capsys):
    run_logger(build_logger(replace(config, logger=replace(config.logger, name="wandb", mode="disabled"))), config)
    assert "2.00x" in capsys.readouterr().out


def test_a_logger_that_breaks_costs_a_warning_and_nothing_else(config, capsys, caplog):
    class Broken:
        def start(self, *args):
            return None

        def sample(self, *args):
            raise OSError("no network")

        finish = close = start

    with caplog.at_level(logging.WARNING):
        run_logger(Loggers(Broken(), ConsoleLogger()), config)
    assert [record.message for record in caplog.records] == [
        "Broken stopped (OSError: no network); results are not affected"
    ]
    assert "2.00x" in capsys.readouterr().out


def test_columns_are_aligned_and_nothing_is_a_line_of_its_own():
    rows = [["a" * (number + 1)] * len(COLUMNS) for number in range(2)]
    header, first, second, note = render(ClosingTable(list(COLUMNS), rows, ["n"])).splitlines()
    assert header.index("method") == first.index("a", 3) == second.index("a", 3)
    assert note == "n"
    assert render(ClosingTable(list(COLUMNS), [], [])) == "no runs"
