"""The import of the workers' server: it loads what every worker needs, and from then on may hear of Ctrl-C.

Python's own server would ignore Ctrl-C later, and `launcher` starts it with that signal blocked: while PyTorch is
imported it would print a traceback to the terminal.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import signal

from torchwise._torch import inductor
from torchwise.trial.preload import import_listed

NEEDED = (
    *("torch", inductor.COMPILER_MODULE, "torchwise.trial.experiment", "torchwise.trial.inspection"),
    # SciPy's OpenBLAS has a thread, as NumPy's has, and both end it before a fork and start it after one. Libraries of
    # models import SciPy, and a thread that they start for the first time would end the server.
    "scipy.linalg",
)


def load_needed() -> None:
    """Import what every worker needs, and leave it out of collections of garbage.

    None of it ever becomes garbage. Collections would go through it again and again, here for a quarter of the time,
    and in each worker, which would also have to copy the memory that it shares with the server.
    """
    gc.disable()
    for name in NEEDED:
        with contextlib.suppress(ImportError):  # the worker that needs it raises it again
            importlib.import_module(name)
    import_listed()
    gc.freeze()
    gc.enable()


if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):  # nowhere but in the server
    load_needed()
    # A signal that came meanwhile was for the parent, which has ended by now.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    signal.signal(signal.SIGINT, before)
