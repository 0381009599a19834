"""Whether a plan may answer a call: the call is like one that was verified, and model and modes are as they were."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch

from torchwise._torch import native
from torchwise._torch.dispatch import DISPATCH_MODES, is_transforming, list_modes
from torchwise._torch.modules import HAS_GLOBAL_HOOK
from torchwise.compile import Recognize, Signature, make_recognizer, signature_of
from torchwise.compile.guards.code_guard import CodeGuard, code_of, is_same_method
from torchwise.compile.guards.dict_contents import MISSING, count_dict_writes, list_uncounted, version
from torchwise.compile.guards.reachable_code import is_same_code
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.choice import find_choice
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.workload import pytree
from torchwise.workload.input_spec import InputSpec, parse_inputs, strip_sizes

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
CALLED = ("forward", "_call_impl")
"""Functions that a module's own attributes may replace."""
MAX_NAMED = 3
"""Inputs that a message about unverified ones names."""
_count_dispatch_modes: Callable[[], int] = DISPATCH_MODES.get("a served plan")
_has_global_hook: Callable[[], bool] = HAS_GLOBAL_HOOK.get("a served plan")

REPLACED = Fallback(FallbackReason.CODE_REPLACED, "its forward or class")
COMPILED = Fallback(
    FallbackReason.COMPILE_CHANGED,
    "model.compile() was called since the plan was applied, and so PyTorch's compiled code answers",
)
UNCOMPILED = Fallback(
    FallbackReason.COMPILE_CHANGED, "the code of model.compile() was removed since the plan was applied"
)
TRANSFORM_ACTIVE = Fallback(FallbackReason.TRANSFORM_ACTIVE)
DISPATCH_MODE_ACTIVE = Fallback(FallbackReason.DISPATCH_MODE_ACTIVE)
GLOBAL_HOOK = Fallback(FallbackReason.GLOBAL_HOOK)
HOOKS_CHANGED = Fallback(FallbackReason.HOOKS_CHANGED)
TRAINING_MODE_CHANGED = Fallback(FallbackReason.TRAINING_MODE_CHANGED)


class CallGuard:
    """Checks the parts that a plan bypasses: the module's own call, its mode and hooks, and modes around all operators.

    It also checks the code that the module runs (`CodeGuard`). The rest of a module is checked by the code that made
    something of it (`compile.guards.module_guard`).
    """

    def __init__(self, original: Any, *, inference: bool) -> None:
        self._original, self._kind = original, type(original)
        self._state = vars(original) if isinstance(original, torch.nn.Module) else {}
        self._training = getattr(original, "training", None)
        self._is_scripted = isinstance(original, torch.jit.ScriptModule)  # whose mode is not in its state
        self._called = {name: self._state.get(name, MISSING) for name in CALLED}
        self._compiled = self._state.get("_compiled_call_impl")
        self._code = CodeGuard(original)
        self._take_code()
        self._found: Fallback | None = None
        kinds = HOOKS if inference else HOOKS + BACKWARD_HOOKS
        self._hooks = [self._state[kind] for kind in kinds if kind in self._state]
        self._registered = [*map(tuple, self._hooks)]  # each hook has a number of its own
        self._hooked = any(self._hooks)  # then the plan is made of the module as it is called, hooks included
        self._watch: weakref.ref[native.Watch] | None = None

    def make_check(self) -> Callable[[], Fallback | None]:
        """Return `find_change`, in C++ if the checks are compiled. It asks this one as soon as anything differs."""
        watch = None if self._is_scripted else native.make_watch(self.find_change, is_boolean=False)
        if watch is None:
            return self.find_change
        self._watch = weakref.ref(watch)  # which holds this, and nothing is freed in time that holds itself
        return watch if self._have_watched(watch) else self.find_change

    def _have_watched(self, watch: native.Watch) -> bool:
        """Have C++ notice every difference from the present state. Return False if it cannot."""
        code = self._code
        functions = (tuple(code.functions), tuple(code.defaulted), tuple(code.keyworded), code.codes, code.defaults)
        hooks = tuple(zip(self._hooks, self._registered, strict=True))
        try:
            watch.reset(tuple(self._dicts), ((self._original, self._kind),), hooks, (), functions, list_modes())
        except (TypeError, UnsupportedError):  # hooks or code of an unusual kind
            return False
        return True

    def _take_code(self) -> None:
        code = self._code
        self._functions, self._codes, self._defaults = code.functions, code.codes, code.defaults
        self._dicts = code.dicts  # the module's own state among them
        self._note_seen(count_dict_writes(self._dicts))

    def _note_seen(self, written: int) -> None:
        self._seen = written
        self._uncounted = [True] if self._is_scripted else list_uncounted(self._dicts)

    def find_change(self) -> Fallback | None:
        """Return the change, or None. This runs on every call."""
        if is_transforming():
            return TRANSFORM_ACTIVE
        if _count_dispatch_modes():  # it would see other operators than the model's, or none
            return DISPATCH_MODE_ACTIVE
        if _has_global_hook():  # a plan enters below the call that would run it
            return GLOBAL_HOOK
        written = sum(map(version, self._dicts))
        if (
            written != self._seen
            or type(self._original) is not self._kind
            or (self._uncounted and any(self._uncounted))
        ):
            self._check_written(written)
        if self._found is not None:
            if self._found is REPLACED:  # the class may be its own again, which is no write
                self._check_written(written)
            if self._found is not None:
                return self._found
        if [*map(code_of, self._functions)] != self._codes or (self._defaults and self._code.has_other_defaults()):
            rewritten = self._code.rewritten()
            if rewritten is not None:
                return Fallback(FallbackReason.CODE_REPLACED, rewritten)
        if (self._hooked or any(self._hooks)) and [*map(tuple, self._hooks)] != self._registered:
            return HOOKS_CHANGED
        return None

    def _check_written(self, written: int) -> None:
        """Examine everything that was written to."""
        dicts = self._dicts
        self._found = self._find_model_change()
        if self._dicts is dicts:
            self._note_seen(written)

    def _find_model_change(self) -> Fallback | None:
        if getattr(self._original, "training", None) is not self._training:
            return TRAINING_MODE_CHANGED
        compiled = self._state.get("_compiled_call_impl")
        if compiled is not self._compiled:
            return COMPILED if compiled is not None else UNCOMPILED
        for name, before in self._called.items():
            now = self._state.get(name, MISSING)
            if now is not before and not is_same_method(self._original, name, now, before):
                return REPLACED
        replaced = self._code.rebound()
        if replaced is not None:
            return Fallback(FallbackReason.CODE_REPLACED, replaced)
        return None if type(self._original) is self._kind else self._change_class()

    def _change_class(self) -> Fallback | None:
        """Accept another class of the same code for the model's own, for example after its file was loaded again."""
        if self._code.rewritten() or not is_same_code(type(self._original), self._kind):
            return REPLACED
        self._kind = type(self._original)
        self._code.take_snapshot()
        self._take_code()
        if self._watch is not None and (watch := self._watch()) is not None:
            self._have_watched(watch)
        return None


Known = tuple[Recognize, Callable[..., Any]]
"""Recognizes calls like one that was answered, with the function that answers them."""


def is_of(key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call still has this signature, and the signature is hashable."""
    try:
        return signature_of(args, kwargs) == key and hash(key) is not None
    except Exception:  # an input may be of any kind, and fail when it is described
        return False


def recognize_by(args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]) -> Known | None:
    """Return a recognizer of calls like this one that makes no signatures, or None if there can be none."""
    try:
        return make_recognizer(args, kwargs, takes_objects=True), call
    except Exception:  # an input may be of any kind, and the call is answered already
        return None


class VerifiedInputs:
    """The inputs that a plan was verified on.

    Args:
        inputs: one line for each example, as a decision stores it.
        dynamic: whether the plan was verified for other sizes of the same ranks, too.
    """

    def __init__(self, inputs: Sequence[str], *, dynamic: bool) -> None:
        self._strips_sizes = dynamic
        self._specs = specs = [*map(parse_inputs, inputs)]
        self._are_regular = all(spec.is_regular for spec in specs)
        self._forms = {self._form_of(spec) for spec in specs}
        self._memory = {(self._form_of(spec), spec.overlaps) for spec in specs}

    @staticmethod
    def find_other_device(args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> Fallback | None:
        """Return that an input lies on another device than the plan's, or None if none does."""
        elsewhere = {tensor.device.type for tensor in pytree.tensors((args, kwargs))} - {device}
        return Fallback(FallbackReason.OTHER_DEVICE, f"{elsewhere.pop()}, and not {device}") if elsewhere else None

    def cover(self, spec: InputSpec) -> bool:
        """Whether they have the same form: paths, dtypes, shapes and strides (or ranks), and other values.

        The memory that inputs share is left out.
        """
        return any(self._form_of(same) in self._forms for same in self._read_both_ways(spec))

    def cover_form(self, spec: InputSpec) -> bool:
        """Whether they have the same form but for sizes and strides."""
        return any(spec.strip_sizes() == verified.strip_sizes() for verified in self._specs)

    def describe_difference(self, spec: InputSpec) -> str:
        """Name the inputs that differ from the closest verified ones, such as "mask is bool[9] (1,), was bool[5] (1,)".

        It is empty if no input differs.
        """
        differences = [self._list_differences(spec, verified) for verified in self._specs]
        found = min(differences, key=len, default=[])
        more = [f"{len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else []
        return "; ".join([*found[:MAX_NAMED], *more])

    def _list_differences(self, spec: InputSpec, verified: InputSpec) -> list[str]:
        """List each input that is other than in verified ones, is missing there, or is missing here."""
        here, there = ({leaf.path: leaf.value for leaf in one.leaves} for one in (spec, verified))
        strip = strip_sizes if self._strips_sizes else lambda value: value
        changed = [path for path in here if path in there and strip(here[path]) != strip(there[path])]
        texts = [f"{_name_input(path)} is {here[path]}, was {there[path]}" for path in changed]
        texts += [f"{_name_input(path)} is {here[path]}, was not given" for path in here if path not in there]
        return texts + [f"{_name_input(path)} is not given" for path in there if path not in here]

    def cover_memory(self, spec: InputSpec) -> bool:
        """Whether they have the same form, and share memory in the same way."""
        return any((self._form_of(same), same.overlaps) in self._memory for same in self._read_both_ways(spec))

    def _form_of(self, spec: InputSpec) -> Hashable:
        return spec.strip_sizes() if self._strips_sizes else spec.leaves

    def _read_both_ways(self, spec: InputSpec) -> Iterator[InputSpec]:
        """Yield inputs as they are, and as their line is read: a printed form with unpaired quotes is cut elsewhere."""
        yield spec
        if not self._are_regular:
            yield parse_inputs(str(spec))


def _name_input(path: str) -> str:
    """Return the path of an input as one reads it: "input 0" for "[0][0]", "mask.low" for "[1]['mask']['low']"."""
    name = pytree.readable(path[3:])
    return f"input {name[1:].replace(']', '', 1)}" if name.startswith("[") else name


def may_need_gradients(
    module: torch.nn.Module | None, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether an answer could need a gradient.

    A function's closure cannot be searched. Code of a compiler for training would carry its gradients. A captured
    graph, or code of another compiler, would not.
    """
    if module is not None and any(p.requires_grad for p in module.parameters()):
        return True
    if module is None and (plan.capture != "none" or not _trains(plan.backend)):
        return True
    return any(t.requires_grad for t in pytree.tensors((args, kwargs)))


def _trains(backend: str) -> bool:
    choice = find_choice("backend", backend)
    return choice is None or "training" in choice.modes
