"""Start Streamlit with `app.py`, through its command line."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import get_args

from torchwise.errors import InputError, UnsupportedError
from torchwise.installation import suggest_extra
from torchwise.report.html import Theme, read_colors

APP = Path(__file__).with_name("app.py")
READ_ONLY = "--read-only"
COLORS = {
    "backgroundColor": "page",
    "secondaryBackgroundColor": "card",
    "textColor": "ink",
    "borderColor": "line",
    "linkColor": "link",
    "primaryColor": "link",
}
"""Streamlit's colours, and those of `torchwise.report` that they take."""


def serve(store: str, host: str, port: int, *, read_only: bool, browser: bool) -> None:
    """Serve the dashboard until interrupted.

    Args:
        store: URL or file of the store. As it may hold a password, it is passed by the environment, and not as an
            argument, which other users could see.
        host: address to listen on.
        port: port to listen on.
        read_only: whether approvals cannot be changed.
        browser: whether to open a browser.

    Raises:
        UnsupportedError: Streamlit is not installed.
        InputError: the host and port cannot be used.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise UnsupportedError(f"the dashboard needs streamlit, which is not installed: {suggest_extra('dashboard')}")
    _check_free(host, port)
    os.environ["TORCHWISE_STORE"] = store
    os.environ.update(build_theme() | os.environ)
    from streamlit.web.cli import main

    main([*build_arguments(host, port, browser=browser), "--", *([READ_ONLY] if read_only else [])])


def build_arguments(host: str, port: int, *, browser: bool) -> list[str]:
    """Return Streamlit's arguments: no usage reports, no file watcher, and no developer menu."""
    return [
        "run",
        str(APP),
        f"--server.address={host}",
        f"--server.port={port}",
        f"--server.headless={str(not browser).lower()}",
        "--server.showEmailPrompt=false",  # otherwise the first start asks for an email address
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
        "--runner.magicEnabled=false",  # otherwise it shows every docstring of a constant
        "--client.toolbarMode=viewer",
        "--client.showErrorDetails=none",
    ]


def build_theme() -> dict[str, str]:
    """Return environment variables that give Streamlit the colours of the pages, and no empty band above them.

    Versions of Streamlit that lack one of these options ignore its variable, but would refuse an argument.
    """
    options = {"theme.paddingTop": "1rem"}
    for theme in get_args(Theme):
        colors = read_colors(theme)
        options |= {f"theme.{theme}.{name}": colors[color] for name, color in COLORS.items()}
    return {_name_variable(option): value for option, value in options.items()}


def _name_variable(option: str) -> str:
    words = re.sub(r"([A-Z])", r"_\1", option.replace(".", "_"))
    return f"STREAMLIT_{words}".upper()


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
            f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --port or --host"
        ) from None
