"""Which numbers the fields of records take, as types: what is read is held to them, and named where it is beyond."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
"""A number of things, or of bytes."""
Positive = Annotated[int, Meta(ge=1)]
"""A number of things of which there is at least one."""
Seconds = Annotated[float, Meta(ge=-1e-6)]
"""A duration; a difference of two that are equal may lie a rounding below 0."""
Duration = Annotated[float, Meta(gt=0)]
"""A duration that was measured, and that others are divided by."""
Rate = Annotated[float, Meta(gt=0)]
"""How much there is in a second, by which a time is reckoned."""
Amount = Annotated[float, Meta(ge=0)]
"""How much of something there is: operations, bytes a second, an error."""
Share = Annotated[float, Meta(ge=0, le=1 + 1e-6)]
"""A part of a whole."""
