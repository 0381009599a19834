"""The page of choices names every choice as the search knows it."""

from __future__ import annotations

from pathlib import Path

from torchwise.plan.choice import ANY, Choice, load_choices

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "choices.md"
PLACES = {("cpu", "cuda"): "CPU, GPU", ("cpu",): "CPU", ("cuda",): "GPU"}


def row(choice: Choice) -> str:
    field, value = choice.value if choice.field == "options" else choice.key
    named = f"`{field}`" if value is True else f"`{field}: {value}`"
    modes = "" if len(choice.modes) == 2 else f", {choice.modes[0]}"
    traits = [*choice.required_traits, *(f"no {trait}" for trait, _ in choice.excluded_by)]
    needs = ", ".join(trait.replace("_", " ") for trait in traits) or "–"
    where = PLACES[choice.devices] + modes
    effort = ", or quick with ".join([choice.effort, *filter(None, [" or ".join(choice.quick_with).replace("_", " ")])])
    return f"| {named} | {choice.summary} | {where} | {choice.numerics} | {effort} | {needs} |"


def test_every_choice_is_on_the_page_as_it_is() -> None:
    # How many threads there are to choose from depends on the machine.
    choices = [choice for choice in load_choices().values() if choice.field != "threads" or choice.value == ANY]
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert table == [row(choice) for choice in choices], "\n" + "\n".join(map(row, choices))
