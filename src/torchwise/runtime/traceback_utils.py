"""Free the objects that an error holds: the frames that it went through, with all their local values."""

from __future__ import annotations

import traceback


def pop_traceback(error: BaseException) -> str:
    """Take the frames from an error and from its causes. Return their traceback as text, for a log.

    Frames hold tensors, and the code that was run, with weights that may be frozen into it.
    """
    text = "\n" + "".join(traceback.format_exception(error))
    current: BaseException | None = error
    while current is not None:
        next_error = current.__cause__ or current.__context__
        current.__traceback__ = current.__cause__ = current.__context__ = None  # so that a circle ends, too
        current = next_error
    return text
