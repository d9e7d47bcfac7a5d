"""Every layout of a docstring in common use gives the same summary and the same descriptions."""

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.engine.docstrings import read_docstring
from agentor.engine.tools import RunContext, function_tool

NAMES = ("city", "days", "unit")
SUMMARY = "Tell the weather.\n\nOnly in Europe."
TEXTS = {"city": "The city: its name.", "days": "How many\ndays.", "unit": "C or F."}

GOOGLE = {
    "plain": """
        Args:
            city: The city: its name.
            days: How many
                days.
            unit: C or F.
        """,
    "types in parentheses": """
        Args:
            city (str): The city: its name.
            days (int, optional): How many
                days.
            unit (Literal["C", "F"]): C or F.

        Returns:
            str: The weather: as text.
        """,
    "nested types": """
        Arguments:
            city (Annotated[str, Field(description="a (b): c")]): The city: its name.
            days (dict[str, int] | None, optional): How many
                days.
            unit (`list` of `str`): C or F.
        Raises:
            ValueError: If there is none.
        """,
    "text below the name": """
        Parameters:
            city:
                The city: its name.
            days (int):
                How many
                days.
            unit
                C or F.
        """,
    "two spaces": """
        Args:
          city: The city: its name.
          days: How many
            days.
          unit: C or F.
        """,
    "odd margins": """
        Args:
            city: The city: its name.
             days: How many
                 days.
           unit: C or F.
        """,
    "no margin": """
        Args:
        city: The city: its name.
        days: How many
          days.
        unit: C or F.
        """,
    "continued at the margin of the items": """
        Args:
            city: The city: its name.
            days: How many
            days.
            unit: C or F.
        """,
    "blank lines between": """
        Args:

            city: The city: its name.

            days: How many

                days.

            unit: C or F.
        """,
    "spaces before colons": """
        Args :
            city : The city: its name.
            days (int) : How many
                days.
            unit : C or F.
        """,
    "dashes": """
        Params:
            city - The city: its name.
            days (int) - How many
                days.
            unit — C or F.
        """,
    "bullets and markdown": """
        **Args:**
        - `city` (str): The city: its name.
        - **days**: How many
          days.
        * `unit`: C or F.
        """,
    "two sections and an unknown name": """
        Args:
            city: The city: its name.
            region (str): Gone since long.
                With more text: on it.
            days: How many
                days.
        Keyword Args:
            unit: C or F.
        """,
}
OTHER = {
    "numpy": """
        Parameters
        ----------
        city : str
            The city: its name.
        days : {1, 2}, default: 1
            How many
            days.
        unit
            C or F.

        Returns
        -------
        str
            The weather.
        """,
    "numpy without spaces": """
        Parameters
        ----------
        city: str
            The city: its name.
        days: int, optional
            How many
            days.
        Other Parameters
        ----------------
        unit: str
            C or F.
        """,
    "rest": """
        :param city: The city: its name.
        :param int days: How many
            days.
        :param unit: C or F.
        :type unit: str
        :returns: The weather.
        :raises ValueError: If there is none.
        """,
    "rest with text below": """
        :param str city:
            The city: its name.
        :param days:
            How many
            days.
        :param unit: C or F.
        """,
    "epydoc": """
        @param city: The city: its name.
        @param days: How many
            days.
        @param unit: C or F.
        @return: The weather.
        """,
}


def docstring(section: str) -> str:
    return f"Tell the weather.\n\nOnly in Europe.\n\n{inspect.cleandoc(section)}\n"


@pytest.mark.parametrize("layout", [*GOOGLE, *OTHER])
def test_every_layout_says_the_same(layout: str) -> None:
    text = read_docstring(docstring((GOOGLE | OTHER)[layout]), NAMES)
    assert text.summary == SUMMARY
    assert text.parameters == TEXTS


@pytest.mark.parametrize("layout", [*GOOGLE, *OTHER])
def test_every_layout_reaches_the_schema_of_a_tool(layout: str) -> None:
    def weather(ctx: RunContext, city: str, days: int = 1, *, unit: str = "C") -> str:
        return ""

    weather.__doc__ = docstring((GOOGLE | OTHER)[layout])
    tool = function_tool(weather)
    shown: dict[str, Any] = tool.parameters["properties"]
    assert tool.description == SUMMARY
    assert {name: part["description"] for name, part in shown.items()} == TEXTS


def test_prose_after_a_section_is_kept_and_results_and_errors_are_not() -> None:
    text = read_docstring(
        inspect.cleandoc("""Tell the weather.

        Args:
            city: The city.

        Important:
            Call it once.

        Returns:
            A text.

            Of some length.

        Example:
            weather("Oslo")

        Ask before you call."""),
        ["city"],
    )
    assert text.parameters == {"city": "The city."}
    assert text.summary == (
        "Tell the weather.\n\nImportant:\n    Call it once.\n\n"
        'Example:\n    weather("Oslo")\n\nAsk before you call.'
    )


def test_a_list_inside_a_description_stays_in_it() -> None:
    text = read_docstring(
        "Book.\n\nArgs:\n    kind: One of:\n        - flight: by air\n        - days: by day\n"
        "    days: How many.\n        - kind: no item\n",
        ["kind", "days"],
    )
    assert text.parameters["days"] == "How many.\n- kind: no item"
    assert text.parameters["kind"].startswith("One of:\n- flight: by air")


def test_a_parameter_section_may_start_the_docstring() -> None:
    text = read_docstring("Args:\n    city: The city.", ["city"])
    assert (text.summary, text.parameters) == ("", {"city": "The city."})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "One line.",
        "See https://example.org: it has all.\ncity: not a section",
        "A list:\n\n- one: two\n- three",
        "Args: city: on one line",
        "Note: this. Returns: that.",
    ],
)
def test_prose_without_sections_is_the_summary_as_it_is(text: str) -> None:
    reading = read_docstring(text, ["city"])
    assert (reading.summary, reading.parameters) == (text, {})


def test_a_field_description_comes_before_the_docstrings() -> None:
    from typing import Annotated

    from pydantic import Field

    @function_tool
    def f(a: Annotated[int, Field(description="of the field")], b: int) -> str:
        """F.

        Args:
            a: of the docstring
            b: of the docstring
        """
        return ""

    shown = f.parameters["properties"]
    assert [shown[name]["description"] for name in "ab"] == ["of the field", "of the docstring"]


LINES = st.sampled_from(
    [
        "Args:",
        "Returns:",
        "city: x",
        "  city (str): x",
        "    days - y",
        "Parameters",
        "-----",
        ":param city: x",
        "@param days: y",
        "\n    more",
        "Note:",
        "(",
        ":",
        "**Args:**",
        "- `unit`: z",
        "Args:",
        "  unit",
    ]
)


@given(st.lists(LINES | st.text(max_size=20), max_size=12))
def test_no_docstring_is_an_error(lines: list[str]) -> None:
    text = read_docstring("\n".join(lines), NAMES)
    assert set(text.parameters) <= set(NAMES)
    assert all(text.parameters.values())
