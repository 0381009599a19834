"""Cast the inputs of a model that runs in another precision or memory format, and restore the form of its outputs.

The casts are part of the compiled code, so Inductor fuses them with the first and last kernels. The original model
determines the form of the outputs, which may differ for each kind of call. It runs once for each signature.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch import pytree as _pytree
from torchwise.compile.memory_formats import layout_for
from torchwise.compile.signature import Signature, forget_oldest, signature_of
from torchwise.compile.transforms.eager_strides import Order, lay_out, order_of
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.workload import pytree
from torchwise.workload.module_state import kept_state, preserve_generators
from torchwise.workload.workload import Example

AUTOCAST = {"autocast_bf16": torch.bfloat16, "autocast_fp16": torch.float16}
"""The type that autocast computes in, by precision."""
MAX_SIGNATURES = 1024
"""Maximum number of signatures whose outputs are remembered: a plan for dynamic shapes may meet any number."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The form of the original's outputs for one kind of call.

    Attributes:
        outputs: dtype of each output tensor, the order of its dimensions in memory, and which input tensor it is, if
            any.
        is_traced: whether compilers see the tensors. They do not in an object of a class that PyTorch's trees do not
            know.
    """

    outputs: tuple[tuple[torch.dtype, Order | None, int | None], ...]
    is_traced: bool


@dataclass(frozen=True, slots=True)
class IOCasts:
    """The casts of a model's inputs and outputs.

    Attributes:
        plan: the plan with the precision and memory format.
        device: "cpu" or "cuda", for autocast.
    """

    plan: Plan
    device: str

    @staticmethod
    def is_needed(plan: Plan) -> bool:
        """Whether inputs and outputs must be cast, or need another memory layout."""
        return plan.memory_format != "preserve" or plan.precision not in ("native", "tf32")

    def wrap(self, call: Callable[..., Any], form: OutputForm) -> Callable[..., Any]:
        """Return `call` with casts, for calls whose outputs have this form. `call` becomes its attribute `inside`.

        Raises (on call):
            UnsupportedError: the outputs have another form.
        """
        enter, leave, is_traced = self._enter, self._leave, form.is_traced

        def call_with_casts(*args: Any, **kwargs: Any) -> Any:
            inputs, spec = _pytree.tree_flatten((args, kwargs))
            args, kwargs = _pytree.tree_unflatten([enter(leaf) for leaf in inputs], spec)
            with self._autocast():
                result = call(*args, **kwargs)
            if not is_traced:
                return result
            leaves, spec = _pytree.tree_flatten(result)
            return _pytree.tree_unflatten(leave(leaves, inputs, form), spec)

        call_with_casts.inside = call  # type: ignore[attr-defined]
        return call_with_casts

    def wrap_compiled(self, call: Callable[..., Any], form: OutputForm) -> Callable[..., Any]:
        """Return the compiled `call`, which has the casts, and restore outputs that compilers do not see."""
        if form.is_traced:
            return call

        def call_and_restore(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            leaves: Iterator[Any] = iter(self._leave(pytree.tensors(result), pytree.tensors((args, kwargs)), form))
            return pytree.map_tensors(lambda _: next(leaves), result)

        return call_and_restore

    def _enter(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if self.plan.precision == "bf16" and leaf.is_floating_point():
            leaf = leaf.to(torch.bfloat16)
        layout = layout_for(self.plan.memory_format, leaf)
        return leaf if layout is None else leaf.to(memory_format=layout)

    def _leave(self, leaves: list[Any], leaves_in: list[Any], form: OutputForm) -> list[Any]:
        inputs = [leaf for leaf in leaves_in if isinstance(leaf, torch.Tensor)]
        restored: list[Any] = []
        position = 0
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                if position == len(form.outputs):
                    raise UnsupportedError("the call returns more tensors than the original model did for such inputs")
                leaf = self._restore_output(leaf, inputs, *form.outputs[position])
                position += 1
            restored.append(leaf)
        if position != len(form.outputs):
            raise UnsupportedError("the call returns fewer tensors than the original model did for such inputs")
        return restored

    def _restore_output(
        self,
        leaf: torch.Tensor,
        inputs: list[torch.Tensor],
        dtype: torch.dtype,
        order: Order | None,
        input_position: int | None,
    ) -> torch.Tensor:
        if input_position is not None:
            return inputs[input_position]
        if leaf.dtype != dtype and not (dtype.is_floating_point and leaf.dtype in self._inner_dtypes()):
            raise UnsupportedError(f"the call returns {leaf.dtype}, but the original model returned {dtype}")
        return lay_out(leaf.to(dtype), order)

    def _inner_dtypes(self) -> tuple[torch.dtype, ...]:
        """Return the types that a number may have within when it has another one outside."""
        if self.plan.precision not in ("bf16", *AUTOCAST):
            return ()
        return (torch.float32, AUTOCAST.get(self.plan.precision, torch.bfloat16))

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.plan.precision)
        return torch.autocast(self.device, dtype) if dtype else nullcontext()


class ByForm:
    """Answers with code for the form of outputs that the original has for such a call.

    Args:
        original: is run once for each signature, on copies of the inputs. Its state is restored.
        make: makes the callable for calls whose outputs have a form.

    Raises (on call):
        UnsupportedError: the call has a new signature while a CUDA graph is recorded, so that the original may not run.
        Exception: any error that the original raises.
    """

    def __init__(self, original: Callable[..., Any], make: Callable[[OutputForm], Callable[..., Any]]) -> None:
        self._original, self._make = original, make
        self._forms: dict[Signature, OutputForm] = {}
        self._callables: dict[OutputForm, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does."""
        key = self._key(args, kwargs)
        callable_ = self._get_callable(key, args, kwargs)
        try:
            return callable_(*args, **kwargs)
        except UnsupportedError:  # the original may answer in another form by now
            self._forms.pop(key, None)
            raise

    def get_fast_path(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the callable for calls of this signature, which was called before."""
        callable_ = self._get_callable(self._key(args, dict(kwargs)), args, dict(kwargs))
        return callable_.get_fast_path(args, kwargs) if hasattr(callable_, "get_fast_path") else callable_

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
        return (getattr(self._original, "training", None), *signature_of(args, kwargs))

    def _get_callable(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = form_of(self._original, args, kwargs)
            forget_oldest(self._forms, MAX_SIGNATURES)
        with self._lock:
            if form not in self._callables:
                self._callables[form] = self._make(form)
            return self._callables[form]


def form_of(original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OutputForm:
    """Run the original once on copies of the inputs, to learn the form of its outputs, and put its state back.

    Raises:
        UnsupportedError: a CUDA graph is being recorded.
        Exception: any error that the original raises.
    """
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError("the original must run once for this signature, but a CUDA graph is being recorded")
    example = Example(args, kwargs).clone()
    device = "cuda" if any(t.is_cuda for t in example.tensors()) else "cpu"
    with torch.no_grad(), preserve_generators(device), kept_state(original, example.args, example.kwargs):
        result = original(*example.args, **example.kwargs)
    outputs, inputs = pytree.tensors(result), pytree.tensors((example.args, dict(example.kwargs)))
    traced_outputs, traced_inputs = map(_count_traced, (result, (example.args, dict(example.kwargs))))
    positions = (
        {id(tensor): at for at, tensor in reversed([*enumerate(inputs)])} if traced_inputs == len(inputs) else {}
    )
    forms = tuple((tensor.dtype, order_of(tensor), positions.get(id(tensor))) for tensor in outputs)
    return OutputForm(forms, traced_outputs == len(outputs))


def _count_traced(tree: Any) -> int:
    return sum(isinstance(leaf, torch.Tensor) for leaf in _pytree.tree_leaves(tree))
