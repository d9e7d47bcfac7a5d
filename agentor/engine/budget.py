"""What a run may spend, counted from its log: across resumes and forks, rewound turns included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from agentor.engine.events import Usage
from agentor.engine.price_table import published_price
from agentor.engine.replay import RunState, Spending
from agentor.errors import ConfigError


@dataclass(frozen=True)
class Budget:
    """Limits on a whole run: tokens, money, or both. Reaching one is a status ("budget"), not an exception.

    Money is counted in the currency of `prices`: for each model's name the price of a million input tokens and of a
    million output tokens. A model that is not in it has its published price, in US dollars, if the extra
    `agentor[prices]` is installed and knows it. A run may overshoot by one model call, for nobody knows what a call costs
    before it is made.
    """

    tokens: int | None = None
    money: float | None = None
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tokens", "money"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not value > 0):
                raise ConfigError(f"budget: {name} must be more than 0, not {value!r}")
        if self.tokens is None and self.money is None:
            raise ConfigError("budget: give tokens, money, or both")

    def check(self, model: str) -> None:
        """`ConfigError` if money is counted and the model has no price: better now than after it is paid."""
        if self.money is not None:
            self._cost(model, Spending(1), None)

    def check_spent(self, state: RunState) -> None:
        """`ConfigError` if money is counted and what a run has spent cannot be: better now than half-way."""
        if self.money is not None:
            self.spent(state)

    def problems(self, state: RunState) -> list[str]:
        """What `check_spent` would raise, in words."""
        try:
            self.check_spent(state)
        except ConfigError as error:
            return [str(error)]
        return []

    def price(self, model: str, input_tokens: int, output_tokens: int) -> float:
        """What a call of that size costs. `ConfigError` if the model has no price."""
        usage = Usage(input_tokens, output_tokens, input_tokens + output_tokens)
        return self._cost(model, Spending(1, usage), None)

    def spent(self, state: RunState) -> float:
        """Money spent so far. `ConfigError` names a model that has no price."""
        return sum(
            self._cost(model, spending, state.started_at)
            for (model, _), spending in state.spending.items()
        )

    def reached(self, state: RunState) -> str | None:
        """Why no further model call may be made, in words; None while one may."""
        if self.tokens is not None and state.usage.total_tokens >= self.tokens:
            return f"Reached the budget of {self.tokens} tokens ({state.usage.total_tokens} spent)."
        if self.money is not None and (spent := self.spent(state)) >= self.money:
            return f"Reached the budget of {_written(self.money)} ({_rounded(spent)} spent)."
        return None

    def _cost(self, model: str, spending: Spending, at: float | None) -> float:
        if model not in self.prices:
            return spending.calls * published_price(model, _average(spending), at)
        given, made = self.prices[model]
        usage = spending.usage
        return (usage.input_tokens * given + usage.output_tokens * made) / 1_000_000


def _written(amount: Any) -> str:
    """As people write money: "0.00003" and "1250000", never with an exponent."""
    text = f"{Decimal(str(amount)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _rounded(amount: float) -> str:
    """To hundredths, and to four digits that say something."""
    digits = max(4, len(str(int(amount))) + 2)
    return _written(f"{amount:.{digits}g}")


def _average(spending: Spending) -> Usage:
    """Of one call, rounded up."""
    usage, calls = spending.usage, spending.calls
    names = ("input_tokens", "output_tokens", "cached_tokens")
    return Usage(**{name: -(-getattr(usage, name) // calls) for name in names})


def read_budget(budget: Any) -> Budget | None:
    """A number is a number of tokens."""
    if budget is None or isinstance(budget, Budget):
        return budget
    if isinstance(budget, int) and not isinstance(budget, bool):
        return Budget(tokens=budget)
    raise ConfigError(f"budget is a number of tokens or a Budget, not {budget!r}")
