"""Fixes for the side effects of a program: printing, logging, files, clocks, debuggers."""

from __future__ import annotations

from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.records.compile_events import CodeFix

_UNLESS = (
    "`if not torch.compiler.is_compiling():` before it leaves it out of compiled calls, and keeps it in eager ones"
)


def debugger(look: BreakSite) -> CodeFix | None:
    """`breakpoint()` and its equivalents."""
    if not look.says(r"builtin breakpoint|pdb|set_trace") and not look.reads(r"\bbreakpoint\(|set_trace\("):
        return None
    return CodeFix(
        "breakpoint",
        'Take the breakpoint out. To debug this code, run it eagerly: `torch.compiler.set_stance("force_eager")`.',
    )


def print_call(look: BreakSite) -> CodeFix | None:
    """`print`."""
    if not look.says("builtin print|builtin operator `print`"):
        return None
    return CodeFix(
        "print",
        f"Print in the caller, from what the function returns. Or: {_UNLESS}.",
        f"{look.find_setting('reorderable_logging_functions')}.add(print)",
        "What is printed comes after the compiled code, in order; with keywords, such as `file=`, it may still break.",
    )


def log_call(look: BreakSite) -> CodeFix | None:
    """Methods of `logging.Logger`."""
    if not look.says(r"logging\.Logger|module: logging|<Logger "):
        return None
    call = look.find_call(r"\.(debug|info|warning|error|exception|critical|log)$").partition("(")[0] or "logger.info"
    return CodeFix(
        "logging",
        f"Log in the caller. Or: {_UNLESS}.",
        f"{look.find_setting('ignore_logging_functions')}.add({call})",
        "Compiled calls log nothing there.",
    )


def warn_call(look: BreakSite) -> CodeFix | None:
    """`warnings.warn`."""
    if not look.says(r"module: _?warnings\b") and not look.reads(r"\bwarnings\.warn\("):
        return None
    return CodeFix(
        "warning",
        f"Warn in the caller, or once when the model is made. Or: {_UNLESS}.",
        "torch._dynamo.config.reorderable_logging_functions.add(warnings.warn)",
        "The warning comes after the compiled code, and names another line; with keywords it may still break.",
    )


def clock(look: BreakSite) -> CodeFix | None:
    """`time.time`, `time.perf_counter`, `datetime.now`, `time.sleep`."""
    if not look.says(r"module: (time|datetime)\b|builtin `time\.|time function|datetime\.datetime"):
        return None
    return CodeFix(
        "clock",
        f"Read the clock outside of the compiled code: around the call, after `torch.cuda.synchronize()` on a GPU. In "
        f"here it would time the launch of the work, not the work. Or: {_UNLESS}.",
    )


def file_access(look: BreakSite) -> CodeFix | None:
    """Files and the operating system."""
    files = r"builtin open|TextIOWrapper|Buffered(Writer|Reader)|(String|Bytes)IO\b"
    system = r"module: (posix|os|io|_io|shutil|socket)\b"
    if not look.says(f"{files}|{system}") and not look.reads(r"\bopen\(|\bos\.\w+\("):
        return None
    return CodeFix(
        "files",
        f"Do {look.quoted} before the compiled call and hand the result in, or after it with what it returns. "
        f"Or: {_UNLESS}.",
    )
