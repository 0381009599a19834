"""The class of all command groups, which never cuts help texts."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

UNCUT = 10_000
"""More characters than any sentence has."""


class Group(TyperGroup):
    """A group that lists its commands with their complete first sentences, on as many lines as needed."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list. Typer's own list cuts each sentence at the end of the line."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(UNCUT)) for name, one in found if one and not one.hidden])
