"""What an error holds: the frames that it went through, with all that was computed in them."""

from __future__ import annotations

import traceback


def without_frames(error: BaseException) -> str:
    """Take the frames from an error and from those behind it, and return what they told, for a log.

    They hold tensors, and the code that was run, with weights that may be frozen into it.
    """
    told = "\n" + "".join(traceback.format_exception(error))
    seen: BaseException | None = error
    while seen is not None:
        behind = seen.__cause__ or seen.__context__
        seen.__traceback__ = seen.__cause__ = seen.__context__ = None  # so that a circle ends, too
        seen = behind
    return told
