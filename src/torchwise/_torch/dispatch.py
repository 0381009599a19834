"""The dispatcher: modes that see operators, transforms, fake tensors and autocast. And CUDA graphs and their memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchwise._torch.dynamo import TO_FAKE_TENSOR
from torchwise._torch.modules import list_global_hooks
from torchwise._torch.private_name import PrivateName
from torchwise._torch.shared_context import SharedContext
from torchwise.errors import UnsupportedError

__all__ = ["EagerMode", "OpOverload", "TorchDispatchMode"]


OpOverload = torch._ops.OpOverload
"""The class of one operator with one signature, such as `torch.ops.aten.add.Tensor`."""

READ_SCALAR = torch.ops.aten._local_scalar_dense.default
"""The operator of `Tensor.item`."""
GRU_CELL = torch.ops.aten._thnn_fused_gru_cell.default
"""All of `nn.GRUCell` on a GPU but its two products."""
LSTM_CELL = torch.ops.aten._thnn_fused_lstm_cell.default
"""All of `nn.LSTMCell` on a GPU but its two products."""
METADATA_CHECK = torch.ops.aten._assert_tensor_metadata.default
"""A check that an exported graph has before each conversion of a dtype."""
RNNS = tuple(getattr(torch.ops.aten, name).input for name in ("rnn_tanh", "rnn_relu", "gru", "lstm"))
"""A whole `nn.RNN`, `nn.GRU` or `nn.LSTM`, for a tensor that is no packed sequence."""

PUSH_MODE = PrivateName("torch.utils._python_dispatch", "_push_mode")
POP_MODE = PrivateName("torch.utils._python_dispatch", "_pop_mode")
TRANSFORMS = PrivateName("torch._C._functorch", "peek_interpreter_stack")
"""Returns the innermost active transform of functions, such as vmap, or None."""
DISPATCH_MODES = PrivateName("torch._C", "_len_torch_dispatch_stack")
FUNCTION_MODES = PrivateName("torch._C", "_len_torch_function_stack")
FUNCTION_MODE = PrivateName("torch._C", "_get_function_stack_at")
"""Read by `list_function_modes`, without a lookup on each call."""
NO_SUBCLASSES = PrivateName("torch._C", "DisableTorchFunctionSubclass")
NO_FUNCTIONS = PrivateName("torch._C", "DisableTorchFunction")
"""A context in which neither modes nor subclasses replace functions, so that no program sees the operators in it."""
NO_AUTOCAST = PrivateName("torch._C", "_DisableAutocast")
SET_GRAD = PrivateName("torch._C", "_set_grad_enabled")
ONLY_LIFT_CPU = PrivateName("torch._C", "_set_only_lift_cpu_tensors")
"""Has constants stay on the CPU while fake tensors are made, so that a mode sees their copies."""
LOG_USAGE = PrivateName("torch._C", "_log_api_usage_once")
ENTER_AUTOCAST = PrivateName("torch.amp.autocast_mode", "_enter_autocast")
C_MODULE = "torch._C"
"""The module whose functions are public as those of `torch`."""
IS_TRACING = PrivateName("torch._C", "_is_tracing")
"""Returns whether `torch.jit.trace` writes operators down."""
DUAL_LEVEL = PrivateName("torch.autograd.forward_ad", "_current_level")
"""Read by `is_transforming`, without a lookup on each call."""
FAKE_TENSOR = PrivateName("torch._subclasses.fake_tensor", "FakeTensor")
FAKE_TENSOR_MODE = PrivateName("torch._subclasses.fake_tensor", "FakeTensorMode")
NO_FAKES = PrivateName("torch._subclasses.fake_tensor", "unset_fake_temporarily")
"""A context in which tensors are real, for constants. Outside it only fake tensors are made."""
COPY_EACH = PrivateName("torch", "_foreach_copy_")
"""Read by `copy_each`, without a lookup on each call."""

IS_CAPTURING = PrivateName("torch._C", "_cuda_isCurrentStreamCapturing")
RAW_STREAM = PrivateName("torch._C", "_cuda_getCurrentRawStream")
"""Returns the address of the current stream, 20 times quicker than `torch.cuda.current_stream`."""
CURRENT_DEVICE = PrivateName("torch._C", "_cuda_getDevice")
END_ALLOCATING = PrivateName("torch._C", "_cuda_endAllocateToPool")
RELEASE_POOL = PrivateName("torch._C", "_cuda_releasePool")
EMPTY_STRIDED = PrivateName("torch._C._dynamo.guards", "_empty_strided_cuda")
"""Allocates a tensor on the current device in a third of the time of `torch.empty_like`, as Inductor's code does."""

_forward_ad, _innermost = torch.autograd.forward_ad, TRANSFORMS.get()
_is_traced: Callable[[], bool] = IS_TRACING.get()
_count_dispatch_modes: Callable[[], int] = DISPATCH_MODES.get()


_EAGER_STANCE = SharedContext(lambda: torch.compiler.set_stance("force_eager"))
"""Has the code that a program compiles run in eager, for as long as any thread is under an `EagerMode`."""


class EagerMode(TorchDispatchMode):
    """Sees all operators of a program, also those of code that it compiles, which runs in eager meanwhile.

    Dynamo compiles no code under a mode, and afterwards never again. It is not asked under this one. So this one is
    only pushed on the stack of its thread, and other threads are not told of it (as by `TorchDispatchMode.__enter__`):
    PyTorch would go on telling them if two threads left in another order than they came.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> Self:
        """Begin to see operators."""
        push, pop = PUSH_MODE.get("a look at operators"), POP_MODE.get("a look at operators")
        with contextlib.ExitStack() as stack:
            stack.enter_context(_EAGER_STANCE)
            push(self)
            stack.callback(pop)
            self._entered.append(stack.pop_all())
        return self

    def __exit__(self, *error: object) -> None:
        """Have code that the program compiles run compiled again."""
        self._entered.pop().close()


def is_transforming() -> bool:
    """Return whether a transform of functions (vmap, grad, jvp) is active."""
    return _forward_ad._current_level >= 0 or _innermost() is not None


def is_observed() -> bool:
    """Return whether each operator that runs now is seen by the program: a trace of TorchScript, or a mode."""
    return _is_traced() or _count_dispatch_modes() > 0


def list_modes() -> tuple[tuple[dict[Any, Any], ...], dict[str, Any], str]:
    """Return all by which compiled checks see that no mode is active: hooks of all modules, and the dual level.

    The level of forward-mode derivatives is a variable: its namespace and its name.

    Raises:
        UnsupportedError: this PyTorch keeps them elsewhere.
    """
    return list_global_hooks(), vars(_forward_ad), DUAL_LEVEL.attribute


def copy_each(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copy tensors into others of the same layouts, in one launch if they have one dtype.

    A decoding step of a language model returns two tensors a layer. Copies of a few microseconds each would be a large
    part of its time.
    """
    if len(targets) != len(values):
        raise ValueError(f"there are {len(values)} tensors to copy, but {len(targets)} targets")
    if len(targets) == 1:
        targets[0].copy_(values[0])  # faster for one tensor
    elif targets:
        torch._foreach_copy_(targets, values)


def list_function_modes() -> list[Any]:
    """List the active modes that replace functions of PyTorch, such as that of `with torch.device(...)`."""
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def draws_numbers(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operator draws random numbers with these arguments."""
    return torch.Tag.nondeterministic_seeded in operator.tags and not is_off(operator, args, kwargs)


def is_off(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operator of training, such as dropout or batch norm, runs as in inference."""
    known = operator._schema.arguments
    given = {one.name: one.default_value for one in known if one.has_default_value()}
    given |= {**dict(zip((one.name for one in known), args, strict=False)), **kwargs}
    return any(type(given.get(name)) in (bool, int, float) and not given[name] for name in _OFF)


_OFF = ("train", "training", "use_input_stats", "p", "dropout_p", "dropout")
"""Arguments that are false or 0 in inference."""


def sets_grad_mode(target: Any) -> bool:
    """Return whether a node with this target switches gradients on or off."""
    return target is SET_GRAD.get()


def logs_usage(target: Any) -> bool:
    """Return whether a node with this target only counts that a feature of PyTorch is used."""
    return target is LOG_USAGE.get()


def enters_autocast(target: Any) -> bool:
    """Return whether a node with this target begins an autocast, as Dynamo writes it."""
    return target is ENTER_AUTOCAST.get()


def size_of(symbol: torch.SymInt) -> int:
    """Return a symbol's size in the current call, without specialising it to that size (as `int` would).

    Raises:
        UnsupportedError: the size is unknown, as for a result whose size depends on data.
    """
    known = getattr(symbol.node, "hint", None)
    if not isinstance(known, int):
        raise UnsupportedError(f"the size {symbol} is not known before the graph runs")
    return known


def make_fake(tensor: torch.Tensor, fake_mode: Any) -> Any:
    """Return a fake tensor with the form of a backend's input, or the tensor itself if it is fake already."""
    return tensor if isinstance(tensor, FAKE_TENSOR.get()) else TO_FAKE_TENSOR.get()(tensor, fake_mode)
