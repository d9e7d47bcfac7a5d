"""A budget is counted from the log, and what cannot be counted is refused before it costs anything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import ConfigError
from agentor.engine.budget import Budget, read_budget
from agentor.engine.events import Event, Usage
from agentor.engine.replay import replay
from tests.core.logs import usages

PRICES = {"m": (1.0, 10.0), "n": (2.0, 20.0)}


def run_of(spent: list[tuple[str, Usage]]) -> Any:
    return replay([Event("generation", model=name, usage=usage) for name, usage in spent])


SPENDING = st.lists(st.tuples(st.sampled_from(sorted(PRICES)), usages()), max_size=5)


@given(SPENDING, st.integers(1, 200))
def test_a_budget_of_tokens_is_reached_when_the_log_has_that_many(
    spent: list[tuple[str, Usage]], limit: int
) -> None:
    total = sum(usage.total_tokens for _, usage in spent)
    told = f"Reached the budget of {limit} tokens ({total} spent)."
    assert Budget(tokens=limit).reached(run_of(spent)) == (told if total >= limit else None)


@given(SPENDING, st.integers(1, 200))
def test_a_budget_of_money_is_reached_when_the_models_cost_that_much(
    spent: list[tuple[str, Usage]], millionths: int
) -> None:
    budget = Budget(money=millionths / 1e6, prices=PRICES)
    cost = 0
    for name, usage in spent:
        given_price, made_price = PRICES[name]
        cost += usage.input_tokens * int(given_price) + usage.output_tokens * int(made_price)
    state = run_of(spent)
    assert budget.spent(state) == pytest.approx(cost / 1e6)
    if cost != millionths:  # sums of floats may miss an exact equality
        assert (budget.reached(state) is not None) == (cost > millionths)


def test_a_budget_of_money_says_what_was_spent_of_how_much() -> None:
    budget = Budget(tokens=10**9, money=0.5, prices=PRICES)
    state = run_of([("m", Usage(500_000, 0, 500_000))])
    assert budget.reached(state) == "Reached the budget of 0.5 (0.5 spent)."


@pytest.mark.parametrize(
    ("limit", "tokens", "told"),
    [
        (1e-05, 30, "0.00001 (0.00003 spent)"),
        (0.00002, 31, "0.00002 (0.000031 spent)"),
        (1_000_000, 1_250_000_123_000, "1000000 (1250000.12 spent)"),
        (1234.5, 1_234_567_891, "1234.5 (1234.57 spent)"),
        (2, 2_000_400, "2 (2 spent)"),
    ],
)
def test_money_is_written_as_money_however_little_or_much(
    limit: float, tokens: int, told: str
) -> None:
    budget = Budget(money=limit, prices={"m": (1.0, 0.0)})
    state = run_of([("m", Usage(tokens, 0, tokens))])
    assert budget.reached(state) == f"Reached the budget of {told}."


def test_a_model_without_a_price_is_named_before_it_is_asked() -> None:
    budget = Budget(money=1, prices=PRICES)
    budget.check("m")
    Budget(tokens=1).check("unpriced")
    with pytest.raises(ConfigError, match="no price for the model 'unpriced'"):
        budget.check("unpriced")
    with pytest.raises(ConfigError, match="no price for the model 'unpriced'"):
        budget.reached(run_of([("unpriced", Usage(1, 1, 2))]))


def test_what_cannot_be_counted_is_told_in_words_unless_only_tokens_count() -> None:
    state = run_of([("m", Usage(1, 1, 2)), ("unpriced", Usage(1, 1, 2))])
    with pytest.raises(ConfigError) as error:
        Budget(money=1, prices=PRICES).check_spent(state)
    assert Budget(money=1, prices=PRICES).problems(state) == [str(error.value)]
    assert Budget(tokens=1).problems(state) == []
    assert Budget(money=1, prices=PRICES | {"unpriced": (1, 1)}).problems(state) == []


@pytest.mark.parametrize("amount", [0, -1, True, float("nan")])
@pytest.mark.parametrize("name", ["tokens", "money"])
def test_a_limit_is_more_than_nothing(name: str, amount: Any) -> None:
    with pytest.raises(ConfigError, match=f"budget: {name} must be more than 0"):
        Budget(**{name: amount})


def test_a_number_is_a_budget_of_tokens() -> None:
    budget = Budget(tokens=7)
    assert read_budget(7) == read_budget(budget) == budget
    assert read_budget(None) is None
    with pytest.raises(ConfigError, match="tokens, money, or both"):
        Budget()
    for wrong in (True, "7", 1.5):
        with pytest.raises(ConfigError, match="a number of tokens or a Budget"):
            read_budget(wrong)
