"""Start Streamlit on `app.py` by its command line."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
from pathlib import Path

from torchwise.errors import InputError, UnsupportedError

APP = Path(__file__).with_name("app.py")
READ_ONLY = "--read-only"


def serve(store: str, host: str, port: int, *, read_only: bool, browser: bool) -> None:
    """Serve the dashboard until interrupted.

    Args:
        store: URL or file of the store. It may hold a password, and other users see a command's arguments, so it is
            passed by the environment.
        host: address to listen on.
        port: port to listen on.
        read_only: whether approvals cannot be changed.
        browser: whether to open a browser.

    Raises:
        UnsupportedError: Streamlit is not installed.
        InputError: the address cannot be used.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise UnsupportedError(
            "the dashboard needs streamlit, which is not installed: pip install 'torchwise[dashboard]'"
        )
    _check_free(host, port)
    os.environ["TORCHWISE_STORE"] = store
    from streamlit.web.cli import main

    main([*words(host, port, browser=browser), "--", *([READ_ONLY] if read_only else [])])


def words(host: str, port: int, *, browser: bool) -> list[str]:
    """Return Streamlit's arguments: no usage reports, no watched files, and a page for users."""
    return [
        "run",
        str(APP),
        f"--server.address={host}",
        f"--server.port={port}",
        f"--server.headless={str(not browser).lower()}",
        "--server.showEmailPrompt=false",  # otherwise a user's first start waits for an answer
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
        "--client.toolbarMode=viewer",
        "--client.showErrorDetails=none",
    ]


def is_this_machine(host: str) -> bool:
    """Return whether only programs on this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_free(host: str, port: int) -> None:
    try:
        with socket.create_server((host, port)):
            pass
    except OverflowError:
        raise InputError(f"port is {port}, but must be from 1 to 65535") from None
    except OSError as error:
        raise InputError(
            f"nothing can listen at {host}:{port} ({error.strerror or error}): another --port or --host"
        ) from None
