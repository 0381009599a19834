"""Fixes for the side effects of a program: printing, logging, files, clocks, debuggers."""

from __future__ import annotations

from torchwise._torch import dynamo
from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.records.compile_events import CodeFix

_UNLESS = "put `if not torch.compiler.is_compiling():` before it, so that only eager calls run it"


def debugger(site: BreakSite) -> CodeFix | None:
    """`breakpoint()` and its equivalents."""
    if not site.says(r"builtin breakpoint|pdb|set_trace") and not site.reads(r"\bbreakpoint\(|set_trace\("):
        return None
    return CodeFix(
        "breakpoint",
        'Remove the breakpoint. To debug this code, run it in eager: `torch.compiler.set_stance("force_eager")`.',
    )


def print_call(site: BreakSite) -> CodeFix | None:
    """`print`. Where a library has put its own in its place, as Ray does, the break lies in that library's code."""
    if not site.says("builtin print|builtin operator `print`") and not site.reads(r"^print\("):
        return None
    return CodeFix(
        "print",
        f"Print in the caller, from what the function returns. Or: {_UNLESS}.",
        f"{site.find_setting('reorderable_logging_functions')}.add(print)",
        "The output comes after the compiled code, in order. With keywords, such as `file=`, it may still break.",
    )


def log_call(site: BreakSite) -> CodeFix | None:
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


def warn_call(site: BreakSite) -> CodeFix | None:
    """`warnings.warn`."""
    if not site.says(r"module: _?warnings\b") and not site.reads(r"\bwarnings\.warn\("):
        return None
    return CodeFix(
        "warning",
        f"Warn in the caller, or once when the model is created. Or: {_UNLESS}.",
        f"{dynamo.CONFIG}.reorderable_logging_functions.add(warnings.warn)",
        "The warning comes after the compiled code, and names another line. With keywords, it may still break.",
    )


def clock(site: BreakSite) -> CodeFix | None:
    """`time.time`, `time.perf_counter`, `datetime.now`, `time.sleep`."""
    if not site.says(r"module: (time|datetime)\b|builtin `time\.|time function|datetime\.datetime"):
        return None
    return CodeFix(
        "clock",
        f"Read the clock outside of the compiled code: around the call, and on a GPU after `torch.cuda.synchronize()`. "
        f"Inside, it would time the launch of the work, not the work. Or: {_UNLESS}.",
    )


def file_access(site: BreakSite) -> CodeFix | None:
    """Files and the operating system."""
    files = r"builtin open|TextIOWrapper|Buffered(Writer|Reader)|(String|Bytes)IO\b"
    system = r"module: (posix|os|io|_io|shutil|socket)\b"
    if not site.says(f"{files}|{system}") and not site.reads(r"\bopen\(|\bos\.\w+\("):
        return None
    return CodeFix(
        "files",
        f"Run {site.quoted} before the compiled call and pass the result in, or after it on its outputs. "
        f"Or: {_UNLESS}.",
    )
