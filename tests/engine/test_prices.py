"""Money counted by published prices: none need be given, and none is guessed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, Budget, ConfigError, MemoryStore
from agentor.engine.events import Event, Usage
from agentor.engine.models import ModelResponse
from agentor.engine.price_table import published_price
from agentor.engine.replay import replay
from agentor.testing import ScriptedModel

STARTED_AT = 1_760_000_000.0


class Named(ScriptedModel):
    """A model that goes by a published name and spends a million tokens each time."""

    def __init__(self, replies: Any) -> None:
        super().__init__(replies)
        self.model = "gpt-4o-mini"

    async def complete(self, *args: Any, **kwargs: Any) -> ModelResponse:
        response = await super().complete(*args, **kwargs)
        response.usage = Usage(1_000_000, 0, 1_000_000)
        return response


def state_of(*generations: tuple[str, Usage]) -> Any:
    start = Event("run_start", started_at=STARTED_AT, messages=[{"role": "user", "content": "go"}])
    spent = [Event("generation", model=model, usage=usage) for model, usage in generations]
    return replay([start, *spent])


def test_a_published_model_needs_no_price_and_cached_input_is_cheaper() -> None:
    assert published_price("gpt-4o-mini", Usage(1_000_000, 0)) == pytest.approx(0.15)
    assert published_price("gpt-4o-mini", Usage(0, 1_000_000)) == pytest.approx(0.60)
    cached = published_price("gpt-4o-mini", Usage(1_000_000, 0, 1_000_000, cached_tokens=1_000_000))
    assert 0 < cached < 0.15
    assert Budget(money=1).price("gpt-4o-mini", 1_000_000, 1_000_000) == pytest.approx(0.75)


def test_a_price_by_hand_comes_before_the_published_one() -> None:
    budget = Budget(money=1, prices={"gpt-4o-mini": (7.0, 0.0)})
    assert budget.price("gpt-4o-mini", 1_000_000, 0) == 7.0
    assert budget.price("gpt-4o", 1_000_000, 0) == pytest.approx(2.5)


def test_each_call_is_priced_by_its_own_size_however_many_there_are() -> None:
    """Together they are long, each by itself is not: gemini-2.5-pro costs twice as much above 200,000 tokens."""
    budget = Budget(money=1)
    short, long = Usage(150_000, 0, 150_000), Usage(250_000, 0, 250_000)
    cost = [published_price("gemini-2.5-pro", usage, STARTED_AT) for usage in (short, long)]
    assert cost[1] / 250_000 == pytest.approx(2 * cost[0] / 150_000)
    state = state_of(*[("gemini-2.5-pro", short)] * 5, ("gemini-2.5-pro", long))
    assert budget.spent(state) == pytest.approx(5 * cost[0] + cost[1])


USAGES = st.builds(
    lambda given, made, cached: Usage(given, made, given + made, min(cached, given)),
    st.integers(0, 400_000),
    st.integers(0, 5_000),
    st.integers(0, 400_000),
)


@given(st.lists(st.tuples(st.sampled_from(["gpt-4o-mini", "gemini-2.5-pro"]), USAGES), max_size=6))
def test_a_run_costs_what_its_calls_cost(generations: list[tuple[str, Usage]]) -> None:
    each = sum(published_price(model, usage, STARTED_AT) for model, usage in generations)
    spent = Budget(money=1).spent(state_of(*generations))
    # A size that a price begins at lies inside a thousand, and averages are rounded up.
    assert spent == pytest.approx(each, abs=1e-3)


def test_a_model_that_nobody_publishes_is_refused_when_the_agent_is_built() -> None:
    with pytest.raises(ConfigError, match=r"does not know it .* add it to prices"):
        Agentor("A", model=ScriptedModel(["done"]), budget=Budget(money=1))
    Agentor("A", model=ScriptedModel(["done"]), budget=Budget(tokens=1))


def test_a_fallback_that_has_no_price_is_refused_before_anything_is_paid() -> None:
    model = Named(["done"])
    mine = Agentor("A", model=model, store=MemoryStore(), budget=Budget(money=1))
    with pytest.raises(ConfigError, match="no price for the model 'scripted'"):
        mine.run("go", fallback_models=[ScriptedModel(["done"])])
    assert model.requests == []
    assert mine.store.list_runs() == []  # type: ignore[union-attr]


def test_without_the_package_the_error_says_how_to_get_it_or_do_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    published_price.cache_clear()
    with pytest.raises(
        ConfigError, match=r"pip install 'agentor\[prices\]'\), or add it to prices"
    ):
        Agentor("A", model=Named([]), budget=Budget(money=1))
    Agentor("A", model=Named([]), budget=Budget(money=1, prices={"gpt-4o-mini": (1, 1)}))


def test_a_budget_in_dollars_holds_across_resumes_and_forks(store: Any) -> None:
    def asked(money: float, *replies: str) -> Agentor:
        return Agentor("A", model=Named(list(replies)), store=store, budget=Budget(money=money))

    result = asked(0.10, "one").run([{"role": "user", "content": "go"}], run_id="r")
    assert result.status == "completed"  # it may overshoot by one call
    more = [{"role": "user", "content": "and then?"}]
    over = asked(0.10).fork("r", more, fork_id="f")
    assert (over.status, over.error) == ("budget", "Reached the budget of 0.1 (0.15 spent).")
    assert asked(0.10).resume("f").status == "budget"
    assert asked(0.20, "two").resume("f").final_output == "two"
    assert asked(0.20).fork("f", more).status == "budget"
