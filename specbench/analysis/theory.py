"""What a speculative method should gain, and whether it did.

With t(T) = seconds of a forward pass over T new tokens, c = cost ratio (a drafted token's price in AR tokens) and k
drafted tokens a step, one step costs, in AR tokens, k * c + t(1 + k) / t(1); AR pays 1 a token. Hence

    speedup           = tokens a step / (k * c + t(1 + k) / t(1))
    break-even mat    = k * c + t(1 + k) / t(1)
    break-even acceptance = (break-even mat - 1) / k          because tokens a step = 1 + acceptance * k

Host and adapt time are left out: what remains between predicted and measured is theirs. Source of the first formula:
Leviathan et al., "Fast inference from transformers via speculative decoding", 2023, theorem 3.8, with t(1 + k) kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scipy.optimize import brentq

from specbench.analysis.table_text import number, with_interval
from specbench.hardware.profile import VerifyCurve, seconds

LOW_ACCEPTANCE = 0.02


def expected_tokens(alpha: float, num_draft_tokens: int) -> float:
    """Tokens a step when each drafted token is accepted with probability alpha: 1 + alpha + ... + alpha^k."""
    return sum(alpha**i for i in range(num_draft_tokens + 1))


def alpha_from_rate(acceptance_rate: float, num_draft_tokens: int) -> float:
    """The alpha whose expected accepted share (alpha + ... + alpha^k) / k is `acceptance_rate`, in [0, 1]."""
    if acceptance_rate <= 0 or acceptance_rate >= 1:
        return min(max(acceptance_rate, 0.0), 1.0)
    k = num_draft_tokens
    return float(brentq(lambda a: (expected_tokens(a, k) - 1) / k - acceptance_rate, 0.0, 1.0))


def step_cost(
    num_draft_tokens: float,
    cost_ratio: float,
    curve: VerifyCurve,
    rows_histogram: Sequence[Sequence[int]] | None = None,
) -> float:
    """Price of one step in AR tokens: k * c + t(1 + k) / t(1).

    `rows_histogram` [rows of a verify pass, number of steps] replaces t(1 + k) by its mean over the steps, which
    matters where many steps draft nothing and a few draft much.
    """
    if rows_histogram:
        verify = sum(seconds(curve, n) * count for n, count in rows_histogram) / sum(c for _, c in rows_histogram)
    else:
        verify = seconds(curve, 1 + num_draft_tokens)
    return num_draft_tokens * cost_ratio + verify / seconds(curve, 1)


def predicted_speedup(tokens_per_step: float, cost: float) -> float:
    """Speedup over AR of a step that emits `tokens_per_step` tokens at the price `cost` (AR tokens)."""
    return tokens_per_step / cost


def break_even_acceptance(cost: float, num_draft_tokens: float) -> float:
    """The acceptance rate at which a step of price `cost` just pays; above 1 = never."""
    return max((cost - 1) / num_draft_tokens, 0.0)


def prediction(summary: Mapping[str, Any], curve: VerifyCurve | None) -> float | None:
    """The speedup that a run's own cost ratio, mat and t(T) promise; None where one of them is not known."""
    ratio, mat, drafted = (summary.get(name) for name in ("cost_ratio", "mat", "tree_tokens_per_step"))
    if curve is None or ratio is None or mat is None or not drafted:
        return None
    return predicted_speedup(mat, step_cost(drafted, ratio, curve, summary.get("verify_rows_histogram")))


def curve_of(points: Sequence[Sequence[float]] | None) -> VerifyCurve | None:
    """t(T) from the `t_curve` of a summary, [[T, seconds], ...]; None without points."""
    if points is None or not len(points):
        return None
    return VerifyCurve({int(length): float(value) for length, value in points})


def worth_it(summary: Mapping[str, Any], t_curve: VerifyCurve | None) -> str:
    """One line: did it pay, and why (cost ratio, acceptance, t(T), break-even, predicted against measured)."""
    if summary.get("mat") is None:
        return f"{_verdict(summary)}; no steps recorded, so nothing is known of why"
    parts = [_verdict(summary), *_warnings(summary)]
    if not summary.get("drafted_nothing"):
        parts += _reasons(summary, t_curve)
    return "; ".join(parts)


def _verdict(summary: Mapping[str, Any]) -> str:
    speedup, low, high = (summary.get(name) for name in ("walltime_speedup", "ci_low", "ci_high"))
    if speedup is None:
        return "speed against AR not measured"
    if low is None or high is None:
        return f"measured {speedup:.2f}x (too few samples for an interval)"
    word = "worth it" if low > 1 else "not worth it" if high < 1 else "no clear difference"
    return f"{word}: measured {with_interval(speedup, low, high, unit='x')}"


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    warnings = []
    if summary.get("drafted_nothing"):
        warnings.append("nothing was drafted")
    if summary.get("num_choices") == 0:
        warnings.append("its search never ran")
    if summary.get("search_ended") is False:
        warnings.append("its search had not ended")
    acceptance = summary.get("acceptance_rate")
    if acceptance is not None and acceptance < LOW_ACCEPTANCE:
        warnings.append(f"acceptance is below {LOW_ACCEPTANCE:.0%}")
    if summary.get("noisy"):
        warnings.append("noisy: median and pooled speedup differ by more than 10 %")
    return warnings


def _reasons(summary: Mapping[str, Any], curve: VerifyCurve | None) -> list[str]:
    acceptance, ratio, mat = (summary.get(name) for name in ("acceptance_rate", "cost_ratio", "mat"))
    known = {"cost ratio": ratio, "acceptance": acceptance, "mat": mat}
    reasons = [f"{name} {number(value, 3).text}" for name, value in known.items()]
    drafted, spine = summary.get("tree_tokens_per_step"), summary.get("draft_tokens_per_step")
    predicted = prediction(summary, curve)
    if curve is None or ratio is None or not drafted or predicted is None:
        return [*reasons, "no prediction without a measured t(T) and a cost ratio"]
    histogram = summary.get("verify_rows_histogram")
    cost = step_cost(drafted, ratio, curve, histogram)
    rows = 1 + drafted
    reasons.append(f"t({rows:.1f})/t(1) {seconds(curve, rows) / seconds(curve, 1):.2f}")
    reasons.append(f"break-even mat {cost:.2f}")
    if spine:
        reasons[-1] += f", acceptance {number(break_even_acceptance(cost, spine), 3).text}"
    return [*reasons, f"predicted {predicted:.2f}x"]
