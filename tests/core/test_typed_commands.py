"""A command in a message is what somebody types, whatever the names in it look like."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from agentor.commands import command, with_options

words = st.lists(st.text(st.sampled_from("-a b'\"$\\é\n"), min_size=1), max_size=3)
STORE = ["--store", "my runs.db"]


@given(words, st.sampled_from([[], ["--full"]]))
def test_a_shell_reads_the_words_as_they_are_and_none_of_them_as_an_option(
    names: list[str], options: list[str]
) -> None:
    verb, *read = shlex.split(command("show", *names, options=options))[1:]
    assert verb == "show"
    if any(name.startswith("-") for name in names):
        assert read == [*options, "--", *names]
    else:
        assert read == [*names, *options]


@given(words)
def test_a_further_option_is_read_as_one_whatever_the_words_are(names: list[str]) -> None:
    told = with_options(command("show", *names), STORE)
    read = shlex.split(told)[2:]
    before = read[: read.index("--")] if any(n.startswith("-") for n in names) else read
    assert before[-2:] == STORE
    assert [word for word in read if word not in (*STORE, "--")] == [
        name for name in names if name not in (*STORE, "--")
    ]
