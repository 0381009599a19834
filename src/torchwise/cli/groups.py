"""What every group of commands is: one whose help is whole."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

UNCUT = 10_000
"""Characters that no sentence has."""


class Group(TyperGroup):
    """A group whose list of commands gives the whole first sentence of each, on as many lines as it takes."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list; Typer's own cuts each sentence where the line ends."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(UNCUT)) for name, one in found if one and not one.hidden])
