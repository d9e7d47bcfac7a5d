"""An agent has a name: workers, lists of runs and the log know it by that."""

from __future__ import annotations

import pytest

from agentor import Agentor, ConfigError


@pytest.mark.parametrize("name", ["", "  ", "\n"])
def test_an_empty_name_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(ConfigError, match="name is empty"):
        Agentor(name)


def test_a_name_is_kept_as_it_is_written() -> None:
    assert Agentor(" Ada ").name == " Ada "
