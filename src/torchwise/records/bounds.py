"""Types for the numbers in records' fields: a value read is checked against its type, and an error names the bound."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
"""A number of things, or of bytes."""
Positive = Annotated[int, Meta(ge=1)]
"""A number of things of which there is at least one."""
Seconds = Annotated[float, Meta(ge=-1e-6)]
"""A duration. The difference of two equal ones may lie a rounding error below 0."""
Duration = Annotated[float, Meta(gt=0)]
"""A duration that was measured, and that others are divided by."""
Rate = Annotated[float, Meta(gt=0)]
"""An amount per second, used to calculate times."""
Amount = Annotated[float, Meta(ge=0)]
"""A quantity: operations, bytes per second, an error."""
Share = Annotated[float, Meta(ge=0, le=1 + 1e-6)]
"""A fraction of a whole."""
