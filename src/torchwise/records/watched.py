"""What PyTorch's compiler was seen to do in a live program: breaks, recompilations, compilations and fallbacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from torchwise.records.bounds import Amount, Count, Positive, Seconds
from torchwise.records.codec import Document

SCHEMA = "torchwise.watched/1"


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in a program: `line` of `file`, within `function`."""

    file: str
    line: Count
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True)
class Mend:
    """What to write instead, so that a graph break is gone.

    Attributes:
        kind: the class of mend, such as "print" or "branch".
        text: what to do, about the line at hand.
        setting: a setting of PyTorch that does it without a change of the code; empty where there is none.
        consequence: what that setting changes beside it.
        line: what takes the place of the line; empty where that cannot be told. `explain` runs it before it says so.
        condition: what the line asks, as a tensor; likewise.
    """

    kind: str
    text: str
    setting: str = ""
    consequence: str = ""
    line: str = ""
    condition: str = ""

    @property
    def words(self) -> str:
        """All of it but the setting."""
        condition = f" As a tensor, what is asked is `{self.condition}`." if self.condition else ""
        return f"{self.text}{condition}" + (f" Here: `{self.line}`." if self.line else "")


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break: once for each file, line and code, however often it was met.

    Attributes:
        file: of the user's own code: the innermost frame that is neither torch's nor an installed library's.
        line: in that file.
        function: around that line.
        code: PyTorch's registry code, such as "GB0059"; empty where it gives none. What it means stands at
            https://meta-pytorch.org/compile-graph-break-site/.
        reason: PyTorch's name of the kind of break.
        explanation: PyTorch's own words.
        hints: PyTorch's own advice, without its requests for a bug report.
        context: what PyTorch was looking at, for its developers.
        stack: the frames of the program down to the break, outermost first; those of torch's compiler are left out.
        library: the innermost frame, where it lies in an installed library and not in the user's code.
        excerpt: the source line as it stands; empty where it cannot be read.
        mend: what to write instead, or None where none is known.
        count: how often it was met while compiling.
        whole: PyTorch could not go on after it, and runs the whole function without compiling it.
    """

    file: str
    line: Count
    function: str
    code: str
    reason: str
    explanation: str = ""
    hints: tuple[str, ...] = ()
    context: str = ""
    stack: tuple[Frame, ...] = ()
    library: Frame | None = None
    excerpt: str = ""
    mend: Mend | None = None
    count: Positive = 1
    whole: bool = False

    @property
    def where(self) -> Frame:
        """The place in the user's code."""
        return Frame(self.file, self.line, self.function)


@dataclass(frozen=True, slots=True)
class Recompile:
    """A function that was compiled again, because a guard of its compiled code failed.

    Attributes:
        function: its name.
        file: where it stands.
        line: its first line.
        guard: the guard that failed, as PyTorch writes it.
        varies: what differs from call to call, in words.
        source: the expression that the guard looks at, such as "L['x']"; empty where it cannot be told.
        stack: the lines of the program that the guard was made for.
        count: how often it failed.
        compile_ids: the compilations that it led to.
    """

    function: str
    file: str
    line: Count
    guard: str
    varies: str = ""
    source: str = ""
    stack: tuple[Frame, ...] = ()
    count: Positive = 1
    compile_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """One compilation of one function, or of the backward pass of it.

    Attributes:
        compile_id: PyTorch's "frame/compilation", such as "0/1"; the same for forward and backward.
        function: its name; that of a part after a graph break names the function that it is a part of.
        file: where it stands.
        line: its first line.
        seconds: all of it.
        phases: seconds by phase, as PyTorch names them. They are nested: "inductor_code_gen" lies within "inductor",
            that within "aot_autograd", that within "dynamo". "triton" is the C++ compiler on a CPU.
        guards: number of guards.
        guard_us: microseconds that one check of all guards takes, as PyTorch measured it; None where it did not.
        graph_ops: number of operations in the captured graph.
        graph_nodes: number of nodes in it, inputs and outputs included.
        cache_hits: how often a cache of Inductor or AOTAutograd had the answer, local or remote.
        cache_misses: how often it had not.
        is_forward: not the backward pass.
        failed: PyTorch's reason why there is no compiled code; empty where there is.
        trace_s: seconds of it that writing PyTorch's structured trace took.
    """

    compile_id: str
    function: str
    file: str
    line: Count
    seconds: Seconds
    phases: dict[str, Seconds] = field(default_factory=dict)
    guards: Count = 0
    guard_us: Amount | None = None
    graph_ops: Count = 0
    graph_nodes: Count = 0
    cache_hits: Count = 0
    cache_misses: Count = 0
    is_forward: bool = True
    failed: str = ""
    trace_s: Seconds = 0.0


class FallbackKind(StrEnum):
    """Why something runs otherwise than compiled."""

    RECOMPILE_LIMIT = "recompile_limit"
    WHOLE_FUNCTION = "whole_function"
    COMPLEX = "complex"
    CUDAGRAPH_SKIP = "cudagraph_skip"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Fallback:
    """Something that runs otherwise than compiled, and that PyTorch says little or nothing about.

    Attributes:
        kind: which.
        what: of it, in words: the operators, or PyTorch's reason.
        function: in which it happens.
        file: where that stands.
        line: its first line.
        count: how often it was met while compiling.
    """

    kind: FallbackKind
    what: str
    function: str = ""
    file: str = ""
    line: Count = 0
    count: Positive = 1


@dataclass(frozen=True, slots=True)
class Watched(Document):
    """All that was seen between start and stop.

    Attributes:
        seconds: from start to stop.
        breaks: each place once.
        recompiles: each function and guard once.
        compilations: each of them, in order.
        fallbacks: each once.
        trace_s: seconds of the compile time that were spent on PyTorch's structured trace and on reading it.
        notes: what speaks against the record's completeness.
    """

    seconds: Seconds
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    trace_s: Seconds = 0.0
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA

    @property
    def compile_s(self) -> float:
        """Seconds of all compilations."""
        return sum(one.seconds for one in self.compilations)
