"""Models as another library has them, kept in the folder of Inductor's cache: a later process converts nothing.

A file is found by a key of all that it was made of: the operators of the exported program, the sizes and dtypes of its
inputs, the values of its weights, the kind of processor, the library with its version, and its settings. Its own name
is its SHA-256. So one that is cut short or was changed is not used. Weights are in the files, as they are constants of
the code.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch

from torchwise import __version__
from torchwise._torch import inductor
from torchwise.compile.programs.build import write_whole
from torchwise.errors import first_line, format_error

logger = logging.getLogger("torchwise")

NAME = "torchwise_models"
"""The folder in that of Inductor's cache."""
SUFFIX = ".model"
MAX_BYTES = 2**31 - 1
"""Size of the largest model that is kept. A file of ONNX with more would need a second one for its weights."""
MADE: list[str] = []
"""The keys of the models that this process converted, as it did not find them."""
Loaded = TypeVar("Loaded")


def load_or_convert(
    program: torch.export.ExportedProgram,
    facts: Iterable[object],
    load: Callable[[bytes], Loaded],
    convert: Callable[[], tuple[Loaded, Callable[[], bytes]]],
) -> Loaded:
    """Return the model of another library for a program, from the cache if it is there.

    Args:
        program: the exported program.
        facts: the library, its version, and its settings.
        load: makes the model of the bytes of a file, or raises any error.
        convert: returns the model made of the program, and a function that returns it as bytes.
    """
    if not all(map(_is_tensor, _list_constants(program).values())):  # whose numbers the key would not tell apart
        return convert()[0]
    key = make_key(program, facts)
    folder = Path(inductor.CACHE_DIR.get("models of other libraries")()) / NAME / key
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            return load(_read(file))
        except Exception as error:  # the library may raise any error for a file, and the program is still there
            logger.warning("torchwise: %s is converted again: %s", file, first_line(format_error(error)))
    model, pack = convert()
    MADE.append(key)
    if sum(one.nbytes for one in _list_constants(program).values()) <= MAX_BYTES:
        try:
            data = pack()
            write_whole(folder / f"{hashlib.sha256(data).hexdigest()}{SUFFIX}", data)
        except Exception as error:  # a library may refuse to write a model, and it answers all the same
            logger.warning("torchwise: a converted model is not kept: %s", first_line(format_error(error)))
    return model


def make_key(program: torch.export.ExportedProgram, facts: Iterable[object]) -> str:
    """Return the key of a program and its weights for a library."""
    digest = hashlib.sha256()
    texts = [__version__, torch.__version__, str(torch.version.git_version), *map(str, facts)]
    texts += [platform.machine(), torch.backends.cpu.get_cpu_capability()]  # a folder may be there for many machines
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            texts.append(str(module.graph))
            texts += [_describe(node.meta.get("val")) for node in module.graph.nodes]
    texts += [str(program.range_constraints), str(program.graph_signature)]
    digest.update("\0".join(texts).encode())
    for name, value in sorted(_list_constants(program).items()):
        digest.update(f"\0{name} {_describe(value)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:40]


def _list_constants(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Return the weights and other constants of a program."""
    return {**program.constants, **program.state_dict}


def _describe(value: object) -> str:
    """Describe a value of a node: tensors by their sizes, strides and dtypes."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_describe, value))})"
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride() if _is_tensor(value) else ''} {value.device}"
    return str(value)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _read(file: Path) -> bytes:
    """Return the contents of a file.

    Raises:
        ValueError: they are not those that were written.
    """
    data = file.read_bytes()
    if (digest := hashlib.sha256(data).hexdigest()) != file.stem:
        raise ValueError(f"its SHA-256 is {digest}, so it is cut short or was changed: delete it")
    return data
