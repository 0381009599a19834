"""Events of PyTorch's compiler in a live program: breaks, recompilations, compilations and fallbacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from torchwise.former_names import renamed_fields
from torchwise.records.codec import Document
from torchwise.records.statistics import Amount, Count, Positive, Seconds


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in a program: `line` of `file`, within `function`."""

    file: str
    line: Count
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True)
class CodeFix:
    """Replacement code that removes a graph break.

    Attributes:
        kind: the class of fix, such as "print" or "branch".
        setting: a setting of PyTorch that fixes it without a change of the code, or empty if there is none.
        line: replacement for the line, or empty if it is unknown. `explain` runs it before it recommends it.
        condition: the line's condition as a tensor, likewise.
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
        condition = f" As a tensor, the condition is `{self.condition}`." if self.condition else ""
        return f"{self.text}{condition}" + (f" Here: `{self.line}`." if self.line else "")


@renamed_fields(fix="mend")
@dataclass(frozen=True, slots=True)
class Break:
    """A graph break: once for each file, line and code, however often it was met.

    Attributes:
        file: of the user's own code: the innermost frame that is neither torch's nor an installed library's.
        code: PyTorch's registry code, such as "GB0059", or empty if it gives none. It is explained at
            https://meta-pytorch.org/compile-graph-break-site/.
        reason: PyTorch's name of the kind of break.
        hints: PyTorch's own advice, without its requests for a bug report.
        context: the object that PyTorch was tracing, for its developers.
        stack: the frames of the program down to the break, outermost first, without those of torch's compiler.
        library: the innermost frame, if it lies in an installed library and not in the user's code.
        excerpt: the source line as it stands, or empty if it cannot be read.
        count: how often it was met while compiling.
        whole: whether PyTorch could not go on after it, and runs the whole function without compiling it.
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
    fix: CodeFix | None = None
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
        line: its first line.
        guard: the guard that failed, as PyTorch writes it.
        varies: the difference from call to call, in words.
        source: the expression that the guard checks, such as "L['x']", or empty if it is unknown.
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
    """One compilation of a function, or of its backward pass.

    Attributes:
        compile_id: PyTorch's "frame/compilation", such as "0/1", the same for forward and backward.
        function: its name. A part after a graph break has a name that includes the function it is a part of.
        line: its first line.
        seconds: total duration.
        phases: seconds by phase, as PyTorch names them. They are nested: "inductor_code_gen" lies within "inductor",
            that within "aot_autograd", that within "dynamo". "triton" is the C++ compiler on a CPU.
        guard_us: microseconds for one check of all guards, as PyTorch measured it, or None if it did not.
        graph_ops: number of operations in the captured graph.
        graph_nodes: number of nodes in it, inputs and outputs included.
        cache_hits: how often a cache of Inductor or AOTAutograd had the answer, local or remote.
        cache_misses: how often no cache had it.
        is_forward: whether it is not the backward pass.
        failed: PyTorch's reason for the lack of compiled code, or empty if there is compiled code.
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


class UncompiledKind(StrEnum):
    """Why something does not run compiled."""

    RECOMPILE_LIMIT = "recompile_limit"
    WHOLE_FUNCTION = "whole_function"
    COMPLEX = "complex"
    CUDAGRAPH_SKIP = "cudagraph_skip"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class UncompiledPart:
    """Something that does not run compiled, and that PyTorch says little or nothing about.

    Attributes:
        what: details in words: the operators, or PyTorch's reason.
        line: its first line.
        count: how often it was met while compiling.
        graph_break: the place of the graph break that left the function uncompiled, or None.
    """

    kind: UncompiledKind
    what: str
    function: str = ""
    file: str = ""
    line: Count = 0
    count: Positive = 1
    graph_break: Frame | None = None


@dataclass(frozen=True, slots=True)
class CompileEvents(Document):
    """All events between start and stop.

    Attributes:
        seconds: from start to stop.
        breaks: each place once.
        recompiles: each function and guard once.
        compilations: each of them, in order.
        fallbacks: each once.
        trace_s: seconds of the compile time that were spent on PyTorch's structured trace and on reading it.
        notes: reasons why the record may be incomplete.
    """

    seconds: Seconds
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    fallbacks: tuple[UncompiledPart, ...] = ()
    trace_s: Seconds = 0.0
    notes: tuple[str, ...] = ()
    schema: str = "torchwise.watched/1"

    def __repr__(self) -> str:
        counts = f"{len(self.compilations)} compilations, {len(self.breaks)} graph breaks"
        return (
            f"<CompileEvents of {self.seconds:.1f} s: {counts}, {sum(one.count for one in self.recompiles)} recompiles>"
        )

    @property
    def compile_s(self) -> float:
        """Total seconds of all compilations."""
        return sum(one.seconds for one in self.compilations)
