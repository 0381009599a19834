"""The table of docs/reference/choices.md, which cog writes from the choices that a search knows."""

from __future__ import annotations

from torchwise.plan.choice import ANY, Choice, load_choices

PLACES = {("cpu", "cuda"): "CPU, GPU", ("cpu",): "CPU", ("cuda",): "GPU"}
HEAD = ("| choice | what it does | where | answers | effort | the model has |", "|---|---|---|---|---|---|")


def make_table() -> str:
    """Return a row for each choice. How many threads there are to choose from depends on the machine."""
    known = load_choices().values()
    return "\n".join((*HEAD, *(describe(one) for one in known if one.field != "threads" or one.value == ANY)))


def describe(choice: Choice) -> str:
    """Return the row of a choice."""
    field, value = choice.value if choice.field == "options" else choice.key
    named = f"`{field}`" if value is True else f"`{field}: {value}`"
    modes = "" if len(choice.modes) == 2 else f", {choice.modes[0]}"
    traits = [*choice.required_traits, *(f"no {trait}" for trait, _ in choice.excluded_by)]
    needs = ", ".join(trait.replace("_", " ") for trait in traits) or "–"
    where = PLACES[choice.devices] + modes + (f", from PyTorch {choice.torch_from}" if choice.torch_from else "")
    earlier = (("quick", choice.quick_with), ("standard", choice.standard_with))
    on = "" if set(choice.devices) <= set(choice.quick_on) else f" on a {' or '.join(choice.quick_on).upper()}"
    sooner = (
        f"{effort} with {' or '.join(traits).replace('_', ' ')}{on if effort == 'quick' else ''}"
        for effort, traits in earlier
        if traits
    )
    effort = ", or ".join([choice.effort, *sooner])
    return f"| {named} | {choice.summary} | {where} | {choice.numerics} | {effort} | {needs} |"
