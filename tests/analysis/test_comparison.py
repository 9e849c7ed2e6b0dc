from __future__ import annotations

import pytest

from specbench.analysis.comparison import lead, speedup_of, timed_by_run
from specbench.results.opening import open_results
from tests.results.folders import Spec, write_run

pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture
def times(tmp_path):
    specs = [
        Spec("fast", speedup=1.5),
        Spec("close", speedup=1.49, spread=0.2),
        Spec("slow", speedup=0.8),
        Spec("few", speedup=1.7, conversations=4),
    ]
    for spec in specs:
        write_run(tmp_path, spec)
    return timed_by_run(open_results(tmp_path).samples)


def test_a_clear_lead_is_supported(times):
    found = lead({"sps": times["fast"], "pld": times["slow"]})
    assert (found.best, found.runner_up, found.supported) == ("sps", "ar", True)
    assert found.interval.low == pytest.approx(speedup_of(times["fast"]), rel=0.05)


def test_a_lead_within_the_noise_is_not_supported(times):
    found = lead({"sps": times["fast"], "pld": times["close"]})
    assert {found.best, found.runner_up} == {"sps", "pld"}
    assert found.interval.low < 1 < found.interval.high
    assert not found.supported


def test_ar_leads_where_everything_else_is_slower(times):
    found = lead({"pld": times["slow"]})
    assert (found.best, found.runner_up, found.supported) == ("ar", "pld", True)
    assert found.interval.low == pytest.approx(1 / 0.8, rel=0.05)


def test_too_few_common_conversations_support_nothing(times):
    found = lead({"sps": times["fast"], "pld": times["few"]})
    assert (found.best, found.interval, found.supported) == ("pld", None, False)


def test_without_a_method_nobody_leads(times):
    assert lead({}) is None
    assert lead({"ar": times["fast"]}) is None
