"""A weather agent that keeps its runs in runs.db."""

from agentor import Agentor, function_tool


@function_tool
def get_weather(city: str) -> str:
    """Get the current weather for a city.

    Args:
        city: The city to look up.
    """
    with open("calls.txt", "a") as calls:  # so that we can count how often it ran
        calls.write(f"get_weather({city!r})\n")
    return f"The weather in {city} is sunny and 22C."


agent = Agentor(
    name="Weather Agent",
    model="gpt-4o-mini",
    instructions="You are a helpful weather assistant.",
    tools=[get_weather],
    store="runs.db",
)

if __name__ == "__main__":
    print(agent.run("What is the weather in London?"))
