"""Any example that fails will do to tell a mutant from the program: nothing is shrunk while mutants are tested."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

if "MUTANT_UNDER_TEST" in os.environ:  # set by mutmut
    settings.register_profile(
        "mutants", settings.get_profile("repeatable"), phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutants")
