"""The private names of torch that this transform needs, looked up only here: torch does not promise to keep them."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchwise.compile import private

WHO = "complex_to_real"


name = functools.partial(private.look_up, WHO)


def compile_fx(*args: Any, **kwargs: Any) -> Any:
    """Call Inductor's public entry point: it calls AOTAutograd, and `inner_compile` for each graph that results."""
    return name(_COMPILE_FX)(*args, **kwargs)


def compile_fx_inner(*args: Any, **kwargs: Any) -> Any:
    """Call Inductor's own `inner_compile`."""
    return name(_COMPILE_FX_INNER)(*args, **kwargs)


def fake_tensor_prop(module: torch.fx.GraphModule, inputs: Any) -> Any:
    """Put fake results on every node, as Inductor itself does before it lowers a graph, and return the fake mode."""
    return name(_FAKE_TENSOR_PROP)(module, inputs, True)


def decompositions() -> dict[Any, Any]:
    """Return Inductor's decompositions, but not the one that turns complex sums into views of doubled length."""
    table = name(_DECOMPOSITIONS)()
    return {op: rule for op, rule in table.items() if getattr(op, "overloadpacket", op) is not torch.ops.aten.add}


def autograd_cache_off() -> Any:
    """Return a context without AOTAutograd's cache: its key is the same for our compilation and Inductor's own."""
    return name(_CONFIG).patch(enable_autograd_cache=False)


def patient_fusion(*, vectors: bool = False) -> Any:
    """Return a context in which Inductor fuses four times as much before it writes a value that is used once to memory.

    Inductor's limits count reads and operations. A complex product has four and six of them, and a real one has one
    each. `repeated_work` bounds the work that the limits do not count.

    Args:
        vectors: whether code for a CPU computes on whole vectors, however much it reads here and there.
    """
    config = name(_INDUCTOR_CONFIG)
    known = vectors and hasattr(config.cpp, "enable_tiling_heuristics")  # a version may do without
    return config.patch({**PATIENT_LIMITS, **({"cpp.enable_tiling_heuristics": False} if known else {})})


def no_autocast() -> Any:
    """Return a context without autocast: a backward graph is compiled at the place where the user calls for it."""
    return name(_NO_AUTOCAST)()


def no_fakes() -> Any:
    """Return a context in which tensors are real, for constants. Outside it only fake tensors are made."""
    return name(_NO_FAKES)()


def output_strides() -> list[Any] | None:
    """Return the list in which Inductor gives AOTAutograd the strides of a forward graph's outputs, to correct them."""
    context = name(_CONTEXT).try_get()
    return None if context is None else context.output_strides


def output_code() -> Any:
    """Return the class of compiled graphs that AOTAutograd can write down."""
    return name(_OUTPUT_CODE)


def to_serializable(compiled: Any) -> Any:
    """Return AOTAutograd's code in the class that torch 2.11 expects of a backend.

    Later versions put it there themselves.
    """
    return name(_SERIALIZABLE)(compiled)


def load_code(compiled: Any, constants: Any) -> Any:
    """Return Inductor's code that was read from a file, ready to be finished by `post_compile`."""
    return name(_FX_GRAPH_CACHE).cache_hit_post_compile(compiled, {}, constants)[0]


_COMPILE_FX = ("torch._inductor.compile_fx", "compile_fx")
_COMPILE_FX_INNER = ("torch._inductor.compile_fx", "compile_fx_inner")
_OUTPUT_CODE = ("torch._inductor.output_code", "OutputCode")
_SERIALIZABLE = ("torch._dynamo.aot_compile_types", "BundledAOTAutogradSerializableCallable")
_FX_GRAPH_CACHE = ("torch._inductor.codecache", "FxGraphCache")
_FAKE_TENSOR_PROP = ("torch._inductor.compile_fx", "fake_tensor_prop")
_DECOMPOSITIONS = ("torch._inductor.decomposition", "select_decomp_table")
_CONFIG = ("torch._functorch", "config")
_INDUCTOR_CONFIG = ("torch._inductor", "config")
PATIENT_LIMITS = {"realize_acc_reads_threshold": 4 * 8, "realize_opcount_threshold": 4 * 30}
"""Four times Inductor's limits for real numbers, on a GPU."""
WRITTEN = "inductor_realize_to_strides"
"""The key in a node's meta data by which Inductor knows that it must write the value to memory."""
_NO_AUTOCAST = ("torch._C", "_DisableAutocast")
_NO_FAKES = ("torch._subclasses.fake_tensor", "unset_fake_temporarily")
_CONTEXT = ("torch._guards", "TracingContext")
NAMES = (
    _COMPILE_FX,
    _COMPILE_FX_INNER,
    _FAKE_TENSOR_PROP,
    _DECOMPOSITIONS,
    _CONFIG,
    _INDUCTOR_CONFIG,
    _NO_AUTOCAST,
    _NO_FAKES,
    _CONTEXT,
)
"""The names that every compilation uses."""
AHEAD = (_OUTPUT_CODE, _SERIALIZABLE, _FX_GRAPH_CACHE)
"""The further names that code for another process needs."""
check = functools.partial(private.check, WHO, NAMES)
check_ahead = functools.partial(private.check, WHO, NAMES + AHEAD)
