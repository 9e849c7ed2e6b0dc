"""One stop rule: the first stop id is kept and ends the answer; the budget is exact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specbench.decoding.stopping import cut
from specbench.types import Verdict


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.booleans(),
    st.integers(0, 8),
    st.sets(st.integers(0, 5)),
    st.integers(1, 9),
)
def test_tokens_end_with_the_first_stop_id_or_the_budget(
    tokens: list[int], bonus: bool, spine: int, stop_ids: set[int], budget: int
) -> None:
    rows = tuple(range(len(tokens) - bonus))
    verdict = Verdict(rows, tuple(tokens), len(rows), min(spine, len(rows)), tokens[-1])
    found = cut(verdict, stop_ids=stop_ids, budget=budget)
    expected: list[int] = []
    for token in tokens[:budget]:
        expected.append(token)
        if token in stop_ids:
            break
    assert list(found.tokens) == expected
    assert found.stopped == (expected[-1] in stop_ids)
    assert found.next_token == expected[-1]
    assert found.rows == rows[: len(expected)]
    assert found.num_accepted == len(found.rows)
    assert found.num_accepted_spine == min(spine, len(found.rows))
