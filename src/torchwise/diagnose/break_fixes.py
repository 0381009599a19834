"""Code that removes a graph break: the rules read PyTorch's message about it, and its line of source."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from torchwise._torch import dynamo
from torchwise.diagnose.tensor_code import as_tensor, keep_tensors, with_where
from torchwise.records.compile_events import Break, CodeFix

_SETTING = re.compile(rf"{re.escape(str(dynamo.CONFIG))}\.(?P<name>\w+)")
_CONDITIONALS = (ast.If, ast.While, ast.IfExp, ast.Assert)
_QUOTED = "{line}"
_UNLESS = "put `if not torch.compiler.is_compiling():` before it, so that only eager calls run it"
_OPERATOR = (
    "make it one operator of the graph: decorate it with `@torch.library.custom_op`, with types in its signature, and "
    "use `register_fake` for the shape of its result"
)
_WHOLE = (
    "Within a `with`, a `try`, a loop or a generator, the compiler cannot resume after the break and leaves the whole "
    "function uncompiled. If the line must stay, move it out of that block."
)
_MASK = (
    "Keep the whole shape, and give excluded elements a neutral value: `torch.where(mask, x, 0)` before a sum, `-inf` "
    "before a maximum. Count with `mask.sum()`."
)
_FIXED_SIZE = {
    "nonzero": "Where a largest number is known: `torch.nonzero_static(x, size=MAX_COUNT, fill_value=-1)`. Or use the "
    f"mask itself. {_MASK}",
    "unique": "Sort instead, which keeps the size: `torch.sort(x).values`. A value is new if it differs from the one "
    "before it.",
    "repeat_interleave": "Build the index from the TOTAL, which the caller passes in: "
    "`torch.searchsorted(counts.cumsum(0), torch.arange(TOTAL), right=True)`, and take `x[index]`.",
    "one_hot": "Pass the number of classes: `torch.nn.functional.one_hot(x, num_classes=CLASSES)`.",
    "bincount": "Add up into a fixed number of bins: `torch.zeros(BINS).scatter_add_(0, x, ones)`.",
}
_NUMPY = {
    "interp": "`torch.searchsorted(knots, x)` and `torch.lerp` between the two knots",
    "random": "`torch.rand`",
    "percentile": "`torch.quantile`",
    "histogram": "`torch.histc`",
    "convolve": "`torch.nn.functional.conv1d`",
}


class BreakSite:
    """PyTorch's reason, explanation and context of one break, as one message, and the source line."""

    def __init__(self, graph_break: Break) -> None:
        self.message = "\n".join((graph_break.reason, graph_break.explanation, graph_break.context))
        self.line = graph_break.excerpt
        self._hints = graph_break.hints

    def says(self, pattern: str) -> bool:
        """Return whether PyTorch's message matches."""
        return re.search(pattern, self.message) is not None

    def reads(self, pattern: str) -> bool:
        """Return whether the source line matches."""
        return re.search(pattern, self.line) is not None

    def find_setting(self, default: str) -> str:
        """Return the setting of PyTorch that its hints name. Its name differs from version to version."""
        hits = [hit["name"] for hint in self._hints if (hit := _SETTING.search(hint))]
        return f"{dynamo.CONFIG}.{hits[0] if hits else default}"

    @functools.cached_property
    def statement(self) -> ast.stmt | None:
        """The statement of the line, or None if the line holds only a part of one."""
        line = re.sub(r"^elif\b", "if", self.line)
        for text in (line, f"{line}\n pass"):  # a comment may end the line
            try:
                return ast.parse(text).body[0]
            except (SyntaxError, IndexError):
                continue
        return None

    @functools.cached_property
    def condition(self) -> str:
        """The condition of the line's `if` or `while`, or empty if it has none."""
        if self.statement is None:
            return ""
        test = next((node.test for node in ast.walk(self.statement) if isinstance(node, _CONDITIONALS)), None)
        return ast.unparse(test) if test else ""

    def find_call(self, pattern: str) -> str:
        """Return the source of the line's first call to a function whose name matches, or an empty text."""
        for node in ast.walk(self.statement) if self.statement else ():
            if isinstance(node, ast.Call) and re.search(pattern, ast.unparse(node.func)):
                return ast.unparse(node)
        return ""

    @property
    def quoted(self) -> str:
        """The line, short enough to stand in a sentence."""
        return f"`{self.line if len(self.line) <= 80 else self.line[:77] + '...'}`" if self.line else "this line"


Rule = Callable[[BreakSite], CodeFix | None]
"""Returns a fix, or None if the break is of another class."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A class of breaks with the same fix, whatever the line computes.

    Attributes:
        text: the instructions, with the line in place of `{line}`.
        says: pattern of PyTorch's message, or empty.
        reads: pattern of the source line, or empty. One of the two must match.
        consequence: side effects of the setting.
    """

    kind: str
    text: str
    says: str = ""
    reads: str = ""
    setting: str = ""
    consequence: str = ""

    def __call__(self, site: BreakSite) -> CodeFix | None:
        """Return the fix if the break is of this class."""
        if (self.says and site.says(self.says)) or (self.reads and site.reads(self.reads)):
            return CodeFix(self.kind, self.text.replace(_QUOTED, site.quoted), self.setting, self.consequence)
        return None


def add_fix(graph_break: Break) -> Break:
    """Return a break with its fix. For a break in a library, the fix says that the call into it can change."""
    site = BreakSite(graph_break)
    fix = next(fix for rule in _RULES if (fix := rule(site)))
    if graph_break.library:
        fix = replace(fix, text=f"The break lies in library code ({graph_break.library}), called from here. {fix.text}")
    if graph_break.whole:
        fix = replace(fix, text=f"{fix.text} {_WHOLE}")
    return replace(graph_break, fix=fix)


def fix_print(site: BreakSite) -> CodeFix | None:
    """`print`. Where a library has put its own in its place, as Ray does, the break lies in that library's code."""
    if not site.says("builtin print|builtin operator `print`") and not site.reads(r"^print\("):
        return None
    return CodeFix(
        "print",
        f"Print in the caller, from what the function returns. Or: {_UNLESS}.",
        f"{site.find_setting('reorderable_logging_functions')}.add(print)",
        "The output comes after the compiled code, in order. With keywords, such as `file=`, it may still break.",
    )


def fix_log(site: BreakSite) -> CodeFix | None:
    """Methods of `logging.Logger`."""
    if not site.says(r"logging\.Logger|module: logging|<Logger "):
        return None
    call = site.find_call(r"\.(debug|info|warning|error|exception|critical|log)$").partition("(")[0] or "logger.info"
    return CodeFix(
        "logging",
        f"Log in the caller. Or: {_UNLESS}.",
        f"{site.find_setting('ignore_logging_functions')}.add({call})",
        "Compiled calls log nothing there.",
    )


def fix_random(site: BreakSite) -> CodeFix | None:
    """Python's and NumPy's random numbers."""
    if not site.says(r"Random\.|random\.random|numpy\.random|module: random") and not site.reads(
        r"(np|numpy)\.random\.|\brandom\.(random|randint|uniform|gauss|choice|shuffle)\("
    ):
        return None
    call = site.find_call(r"random|uniform|gauss|randint|choice|shuffle|rand|normal") or "the random number"
    return CodeFix(
        "random",
        f"`{call}` is drawn outside of PyTorch. Draw it with PyTorch: `torch.rand((), device=x.device)`, `torch.randn` "
        "or `torch.randint`, which follow `torch.manual_seed`. Or draw it in the caller and pass it in as a tensor.",
    )


def fix_branch(site: BreakSite) -> CodeFix | None:
    """`if`, `while`, `and` or a conditional expression on a tensor's value, or such a value read as a Python bool."""
    branches = site.says(r"[Dd]ata-dependent (branching|jump)|attempted to jump with")
    reads = site.says(r"Tensor\.item\(\)|_local_scalar_dense|aten\.(equal|allclose)\b")
    if not branches and not (reads and site.reads(r"^\s*(el)?if\b|^\s*while\b|\bif\b.*\belse\b|\bbool\(|\bassert\b")):
        return None
    if site.reads(r"^\s*while\b"):
        return _fix_while(site)
    return _fix_comparison(site) or _fix_if(site)


def _fix_while(site: BreakSite) -> CodeFix:
    return CodeFix(
        "while",
        f"The number of repetitions of {site.quoted} depends on the data. Run the maximum number of steps, "
        "`for _ in range(MAX_COUNT)`, and keep the values that are finished: `x = torch.where(condition, step(x), x)`. "
        "If that many steps would take longer than they save, keep the loop outside and compile only its body: "
        "`step = torch.compile(step)`.",
        condition=as_tensor(site.condition),
    )


def _fix_if(site: BreakSite) -> CodeFix:
    ends_loop = site.reads(r":\s*(break|continue|return)\b")
    loop = (
        " In a loop that ends here: run all steps, and use `torch.where` to keep the final value." if ends_loop else ""
    )
    line = with_where(site.statement)
    return CodeFix(
        "branch",
        f"The branch that {site.quoted} takes depends on the data. Compute both sides and choose: "
        "`torch.where(condition, this_side, other_side)`. If a side is slow, use "
        f"`torch.cond(condition, this_function, other_function, (inputs,))`, which runs one of them.{loop}",
        line=line,
        condition="" if line else as_tensor(site.condition),
    )


def _fix_comparison(site: BreakSite) -> CodeFix | None:
    """Replace `torch.allclose` and `torch.equal`: they return a Python bool, which `torch.where` does not take."""
    call = site.find_call(r"(^|\.)(allclose|equal)$")
    if not call:
        return None
    return CodeFix(
        "comparison",
        f"`{call}` returns a Python bool. Compute a tensor, such as `torch.isclose(x, y).all()` or "
        "`torch.eq(x, y).all()`, and choose with `torch.where(condition, this_side, other_side)`.",
        line=with_where(site.statement),
        condition=as_tensor(site.condition),
    )


def fix_item(site: BreakSite) -> CodeFix | None:
    """`.item()`, `int(tensor)`, `float(tensor)`."""
    stores = site.reads(r"\.(add|append|update|setdefault|extend)\(|^[\w.]+\[[^\]]*\]\s*[-+*/]?=[^=]")
    # PyTorch 2.11 complains of the `add`, not of the number.
    stores_number = stores and site.reads(r"\.item\(\)|\b(float|int)\(")
    if not stores_number and not site.says(r"Tensor\.item\(\)|_local_scalar_dense"):
        return None
    text = f"{site.quoted} turns a tensor into a Python number, and waits for the device."
    if stores:  # with the setting, the stored value would be a symbol, which breaks the graph again
        return CodeFix("item", f"{text} Return the tensor, and store its value in the caller after the compiled call.")
    return CodeFix(
        "item",
        f"{text} Keep it a tensor: arithmetic with it stays in the graph. If the number is a size or a loop count, "
        "pass it in from the caller.",
        f"{site.find_setting('capture_scalar_outputs')} = True",
        "Numbers read from tensors become symbols in the graph. Code that depends on them, such as `if`, fails or "
        "breaks there. The read itself still waits for the device.",
        line=keep_tensors(site.statement),
    )


def fix_dynamic_size(site: BreakSite) -> CodeFix | None:
    """`nonzero`, boolean masks, `masked_select`, `unique`, `repeat_interleave`, `one_hot`, `bincount`."""
    if not site.says(r"[Dd]ynamic shape operator|output shape depends on|data-dependent output shape"):
        return None
    kind = next((name for name in _FIXED_SIZE if site.says(name) and site.reads(name)), "mask")
    text = f"The size of the result of {site.quoted} depends on the data. {_FIXED_SIZE.get(kind, _MASK)}"
    if kind == "one_hot":  # it needs no more than a number of classes
        return CodeFix(kind, text)
    return CodeFix(
        kind,
        text,
        f"{site.find_setting('capture_dynamic_output_shape_ops')} = True",
        "Sizes that depend on the data become symbols in the graph. Code that branches on them fails or breaks there, "
        "and such a graph cannot be a CUDA graph.",
    )


def fix_numpy(site: BreakSite) -> CodeFix | None:
    """NumPy functions that PyTorch does not have."""
    if not site.says("numpy function|torch\\._numpy|numpy\\.ndarray"):
        return None
    function = site.find_call(r"^(np|numpy)\.").partition("(")[0]
    instead = _NUMPY.get(function.rpartition(".")[2], "PyTorch's function of that kind")
    return CodeFix(
        "numpy",
        f"PyTorch has no `{function or 'such function of NumPy'}`. Write it with tensors: {instead}. Or make it one "
        "operator of the graph: decorate a function that calls NumPy with `@torch.library.custom_op`, and add "
        "`register_fake`. It still runs on the host.",
    )


_RULES: tuple[Rule, ...] = (
    Pattern(
        "breakpoint",
        'Remove the breakpoint. To debug this code, run it in eager: `torch.compiler.set_stance("force_eager")`.',
        r"builtin breakpoint|pdb|set_trace",
        r"\bbreakpoint\(|set_trace\(",
    ),
    fix_print,
    fix_log,
    Pattern(
        "warning",
        f"Warn in the caller, or once when the model is created. Or: {_UNLESS}.",
        r"module: _?warnings\b",
        r"\bwarnings\.warn\(",
        f"{dynamo.CONFIG}.reorderable_logging_functions.add(warnings.warn)",
        "The warning comes after the compiled code, and names another line. With keywords, it may still break.",
    ),
    Pattern(
        "disabled",
        "{line} calls a function under `torch.compiler.disable`. Remove that decorator if it is no longer needed. If "
        "the function must stay eager, call it first or last, so that the rest stays one graph.",
        rf"torch\.compiler\.disable|{re.escape(dynamo.DISABLE)}",
    ),
    Pattern(
        "recurrent",
        "PyTorch does not compile RNN modules, and may leave the code after them uncompiled, too. `torchwise tune` "
        "tries to compile the RNN with the rest (`compiled_rnn`, for few steps), and to isolate it (`isolate_rnn`). "
        "By hand, put it in a module whose forward is under `torch.compiler.disable`: the code on both sides is then "
        "compiled. Or for few steps, loop over `nn.GRUCell` or `nn.LSTMCell`, which is compiled.",
        r"RNN, GRU, or LSTM|\b(GRU|LSTM|RNN)\(|nn\.modules\.rnn|variables\.lazy.*rnn",
        setting=f"{dynamo.CONFIG}.allow_rnn = True",
        consequence="The steps are unrolled: compiling takes seconds for every few steps, and again for each length. "
        "In some versions, training an LSTM like this crashes.",
    ),
    fix_random,
    fix_branch,
    fix_item,
    Pattern(
        "tolist",
        "{line} turns a tensor into Python numbers. Index the tensor itself (`x[0]`, `x.unbind(0)`), and keep the "
        "following code in tensors. Or read the list in the caller.",
        "tolist|to_list",
    ),
    fix_dynamic_size,
    fix_numpy,
    Pattern(
        "clock",
        "Read the clock outside of the compiled code: around the call, and on a GPU after `torch.cuda.synchronize()`. "
        f"Inside, it would time the launch of the work, not the work. Or: {_UNLESS}.",
        r"module: (time|datetime)\b|builtin `time\.|time function|datetime\.datetime",
    ),
    Pattern(
        "files",
        f"Run {_QUOTED} before the compiled call and pass the result in, or after it on its outputs. Or: {_UNLESS}.",
        r"builtin open|TextIOWrapper|Buffered(Writer|Reader)|(String|Bytes)IO\b|"
        r"module: (posix|os|io|_io|shutil|socket)\b",
        r"\bopen\(|\bos\.\w+\(",
    ),
    Pattern("copy", "Copy the tensor with `.clone()` instead of {line}.", "deepcopy"),
    Pattern(
        "sort",
        "Stack the tensors and sort them together: `torch.sort(torch.stack(values))` for {line}.",
        "sort with non-constant keys",
    ),
    Pattern(
        "backward",
        "Move {line} out of the compiled function. Compile the code that computes the loss, create leaves and call "
        "`.backward()` in the caller. The backward pass is compiled too.",
        r"Tensor\.backward\(\)|requires_grad",
    ),
    Pattern(
        "exception",
        "{line} raises while it is traced. Check its condition in the caller, before the compiled call. If it should "
        'not raise, `torch.compiler.set_stance("force_eager")` shows the original error.',
        "Observed exception",
    ),
    Pattern(
        "opaque",
        f"The compiler cannot trace into the function that {_QUOTED} calls. If it needs no tensor, compute it before "
        f"the compiled call (in `__init__`, or as an argument). If it needs one, {_OPERATOR}.",
        r"marked as skipped|C/C\+\+|C extension|does not know how to trace (the )?builtin",
    ),
    Pattern(
        "other",
        f"Move {_QUOTED} out of the compiled function: before it, with the result as an argument, or after it. If it "
        f"computes with tensors, write it with PyTorch's operators, or {_OPERATOR}.",
        ".?",
    ),
)
"""The narrower rules before the wider. The last one matches any break."""
