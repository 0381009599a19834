"""Dynamo: it captures graphs from bytecode, guards them, compiles again where a guard fails, and writes a trace."""

from __future__ import annotations

import contextlib
import importlib
import logging
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torchwise._torch.private_name import PrivateName
from torchwise.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

CONFIG = PrivateName("torch._dynamo", "config")
READ_DYNAMO = PrivateName("torch._dynamo.config", "get_config_copy")
READ_INDUCTOR = PrivateName("torch._inductor.config", "get_config_copy")
PATCHER = PrivateName("torch._dynamo.eval_frame", "TorchPatcher")
"""Wraps methods of PyTorch's classes when the first code is compiled."""
OPTIMIZE = PrivateName("torch._dynamo", "optimize")
LOOKUP_BACKEND = PrivateName("torch._dynamo", "lookup_backend")
GRAPH_BREAK = PrivateName("torch._dynamo", "graph_break")
MARK_DYNAMIC = PrivateName("torch._dynamo", "mark_dynamic")
MAYBE_MARK_DYNAMIC = PrivateName("torch._dynamo", "maybe_mark_dynamic")
"""Marks dimensions whose sizes should be inputs of the code, without an error if the code needs one size."""
DIM_MARKS = STRONG_MARKS, WEAK_MARKS = "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"
"""The attributes of a tensor that hold its marked dimensions."""
MARKS = ("_dynamo_", "_has_dynamo_dim_marking")
"""Beginnings of all attributes that marking gives a tensor."""
TAG_MODULES = PrivateName("torch._dynamo.mutation_guard", "install_generation_tagging_init")
"""Wraps the constructor of modules, which the first call of a compiled function does otherwise."""
COMPILE_FRAME = PrivateName("torch._dynamo.convert_frame", "_compile")
"""Traces one frame, and has its graphs compiled."""
CONVERT_FRAME = PrivateName("torch._dynamo.convert_frame", "ConvertFrame.__call__")
WRAPPED = "_torchdynamo_orig_callable"
"""The attribute of a wrapper of Dynamo with the function in it."""
INNER_BACKEND = "_torchdynamo_orig_backend"
"""The attribute of a callback or a backend for the one that it wraps."""
SOURCE = "_dynamo_source"
"""The attribute of an input of a captured graph with the variable of the program that it is, or None."""
STATIC_INPUT = "_dynamo_static_input_type"
"""The key among an input's attributes by which CUDA graphs read it where it is, and copy it in no call."""
ENDS_BY = "compile_subgraph_reason"
"""The attribute of a captured graph with the reason why it ends."""

HISTORY = PrivateName("torch._dynamo.pgo", "_CODE_STATE")
"""The sizes and numbers that each code object has seen. Those that varied become dynamic."""
HISTORY_OF_CODE = PrivateName("torch._dynamo.pgo", "CodeState")
RESET_HISTORY = PrivateName("torch._dynamo.pgo", "reset_code_state")

GLOBAL_STATE = PrivateName("torch._C._dynamo.guards", "GlobalStateGuard")
TENSOR_GUARDS = PrivateName("torch._C._dynamo.guards", "TensorGuards")
DICT_VERSION = PrivateName("torch._C._dynamo.guards", "dict_version")
"""Returns a number that changes with each write to a dict. Up to 3.11 Python keeps it, and PyTorch from 3.12 on."""
TRACING = PrivateName("torch._guards", "tracing")
TRACING_CONTEXT = PrivateName("torch._guards", "TracingContext")
DETECT_FAKE_MODE = PrivateName("torch._guards", "detect_fake_mode")
"""Returns the mode in which a backend makes fake tensors: not the mode in which Dynamo captured the graph."""

TRACE_LOG = PrivateName("torch._logging._internal", "trace_log")
TRACE_SECONDS = PrivateName("torch._logging._internal", "structured_logging_overhead")

CALLBACK_HANDLER = PrivateName("torch._dynamo.callback", "callback_handler")
CALLBACK_TRIGGER = PrivateName("torch._dynamo.callback", "CallbackTrigger")
"""The reasons for which callbacks are told: a compilation, or the recording of a CUDA graph."""

COUNTERS = PrivateName("torch._dynamo.utils", "counters")
TO_FAKE_TENSOR = PrivateName("torch._dynamo.utils", "to_fake_tensor")
CACHE_ENTRIES = PrivateName("torch._C._dynamo.eval_frame", "_debug_get_cache_entry_list")

GUARD_CHECKER = PrivateName("torch._dynamo.guards", "CheckFunctionManager")
"""Lists the kinds of guards that cannot be written to a file."""
SERIALIZABLE_CALLABLE = PrivateName("torch._dynamo.aot_compile_types", "BundledAOTAutogradSerializableCallable")
SERIALIZABLE = PrivateName("torch._dynamo.aot_compile_types", "SerializableCallable")
"""What a backend returns whose code is stored."""
LOAD_COMPILED = PrivateName("torch.compiler", "load_compiled_function")

TRACER_MODULE = "torch._dynamo.convert_frame"
AOT_COMPILE_MODULE = "torch._dynamo.aot_compile"
DISABLE = "torch._dynamo.disable"
ERRORS = "torch._dynamo.exc"
FOLDER = "_dynamo"
"""The folder of Dynamo's own files, within that of torch."""
SILENT_CALLS = ("torch.fx.graph_module", "torch._dynamo.eval_frame")
"""Modules of PyTorch whose classes have a `__call__` of their own that only warns, or explains an error."""


_TRACES = ("record_runtime_overhead", "record_pre_graph_bytecode_in_traces")
"""Names, in some versions, of a setting by which compiled code tells the profiler on each call when its graph begins.

That takes two calls from Python into Dynamo."""


def patch_config(**settings: Any) -> AbstractContextManager[None]:
    """Return a context with other settings of `torch._dynamo.config`."""
    context: AbstractContextManager[None] = CONFIG.get().patch(**settings)
    return context


def patch_traces() -> AbstractContextManager[None]:
    """Return a context in which code is compiled that tells the profiler nothing."""
    return patch_config(**{name: False for name in _TRACES if hasattr(CONFIG.get(), name)})


def read_compiler_settings() -> dict[str, Any]:
    """Return all settings of Dynamo and Inductor by name."""
    readers = {"dynamo": READ_DYNAMO, "inductor": READ_INDUCTOR}
    return {f"{part}.{name}": value for part, one in readers.items() for name, value in one.get()().items()}


def wrap_optimizers() -> None:
    """Have PyTorch wrap the methods of its optimizers now: it does so when one is made, and when code is compiled."""
    import torch

    PATCHER.get().patch()
    for one in vars(torch.optim).values():
        if isinstance(one, type) and issubclass(one, torch.optim.Optimizer):
            with contextlib.suppress(Exception):  # each may refuse a parameter in any way
                one([torch.nn.Parameter(torch.zeros(1, 1))])  # type: ignore[call-arg]


def compile_graph(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph as `torch.compile` does by default."""
    compiled: Callable[..., Any] = LOOKUP_BACKEND.get("the backend torchwise")("inductor")(module, inputs)
    return compiled


def get_recompile_limit() -> int:
    """Return how often PyTorch compiles one code object before its calls run in eager."""
    return int(CONFIG.get().recompile_limit)


def get_counters(group: str) -> Mapping[str, int]:
    """Return the counters of one group in this process, such as "stats" or "inductor"."""
    counters: Mapping[str, Mapping[str, int]] = COUNTERS.get("counting compilations")
    return counters.get(group, {})


def count_compiled_graphs() -> int:
    """Count the graphs that Dynamo has captured in this process. 0 means that nothing was compiled."""
    return get_counters("stats").get("unique_graphs", 0)


def count_graph_breaks() -> int:
    """Count the graph breaks in this process."""
    return sum(get_counters("graph_break").values())


def ends_by_return(module: torch.fx.GraphModule) -> bool:
    """Whether a captured graph ends with its function, and not at a graph break. It is False if Dynamo does not say."""
    return getattr(getattr(module, ENDS_BY, None), "graph_break", True) is False


def count_cudagraph_skips() -> int:
    """Count the requested CUDA graphs that Inductor skipped in this process."""
    return get_counters("inductor").get("cudagraph_skips", 0)


def list_cache_entries(code: types.CodeType) -> list[Any]:
    """List Dynamo's compilations of a code object, in the order in which it tries them.

    It is empty in a version that does not tell.
    """
    try:
        entries: list[Any] = CACHE_ENTRIES.get()(code)
    except UnsupportedError:
        return []
    return entries


def is_dynamos_own(target: Any) -> bool:
    """Return whether a graph's node calls Dynamo's replacement for a function of NumPy."""
    return str(getattr(target, "__module__", None) or "").startswith("torch._dynamo.")


def swap_history(history: Any) -> Any:
    """Have Dynamo use another history of varied sizes and numbers, and return the one before."""
    before = HISTORY.get()
    setattr(importlib.import_module(HISTORY.module), HISTORY.attribute, history)
    return before


def make_settings_check() -> Callable[[], bool]:
    """Return a function that checks whether PyTorch's settings (TF32, determinism, default dtype) are unchanged."""
    check: Callable[[], bool] = GLOBAL_STATE.get()().check
    return check


def make_tensor_check(tensors: list[torch.Tensor]) -> Callable[..., bool]:
    """Return a check that as many tensors are like these, in one step.

    It may say no in another grad or inference mode. A nested tensor must not come near it: it ends the process.
    """
    shapes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    try:
        guards = TENSOR_GUARDS.get()(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    except (AttributeError, TypeError) as error:
        import torch

        raise UnsupportedError(f"torch {torch.__version__} has no such guards: {error}") from error
    check: Callable[..., bool] = guards.check
    return check


def trace_context(fake_mode: Any) -> AbstractContextManager[Any]:
    """Return a tracing context for one compilation.

    AOTAutograd leaves there its knowledge of a graph, and reads it again when it compiles the backward, which is later.
    Parts that shared a context would read each other's.
    """
    context: AbstractContextManager[Any] = TRACING.get()(TRACING_CONTEXT.get()(fake_mode))
    return context


@contextlib.contextmanager
def while_exporting() -> Iterator[None]:
    """Leave Dynamo's compilation to export a graph: without gradients, and PyTorch's warnings about its own code.

    Exporting warns of a deprecated check in PyTorch (2.13), of which a user of a plan can make nothing. Where warnings
    are errors, the plan would fail. It also keeps notes for nodes in a variable of the whole process, to which calls of
    compiled code in other threads add theirs. Their ends would raise a KeyError if an export had dropped them, so there
    are notes throughout, empty ones.
    """
    import torch
    from torch.fx import traceback

    notes = getattr(traceback, "annotate", lambda _: contextlib.nullcontext())  # not in older versions
    with notes({}), TRACING.get()(None), torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec", FutureWarning)
        yield


@contextlib.contextmanager
def tag_caches(tag: str) -> Iterator[None]:
    """Keep code that is compiled meanwhile apart in all caches of compiled code, by a tag beside the user's own."""
    import torch

    config = torch.compiler.config
    own = config.cache_key_tag
    with config.patch(cache_key_tag=f"{own}+{tag}" if own else tag):  # type: ignore[attr-defined]
        yield


def output_strides() -> list[Any] | None:
    """Return the list in which Inductor gives AOTAutograd the strides of a forward graph's outputs, to correct them."""
    context = TRACING_CONTEXT.get().try_get()
    return None if context is None else context.output_strides


def get_trace_logger() -> logging.Logger:
    """Return the logger of the trace."""
    logger: logging.Logger = TRACE_LOG.get("watching the compiler")
    return logger


def get_trace_seconds() -> dict[str, float]:
    """Return the seconds that the trace has taken so far in this process, by compilation, such as "0/1"."""
    seconds: dict[str, float] = TRACE_SECONDS.get("watching the compiler")
    return {key.replace("_", "/"): value for key, value in seconds.copy().items()}
