"""Published prices of models, from the package genai-prices: the extra `agentor[prices]`.

The only door to that package, opened when a price is asked for. Nothing is fetched: prices are those that came with the
installed version, unless the program itself keeps them fresh (`genai_prices.UpdatePrices`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from agentor.engine.events import Usage
from agentor.errors import ConfigError

BY_HAND = "add it to prices: a pair of what a million input tokens and a million output tokens cost"


@lru_cache(maxsize=4096)  # a run asks anew before each turn, of all its turns
def published_price(model: str, usage: Usage, at: float | None = None) -> float:
    """US dollars for one call of the model, as published for the moment `at` (seconds since the epoch; None: today).

    Cached input is charged as such, a long request at its own price. `ConfigError` says what to do if the package is
    not there or does not know the model.
    """
    try:
        from genai_prices import Usage as PricedUsage
        from genai_prices import calc_price
    except ImportError:
        raise ConfigError(
            f"budget: no price for the model {model!r}; install a table of published prices "
            f"(pip install 'agentor[prices]'), or {BY_HAND}"
        ) from None
    counts = PricedUsage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=min(usage.cached_tokens, usage.input_tokens),
        output_tokens=usage.output_tokens,
    )
    moment = None if at is None else datetime.fromtimestamp(at, UTC)
    try:
        found = calc_price(counts, model, genai_request_timestamp=moment)
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"budget: no price for the model {model!r}, and the table of published prices does not know it ({error}); "
            f"{BY_HAND}"
        ) from None
    return float(found.total_price)
