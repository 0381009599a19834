"""Free the objects that an error holds: the frames that it went through, with all their local values."""

from __future__ import annotations

import traceback


def pop_traceback(error: BaseException) -> str:
    """Take the frames from an error and from its causes. Return their traceback as text, for a log.

    Frames hold tensors, and the code that was run, with weights that may be frozen into it.
    """
    text = "\n" + "".join(traceback.format_exception(error))
    seen: BaseException | None = error
    while seen is not None:
        behind = seen.__cause__ or seen.__context__
        seen.__traceback__ = seen.__cause__ = seen.__context__ = None  # so that a circle ends, too
        seen = behind
    return text
