"""The other environment of a check before an upgrade: which software it has, and how messages name it."""

from __future__ import annotations

import re

from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.records import Failure
from torchwise.records.listener import Listener
from torchwise.trial import Launcher, Limits, ask_worker
from torchwise.trial.interpreter_launcher import EnvironmentJob


def describe_other(there: Launcher, limit_s: float, listener: Listener, torch: str | None = None) -> Environment:
    """Describe the other environment, as its workers find it, before anything is checked there.

    Args:
        torch: the version of PyTorch that must be there, or None for any.

    Raises:
        InputError: it cannot run Torchwise, or has another PyTorch than `torch`.
    """
    found = ask_worker(there, EnvironmentJob(), Environment, Limits.from_free_memory(limit_s), listener.stage)
    if isinstance(found, Failure):
        last = (found.traceback.strip().splitlines() or [""])[-1]
        raise InputError(
            f"the other environment cannot run Torchwise: {found}{f' ({last})' if last else ''}. Install the "
            "requirements of Torchwise there"
        )
    if torch and not _is_version(found.torch, torch):
        raise InputError(
            f"torch {torch} is asked for, but the workers of its environment have torch {found.torch}: delete the "
            "environment, so that it is made anew, or make one yourself, and give its interpreter with --against-python"
        )
    return found


def name_software(one: Environment, other: Environment) -> str:
    """Name the PyTorch of an environment, and its Python if the other one has another."""
    return f"torch {one.torch}" + (f" and Python {one.python}" if one.python != other.python else "")


def keep_software(own: Environment, other: Environment) -> str:
    """Say what to pin, so that this environment stays as it is."""
    pins = [f"torch=={own.torch}"] if own.torch != other.torch else []
    pins += [f"Python {own.python}"] if own.python != other.python else []
    return f"pin {' and '.join(pins)}" if pins else "keep this environment"


def _is_version(found: str, asked: str) -> bool:
    """Whether PyTorch is of a version, which may leave out zeros at its end, and the name of the build."""
    return re.fullmatch(re.escape(asked) + r"(\.0)*(\+.*)?", found) is not None
