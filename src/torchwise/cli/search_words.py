"""The options of a search as words of a command line."""

from __future__ import annotations

from typing import Any

SEARCH = {
    "restarts": 1,
    "allow": "same-precision",
    "effort": "standard",
    "budget": None,
    "compile_timeout": None,
    "iterations": None,
    "fullgraph": False,
    "workers": 1,
    "objective": "latency",
    "calls": None,
    "sizes": "as-given",
    "tolerance": None,
    "metric": None,
    "require": (),
    "plan": (),
    "fresh": False,
    "wait": False,
}
"""The options of a search, with their defaults."""


def list_words(options: dict[str, Any]) -> list[str]:
    """Return the words of a command line that give the options of a search, without defaults."""
    given = {name: value for name, value in options.items() if value != SEARCH.get(name, value)}
    words = []
    for name, value in given.items():
        for each in value if isinstance(value, tuple) else (value,):
            text = f"{each:.12g}" if isinstance(each, float) else f"{each}"
            words += [f"--{name.replace('_', '-')}", *([] if each is True else [text])]
    return words
