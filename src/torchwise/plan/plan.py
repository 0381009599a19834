"""A plan: one way to run a workload, as frozen data with a canonical form and a stable id."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from torchwise.errors import InputError, PlanError, did_you_mean
from torchwise.former_names import renamed_fields, with_current_names
from torchwise.keywords import checked_keywords
from torchwise.parsing import brief, parse_json, short_repr
from torchwise.plan.choice import FORMER_TRANSFORMS, Stage, complete_name, find_choice, load_choices
from torchwise.plan.known_names import check_known
from torchwise.plan.rules import check, check_containers, find_choices

SCHEMA = "torchwise.plan/1"
EXAMPLE = f'{{"schema":"{SCHEMA}","backend":"inductor"}}'

OptionValue = bool | int | str
"""Types of a backend option. Floats are left out so that the canonical form has one spelling."""


@renamed_fields(activation_checkpointing="recompute", microbatches="pieces")
@checked_keywords()
@dataclass(frozen=True)
class Plan:
    """One way to run a workload. The default is to leave it alone.

    Attributes:
        precision: "native" (the model's own dtypes and the process's settings), "tf32", "bf16", "autocast_bf16" or
            "autocast_fp16".
        memory_format: "preserve", "channels_last", or "channels_last_3d" for volumes.
        transforms: names of rewrites, in the order of their application.
        backend: "eager" or a compiler, such as "inductor".
        mode: the compiler's mode, in PyTorch's words, or "default" for eager.
        options: compiler options on top of the mode, sorted by name.
        scope: "whole" compiles the model, and "regional" each of its repeated blocks. "rolled" compiles one body for
            all repetitions in its graph, and "loss" the model of a training step and its loss as one.
        capture: "none", or the part that becomes one CUDA graph: a "call", the parts between the "branches" that it
            takes by the GPU's answers, or the "step" of a training.
        shapes: "static" compiles for each shape, "dynamic" once for all. A call of any size is then captured, too.
        threads: intra-operator threads on the CPU, or None to leave them as they are.
        optimizer: for a training step: "preserve", or its form with "foreach" or "fused" kernels, or "compiled".
        activation_checkpointing: "none", or which activations the backward pass computes again: those in repeated
            "blocks" of a training step's model, or those that the compiler picks from its "graph".
        microbatches: number of parts of a batch in a training step, which adds up their gradients.
    """

    precision: str = "native"
    memory_format: str = "preserve"
    transforms: tuple[str, ...] = ()
    backend: str = "eager"
    mode: str = "default"
    options: tuple[tuple[str, OptionValue], ...] = ()
    scope: str = "whole"
    capture: str = "none"
    shapes: str = "static"
    threads: int | None = None
    optimizer: str = "preserve"
    activation_checkpointing: str = "none"
    microbatches: int = 1

    def __post_init__(self) -> None:
        check_containers(self.transforms, self.options)
        object.__setattr__(self, "transforms", tuple(map(complete_name, self.transforms)))
        object.__setattr__(self, "options", tuple(sorted((tuple(o) for o in self.options), key=lambda o: o[0])))
        check(self)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same in canonical form: an option True is another than 1, unlike in Python."""
        return self._canonical == other._canonical if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._canonical)

    @cached_property
    def id(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON: equal plans have equal ids, everywhere.

        Fields and rewrites have their first names in it, so that an id stays the same when one is renamed.
        """
        data = {_FIRST_NAMES.get(name, name): value for name, value in self.to_dict().items()}
        if "transforms" in data:
            first = {now: former for former, now in FORMER_TRANSFORMS.items()}
            data["transforms"] = [first.get(name, name) for name in data["transforms"]]
        return hashlib.sha256(_to_canonical(data).encode()).hexdigest()[:12]

    @property
    def of_a_step(self) -> bool:
        """Whether something of it means a whole training step, and nothing to a model alone."""
        parts = (self.capture == "step", self.scope == "loss", self.optimizer != "preserve")
        return any(parts) or self.activation_checkpointing == "blocks" or self.microbatches > 1

    @property
    def is_eager(self) -> bool:
        """Whether this is the baseline: nothing changed at all."""
        return self == EAGER

    @property
    def is_traced(self) -> bool:
        """Whether Dynamo traces the model: for a compiler, or to rewrite its functions in eager."""
        return self.backend != "eager" or any(choice.stage is Stage.TRACE for choice in find_choices(self))

    def option(self, name: str) -> OptionValue | None:
        """Return a compiler option's value, or None if the plan does not set it."""
        return dict(self.options).get(name)

    def with_choice(self, field: str, value: Any) -> Plan:
        """Return this plan with one field changed. "options" and "transforms" are added to.

        Raises:
            PlanError: the result is illegal or meaningless.
        """
        if field == "options":
            value = tuple({**dict(self.options), **dict([value])}.items())
        elif field == "transforms":
            value = tuple(sorted((*self.transforms, value), key=_place_of))
        return replace(self, **{field: value})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: every field that differs from leaving the model alone, and the schema."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if "options" in given:
            given["options"] = dict(self.options)
        if "transforms" in given:
            given["transforms"] = list(self.transforms)
        return {"schema": SCHEMA, **given}

    def to_json(self) -> str:
        """Return the canonical JSON: sorted keys, no spaces, defaults left out."""
        return self._canonical

    @cached_property
    def _canonical(self) -> str:
        return _to_canonical(self.to_dict())

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Read a result of `to_dict`.

        Raises:
            PlanError: another schema, an unknown field, a value that is unknown or of the wrong type, or an illegal
                combination.
        """
        if not isinstance(data, dict):
            raise PlanError(f"a plan is a JSON object, but this is of type {type(data).__name__}")
        data = dict(data)
        if "schema" not in data:
            raise PlanError(f'the plan names no schema: add "schema":"{SCHEMA}" to it')
        if (schema := data.pop("schema")) != SCHEMA:
            raise PlanError(f"schema is {short_repr(schema)}, but this version reads {SCHEMA!r}")
        data = with_current_names(data)
        names = [f.name for f in fields(cls)]
        for unknown in (name for name in data if name not in names):
            near = did_you_mean(str(unknown), names)
            raise PlanError(f"unknown plan field {short_repr(unknown)}; a plan has {', '.join(names)}{near}")
        if not isinstance(data.get("options", {}), dict) or not isinstance(data.get("transforms", []), list):
            raise PlanError("options must be a JSON object and transforms a JSON array")
        data["options"] = tuple(data.get("options", {}).items())
        data["transforms"] = tuple(data.get("transforms", []))
        try:
            plan = cls(**data)
            check_known(plan)
        except PlanError as error:
            raise PlanError(brief(error)) from None
        return plan

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read canonical or any other JSON of a plan.

        Raises:
            PlanError: it is no JSON, or no plan.
        """
        try:
            data = parse_json(text)
        except InputError as error:
            raise PlanError(f"plan is {short_repr(text)}, but must be JSON, such as {EXAMPLE} ({error})") from None
        return cls.from_dict(data)

    def __str__(self) -> str:
        """Return the plan in a few words, such as "inductor reduce-overhead + tf32", or "eager" for the baseline."""
        first = self.backend if self.mode == "default" else f"{self.backend} {self.mode}"
        words = [first, *self.transforms]
        words += [f for f in (self.precision, self.memory_format) if f not in ("native", "preserve")]
        words += [name if value is True else f"{name}={value}" for name, value in self.options]
        words += [self.scope] if self.scope != "whole" else []
        words += [f"capture {self.capture}"] if self.capture != "none" else []
        words += [self.shapes] if self.shapes != "static" else []
        words += [f"{self.threads} thread{'s' * (self.threads > 1)}"] if self.threads else []
        words += [f"{self.optimizer} optimizer"] if self.optimizer != "preserve" else []
        words += (
            [f"activation checkpointing {self.activation_checkpointing}"]
            if self.activation_checkpointing != "none"
            else []
        )
        words += [f"{self.microbatches} microbatches"] if self.microbatches > 1 else []
        return " + ".join(words)


_FIRST_NAMES = {"activation_checkpointing": "recompute", "microbatches": "pieces"}


def _to_canonical(data: dict[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _place_of(transform: str) -> tuple[int, str]:
    """Return a transform's place, so that a set of them is one plan: by stages, and by names."""
    load_choices()
    choice = find_choice("transforms", transform)
    stages = list(Stage)
    return (stages.index(choice.stage) if choice and choice.stage else len(stages), transform)


EAGER = Plan()
"""The baseline: the model as it is."""


def check_is_plan(given: object) -> None:
    """Raise a PlanError for any other object in a plan's place, such as its text."""
    if not isinstance(given, Plan):
        raise PlanError(
            f"plan is {given!r}, but must be a Plan, such as Plan(backend='inductor'); Plan.from_json reads {EXAMPLE}"
        )
