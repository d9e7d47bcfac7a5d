"""A typed answer: the shape the provider is told, and what is said to a model whose answer does not have it."""

from __future__ import annotations

from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from agentor.engine import strict_json
from agentor.engine.strict_schema import close_schema
from agentor.engine.typed_dicts import readable
from agentor.errors import ConfigError


class OutputType:
    """The type of an agent's final answer: a pydantic model, a dataclass or a TypedDict.

    Providers enforce the shape only for closed objects, so a type with open-ended keys (a dict field) is refused here,
    when the agent is built, with a `ConfigError`.
    """

    def __init__(self, wanted: Any) -> None:
        self.name = getattr(wanted, "__name__", str(wanted))
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(readable(wanted))
            schema = self._adapter.json_schema()
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise ConfigError(f"output_type {self.name} has no JSON schema: {error}") from error
        if schema.get("type") != "object" and "$ref" not in schema:
            raise ConfigError(
                f"output_type {self.name} must be an object with fields (a pydantic model, a dataclass or "
                "a TypedDict); put other types into a field of one"
            )
        try:
            self.schema = close_schema(schema)
        except ValueError as error:
            raise ConfigError(f"output_type {self.name}: {error}") from None

    @property
    def response_format(self) -> dict[str, Any]:
        """The chat-completions `response_format` for this type."""
        name = "".join(char if char.isalnum() else "_" for char in self.name)[:64] or "answer"
        return {
            "type": "json_schema",
            "json_schema": {"name": name, "schema": self.schema, "strict": True},
        }

    def parse(self, text: str) -> Any:
        """The answer as an instance. ValueError says what does not fit."""
        try:
            return self._adapter.validate_json(_unfenced(text))
        except ValidationError as error:
            raise ValueError(_faults(error)) from None

    def unfit(self, text: str) -> str | None:
        """Why `text` is no answer of this type; None if it is."""
        try:
            self.parse(text)
        except ValueError as error:
            return f"The answer does not match {self.name}: {error}"
        return None

    def correction(self, unfit: str) -> str:
        """What to ask of the model when its answer is unfit."""
        return (
            f"{unfit}. Answer again with only a JSON object that matches this JSON schema: "
            f"{strict_json.dumps(self.schema)}"
        )


def _unfenced(text: str) -> str:
    """The text without the Markdown fence that some models put around JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        return text.partition("\n")[2].removesuffix("```")
    return text


def _faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    named = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in faults[:20]]
    return "; ".join(f"{where}: {message}" if where else message for where, message in named)
