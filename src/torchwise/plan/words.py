"""Read a plan from the words in which reports name it, such as "inductor + freezing + capture call"."""

from __future__ import annotations

import re
from typing import Any

from torchwise.errors import PlanError, did_you_mean
from torchwise.plan.choice import ANY, FORMER_TRANSFORMS, list_values
from torchwise.plan.plan import SCHEMA, OptionValue, Plan
from torchwise.plan.rules import list_allowed

PLUS = " + "
BY_PATTERN = {
    "threads": r"(\d+) threads?",
    "microbatches": r"(\d+) microbatches",
    "capture": r"capture (.+)",
    "optimizer": r"(.+) optimizer",
    "activation_checkpointing": r"activation checkpointing (.+)",
}
"""The words of fields whose values say nothing by themselves."""
BY_VALUE = ("precision", "memory_format", "scope", "shapes")
"""Fields whose values are words."""
WHOLE_NUMBERS = ("threads", "microbatches")


def is_words(text: str) -> bool:
    """Whether a text begins as the words of a plan do, with the name of a backend."""
    return text.partition(PLUS)[0].partition(" ")[0] in list_backends()


def list_backends() -> list[str]:
    """List the names of all backends, the first words of plans."""
    return ["eager", *list_values("backend")]


def read_words(text: str) -> Plan:
    """Return the plan whose words these are: `read_words(str(plan)) == plan`.

    Raises:
        PlanError: there is no such word, or the plan is illegal.
    """
    first, *words = (word.strip() for word in text.split(PLUS))
    backend, _, mode = first.partition(" ")
    data: dict[str, Any] = {"schema": SCHEMA, "backend": backend}
    data |= {"mode": mode} if mode else {}
    for word in words:
        field, value = _read_word(word)
        if field in ("transforms", "options"):
            _add(data, field, value)
        elif field in data:
            raise PlanError(f"plan is {text!r}, but has {field} twice")
        else:
            data[field] = value
    return Plan.from_dict(data)


def _add(data: dict[str, Any], field: str, value: Any) -> None:
    if field == "transforms":
        data.setdefault(field, []).append(value)
    else:
        data.setdefault(field, {}).update([value])


def _read_word(word: str) -> tuple[str, Any]:
    """Return the field and the value of a word. For an option, the value is its name and value."""
    for field, pattern in BY_PATTERN.items():
        if found := re.fullmatch(pattern, word):
            return field, int(found[1]) if field in WHOLE_NUMBERS else found[1]
    for field in BY_VALUE:
        if word in list_allowed(field):
            return field, word
    name, is_set, value = word.partition("=")
    options = {name for name, _ in _list_options()}
    if name in options or (is_set and "@" not in name):
        return "options", (name, _read_value(value) if is_set else True)
    if re.fullmatch(r"\w[\w.]*(@\S+)?", word) and word.partition("@")[0] in {*_list_transforms(), *FORMER_TRANSFORMS}:
        return "transforms", word
    known = [*_list_transforms(), *options, *(value for field in BY_VALUE for value in list_allowed(field))]
    raise PlanError(
        f"plan has the word {word!r}, but there is no such transform, option, precision, memory format, scope or "
        f"shapes{did_you_mean(word, known)}"
    )


def _list_transforms() -> list[str]:
    return [str(name).partition("@")[0] for name in list_values("transforms")]


def _list_options() -> list[tuple[str, OptionValue]]:
    return [value for value in list_values("options") if value != ANY]


def _read_value(text: str) -> OptionValue:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if re.fullmatch(r"-?\d+", text) else text
