"""Read the caller's workload: a target string to load, or a live model with its inputs.

A target is `SCHEME:name[@size]` with a scheme that a plug-in provides (entry-point group `torchwise.targets`, such as
`zoo`), `package.module:factory`, or `path/file.py:factory`. A factory is called with those of the keywords `device`,
`dtype` and `seed` that its signature names.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchwise.errors import InputError, TargetError, TorchwiseError, WorkloadError, did_you_mean
from torchwise.plan.workload_spec import FORMS, LIVE, check_form, list_schemes, split
from torchwise.workload.train_step import TrainStep
from torchwise.workload.workload import Example, Workload, check_device

_NOT_THE_USERS = (f"{Path(__file__).parents[1]}{os.sep}", f"{Path(importlib.__file__).parent}{os.sep}", "<frozen ")
"""Folders of Torchwise and of Python's import system, whose lines say nothing of a user's mistake."""


def load(target: str, *, device: str = "cpu", seed: int = 0) -> Workload:
    """Build the workload that `target` names on `device`, with weights and inputs drawn from `seed`.

    Raises:
        TargetError: the target is malformed, or its file, module or factory does not exist or does not import.
        WorkloadError: the factory raises, or returns no workload, or there is no such device.
    """
    factory = find_factory(target)
    check_device(device)
    torch.manual_seed(seed)
    try:
        result = factory(**_filter_keywords(factory, {"device": device, "dtype": torch.float32, "seed": seed}))
    except TorchwiseError:
        raise
    except SystemExit as error:
        raise WorkloadError(f"the factory of {target} called {_exit(error)}") from error
    except Exception as error:  # a user's factory may raise anything, which is reported with its own line
        raise WorkloadError(f"the factory of {target} raised {_summary(error)}{_explain_arguments(error)}") from error
    return Workload.of(result, name=target).to(device)


def find_factory(target: str) -> Callable[..., Any]:
    """Return the factory that `target` names, importing its module.

    Raises:
        TargetError: nothing is found there. Near misses are named.
    """
    check_form(target)
    head, _, name = split(target)
    schemes = list_schemes()
    if head in schemes:
        return lambda **keywords: schemes[head].load()(name, **keywords)
    module = _load_file(Path(head), target) if head.endswith(".py") else _import(head, target, schemes)
    try:
        found = module
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        callables = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise TargetError(f"{head} has no {name!r}{_suggest_names(name, callables)}") from None
    if not callable(found):
        raise TargetError(f"{target} is of type {type(found).__name__}, but a factory must be callable")
    return found


def _load_file(path: Path, target: str) -> ModuleType:
    path = path.resolve()
    # A name of its own, so that a file called `random.py` takes no other module's place.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"torchwise_target_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"target is {target!r}, but {path} cannot be read as a Python file")
    module = importlib.util.module_from_spec(spec)
    # Registered, as an import would be: pickling and dataclasses look the module up by name.
    sys.modules[name] = module
    try:
        _with_path_of(path.parent, lambda: _run_import(spec.loader.exec_module, module, target))  # type: ignore[union-attr]
    except TargetError:
        del sys.modules[name]
        raise
    return module


def _import(name: str, target: str, schemes: dict[str, Any]) -> ModuleType:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = _with_path_of(Path.cwd(), functools.partial(_import_one, ".".join(parts[:end]), target))
        if module is None:
            raise TargetError(
                f"target is {target!r}, but there is no module or target scheme {name!r}"
                f"{_suggest_names(name, list(schemes))}: {FORMS}"
            )
    return module  # type: ignore[no-any-return]


def _import_one(name: str, target: str) -> ModuleType | None:
    """Import a module whose parent package is imported already. Return None if there is none."""
    if name not in sys.modules:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is None:
            return None
    module: ModuleType = _run_import(importlib.import_module, name, target)
    return module


def _run_import(action: Callable[[Any], Any], argument: Any, target: str) -> Any:
    head, _, _ = split(target)
    try:
        return action(argument)
    except SystemExit as error:
        raise TargetError(f"importing {head} called {_exit(error)}") from error
    except Exception as error:  # a user's module may raise anything while it is imported
        raise TargetError(f"importing {head} raised {_summary(error)}") from error


def _with_path_of(folder: Path, action: Callable[[], Any]) -> Any:
    """Run `action` with `folder` importable, as Python itself does for a script's folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return action()


def _filter_keywords(factory: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return {}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return offered
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in offered.items() if name in names}


def _summary(error: BaseException) -> str:
    """Return the error with the innermost place it came from: "ValueError: bad (model.py:12)"."""
    return f"{type(error).__name__}: {error}{_where(error)}"


def _exit(error: SystemExit) -> str:
    """Return the exit call and its place: "sys.exit(1) (model.py:12)"."""
    return f"sys.exit({'' if error.code is None else repr(error.code)}){_where(error)}"


def _where(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THE_USERS)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _explain_arguments(error: Exception) -> str:
    """Name the arguments of a factory if the call itself was refused, so that nothing of the factory ran."""
    is_refused = isinstance(error, TypeError) and error.__traceback__ is not None and not error.__traceback__.tb_next
    return ". A factory is called with those of the keywords device, dtype and seed that it names" if is_refused else ""


def _suggest_names(name: str, known: list[str]) -> str:
    return did_you_mean(name, known) or (f"; it has {', '.join(sorted(known)[:8])}" if known else "")


def read_workload(
    model: Any, args: Any, kwargs: dict[str, Any] | None, examples: Sequence[Example] | None
) -> Workload | None:
    """Return a live workload, or None for a target string.

    Raises:
        InputError: inputs are missing, given twice, or given for a target that brings its own.
    """
    has_inputs = args is not None or kwargs is not None
    if isinstance(model, (str, Workload)):
        if has_inputs or examples is not None:
            raise InputError(
                "args, kwargs or examples are given, but a target or a Workload has its own inputs: leave them out"
            )
        return model if isinstance(model, Workload) else None
    if examples is not None:
        if has_inputs:
            raise InputError("examples are given together with args or kwargs: pass only one of them")
        others = (
            [one for one in examples if not isinstance(one, Example)] if isinstance(examples, Sequence) else [examples]
        )
        if others:
            raise InputError(
                f"examples has a {type(others[0]).__name__}, but must be a list of examples, such as "
                "[torchwise.Example((x,)), torchwise.Example((y,), weight=3)]"
            )
        return Workload(model, tuple(examples))
    if not has_inputs:
        raise InputError("no example inputs are given: pass them after the model, such as (x,)")
    return Workload.of((model, () if args is None else args, kwargs or {}))


def name_of(model: Any) -> str:
    """Return the target of a caller's workload. A live one is named by its class or function."""
    if isinstance(model, str):
        return model
    call = model.call if isinstance(model, Workload) else model
    call = getattr(call, "model", call) if isinstance(call, TrainStep) else call
    return f"{LIVE}{getattr(call, '__qualname__', type(call).__qualname__)}"


def device_of(workload: Workload) -> str:
    """Return the device of a live model and its inputs: "cuda" if any of them is there, else "cpu"."""
    found = [t.device.type for e in workload.examples for t in e.tensors()]
    if workload.module is not None:
        found += [p.device.type for p in workload.module.parameters()]
    return "cuda" if "cuda" in found else "cpu"
