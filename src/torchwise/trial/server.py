"""The last import of the workers' server: from here on it may hear of Ctrl-C, which Python's own server then ignores.

`launcher` starts it with that signal blocked: while PyTorch is imported it would print a traceback to the terminal.
"""

from __future__ import annotations

import signal

if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):  # nowhere but in the server
    # A signal that came meanwhile was for the parent, which has ended by now.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    signal.signal(signal.SIGINT, before)
