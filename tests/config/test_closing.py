"""The report of an experiment that closes its sweep."""

from __future__ import annotations

import logging

import pytest
from omegaconf import DictConfig, OmegaConf

from specbench.config.closing import ClosingReport
from specbench.types import DataError


def said(results_dir: str) -> str:
    """A report."""
    return f"of {results_dir}"


def unsaid(results_dir: str) -> str:
    """A report that cannot be made."""
    raise DataError(f"{results_dir}: damaged")


def config(*, dry_run: bool = False) -> DictConfig:
    return OmegaConf.create({"dry_run": dry_run, "paths": {"results_dir": "mine"}})


def test_a_sweep_ends_with_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    ClosingReport(f"{__name__}.said").on_multirun_end(config())
    assert capsys.readouterr().out == "\nof mine\n"


def test_a_dry_run_has_nothing_to_report(capsys: pytest.CaptureFixture[str]) -> None:
    ClosingReport(f"{__name__}.said").on_multirun_end(config(dry_run=True))
    assert capsys.readouterr().out == ""


def test_a_report_that_cannot_be_made_is_one_line(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        ClosingReport(f"{__name__}.unsaid").on_multirun_end(config())
    assert capsys.readouterr().out == ""
    assert caplog.messages == ["no closing report: mine: damaged"]
