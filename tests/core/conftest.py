"""While mutants are tested: any example that fails will do, so nothing is shrunk, and fewer are tried."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

if "MUTANT_UNDER_TEST" in os.environ:  # set by mutmut
    settings.register_profile(
        "mutants",
        settings.get_profile("repeatable"),
        phases=[Phase.explicit, Phase.generate],
        max_examples=15,
    )
    settings.load_profile("mutants")
