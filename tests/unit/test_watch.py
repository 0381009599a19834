"""`torchwise.watch()` and the trace beneath it: the events it hears, and that listening changes nothing."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torchwise._torch import dynamo
from torchwise._torch.private_name import PrivateName
from torchwise.diagnose import events, messages
from torchwise.diagnose.trace import Trace, Watch, watch
from torchwise.errors import InputError, UnsupportedError
from torchwise.records.compile_events import CompileEvents, UncompiledKind

ONES = torch.ones(3)
TRACE = logging.getLogger("torch.__trace")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    before = TRACE.level, TRACE.disabled, TRACE.propagate
    yield
    assert (TRACE.level, TRACE.disabled, TRACE.propagate) == before
    assert not [one for one in TRACE.handlers if type(one).__module__.startswith("torchwise")]


def select_wave(x: Tensor, factor: object = 2) -> Tensor:
    return x.sin() if factor == "sine" else x.cos()


def print_once(x: Tensor) -> Tensor:
    y = x + 1
    print("once", end="\r")
    return y * 2


def compile_eager(call: object) -> object:
    return torch.compile(call, backend="eager")


def test_a_compilation_has_its_function_its_seconds_and_its_sizes() -> None:
    with Trace() as trace:
        compile_eager(select_wave)(ONES)

    (one,) = trace.compilations
    assert (one.function, one.line) == ("select_wave", select_wave.__code__.co_firstlineno)
    assert one.compile_id.endswith("/0"), "the first of its frame, whatever was compiled before"
    assert one.file == __file__
    assert 0 < one.trace_s < one.seconds
    assert one.phases["dynamo"] == pytest.approx(one.seconds)
    assert max(one.phases.values()) <= one.seconds
    assert one.guards > 0
    assert (one.graph_ops, one.failed, one.is_forward) == (1, "", True)
    assert trace.breaks == trace.recompiles == trace.fallbacks == trace.notes == ()


def test_seconds_of_an_earlier_compilation_of_the_same_name_are_not_counted_again() -> None:
    from torch._logging._internal import structured_logging_overhead

    compile_eager(select_wave)(ONES)
    with Trace() as trace:
        for _ in range(2):
            torch._dynamo.reset()
            compile_eager(select_wave)(ONES)

    first, second = trace.compilations
    assert first.compile_id == second.compile_id == "0/0"
    assert 0 < first.trace_s + second.trace_s < structured_logging_overhead["0_0"]
    assert second.trace_s < second.seconds


def test_parts_after_a_break_belong_to_their_function() -> None:
    with Trace() as trace:
        compile_eager(print_once)(ONES)

    assert [one.function for one in trace.compilations] == ["print_once", "print_once"]
    assert [(one.line, one.count) for one in trace.breaks] == [(print_once.__code__.co_firstlineno + 2, 1)]


def test_a_recompilation_names_the_guard_and_what_varies() -> None:
    call = compile_eager(select_wave)
    with Trace() as trace:
        for factor in ("sine", "a", "b"):
            call(ONES, factor)

    (one,) = trace.recompiles
    assert (one.function, one.file, one.source, one.count) == ("select_wave", __file__, "factor", 2)
    assert one.guard == "factor == 'a'"
    assert one.varies == "the value of factor: 'sine', 'a', then another"
    assert one.compile_ids == ("0/1", "0/2")
    assert one.stack[-1].line == select_wave.__code__.co_firstlineno + 1


def test_a_function_compiled_before_anybody_listened_is_named_all_the_same() -> None:
    call = compile_eager(select_wave)
    call(ONES, "sine")
    with Trace() as trace, torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=False):
        call(ONES, "a")

    (one,) = trace.recompiles
    assert (one.function, one.file) == ("select_wave", __file__)


def test_reaching_the_limit_is_a_fallback() -> None:
    call = compile_eager(select_wave)
    with Trace() as trace, torch._dynamo.config.patch(recompile_limit=2):
        for factor in "abcde":
            call(ONES, factor)

    (one,) = trace.fallbacks
    assert (one.kind, one.function, one.file) == (UncompiledKind.RECOMPILE_LIMIT, "select_wave", __file__)
    assert len(trace.compilations) == 3
    assert "limit" in trace.compilations[-1].failed


def test_a_function_left_uncompiled_is_a_fallback() -> None:
    def print_then_add(x: Tensor) -> Tensor:
        try:
            print("within", end="\r")
        finally:
            x = x + 1
        return x

    with Trace() as trace:
        compile_eager(print_then_add)(ONES)

    assert [(one.kind, one.function) for one in trace.fallbacks] == [(UncompiledKind.WHOLE_FUNCTION, "print_then_add")]
    assert [one.whole for one in trace.breaks] == [True]
    assert [one.graph_break for one in trace.fallbacks] == [one.where for one in trace.breaks]


@pytest.mark.parametrize(
    ("payload", "source", "varies"),
    [
        (
            "0/0: tensor 'x' size mismatch at index 1. expected 3, actual 4",
            "x",
            "the size of dimension 1 of x: 3, then 4",
        ),
        (
            "[\"0/1: tensor 'x' size mismatch at index 0. expected 4, actual 5\", "
            "\"0/0: tensor 'x' size mismatch at index 0. expected 3, actual 5\"]",
            "x",
            "the size of dimension 0 of x: 3, 4, then 5",
        ),
        (
            "0/0: tensor 'x' dtype mismatch. expected Float, actual Double",
            "x",
            "the dtype of x: Float, then Double",
        ),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0", "x", "whether x requires a gradient"),
        ("0/0: GLOBAL_STATE changed: grad_mode ", "", "the state of PyTorch: whether gradients are recorded"),
        ("0/0: len(xs) == 1      # def f(xs)  # a.py:16 in f", "xs", "the length of xs: 1, then another"),
        (
            "0/0: G['m']._modules['drop'].training == True      # y  # nn/modules/dropout.py:73 in forward",
            "G['m']._modules['drop']",
            "the mode of G['m']._modules['drop']: train() or eval()",
        ),
        (
            "0/0: ___check_obj_id(fn, 140529590037984), type=<class 'function'>  # def f  # a.py:19 in f",
            "fn",
            "which object fn is (it was <class 'function'>)",
        ),
        ("2/0: x is y      # def f8(x,y): return x+y  # a.py:21 in f8", "x", "whether x and y are one object"),
        ("3/1: 2 <= x.size()[0]  # y  # a.py:1 in f (why)", "x.size()[0]", None),
        ("3/0: (x.size()[0] % 2) == 0  # y  # a.py:1 in f (_dynamo/x.py:3 in g)", "x.size()[0]", None),
        (
            "0/3: expected type of 'x' to be a tensor type, ' but found <class 'torch.nn.Parameter'>",
            "x",
            "the type of x: now <class 'torch.nn.Parameter'>",
        ),
        ("0/0: something never seen", "", "this no longer holds: something never seen"),
    ],
)
def test_guards_are_read(payload: str, source: str, varies: str | None) -> None:
    failures = messages.read_failures(payload)

    assert failures[0].source == source
    if varies:
        assert messages.describe_variation(failures) == varies
    else:
        assert source in messages.describe_variation(failures)


def test_complex_operators_that_run_as_in_eager_are_a_fallback() -> None:
    graph = """class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[3]cpu"):
        sin: "f32[3]cpu" = torch.ops.aten.sin.default(primals_1)
        mul: "c64[3]cpu" = torch.ops.aten.mul.Tensor(sin, 1j);  sin = None
        abs_1: "f32[3]cpu" = torch.ops.aten.abs.default(mul);  mul = None
        sort: "f32[3]cpu" = torch.ops.aten.sort.default(abs_1)
    """
    code = "\n".join(f"buf = torch.ops.aten.{op}(x)" for op in ("mul.Tensor", "abs.default", "sort.default"))
    metrics = {"compile_id": "0/0", "co_name": "f", "co_filename": "a.py", "co_firstlineno": 1, "duration_us": 5}
    heard = events.Events(False, False)
    where = {"frame_id": 0, "frame_compile_id": 0}
    heard.add({"artifact": {"name": "inductor_post_grad_graph"}, **where}, graph)
    heard.add({"inductor_output_code": {"filename": "x.py"}, **where}, code)
    heard.add({"compilation_metrics": metrics}, None)

    (one,) = heard.fallbacks.values()
    assert one.kind is UncompiledKind.COMPLEX
    assert one.what.endswith(": abs, mul")
    assert not events.is_complex('x: "f32[3]"')


def test_a_cuda_graph_that_was_skipped_is_a_fallback_once() -> None:
    metrics = {
        "compile_id": "0/0",
        "co_name": "f",
        "cudagraph_skip_reason": "skipping cudagraphs due to mutated inputs",
    }
    heard = events.Events(False, False)
    heard.add({"compilation_metrics": metrics}, None)
    heard.add_skips(3)

    assert [(one.kind, one.count) for one in heard.fallbacks.values()] == [
        (UncompiledKind.CUDAGRAPH_SKIP, n) for n in (1, 2)
    ]


def test_artifacts_and_steps_are_kept_when_asked_for_only() -> None:
    with (
        Trace(artifacts=["dynamo_output_graph"], spans=True) as asked,
        Trace(artifacts=True) as all_of,
        Trace() as none,
    ):
        compile_eager(select_wave)(ONES)

    (graph,) = asked.artifacts
    assert (graph.name, graph.compile_id) == ("dynamo_output_graph", "0/0")
    assert "cos" in graph.text
    assert len(all_of.artifacts) > 1
    assert none.artifacts == () == none.spans
    whole = next(span for span in asked.spans if span.name == "entire_frame_compile")
    assert whole.compile_id == "0/0"
    assert whole.seconds == pytest.approx(asked.compilations[0].seconds, rel=0.2)


def test_each_of_several_listeners_hears_its_own_time() -> None:
    outer = Trace().start()
    compile_eager(select_wave)(ONES)
    with Trace() as inner:
        compile_eager(print_once)(ONES)
    outer.stop()
    compile_eager(lambda x: x * 3)(ONES)

    assert [one.function for one in inner.compilations] == ["print_once", "print_once"]
    assert [one.function for one in outer.compilations] == ["select_wave", "print_once", "print_once"]


def test_what_other_threads_compile_is_heard() -> None:
    with Trace() as trace:
        thread = threading.Thread(target=lambda: compile_eager(select_wave)(ONES))
        thread.start()
        thread.join()

    assert [one.function for one in trace.compilations] == ["select_wave"]


def test_it_detaches_when_the_program_raises() -> None:
    before = list(TRACE.handlers)
    with pytest.raises(ZeroDivisionError), Trace():
        raise ZeroDivisionError
    assert list(TRACE.handlers) == before


def test_another_listener_that_leaves_makes_nobody_deaf() -> None:
    """PyTorch's own handler removes itself at the first record, while the list of handlers is walked."""

    class Leaver(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            TRACE.removeHandler(self)

    TRACE.addHandler(Leaver())
    with Trace(artifacts=True) as trace:
        TRACE.debug("", extra={"metadata": {"artifact": {"name": "first"}}, "payload": "heard"})
    assert [one.name for one in trace.artifacts] == ["first"]


def test_a_record_that_cannot_be_read_costs_a_note_and_no_more() -> None:
    with Trace() as trace:
        TRACE.debug("", extra={"metadata": {"compilation_metrics": {"duration_us": "soon"}}, "payload": None})
        TRACE.debug("", extra={"metadata": {"artifact": {"name": "recompile_reasons"}}, "payload": "[not JSON"})
        TRACE.debug("", extra={"metadata": {"artifact": 3}, "payload": "x"})
        TRACE.debug("a record of another kind")
        compile_eager(select_wave)(ONES)

    assert len(trace.compilations) == 1
    assert len(trace.notes) == 3
    assert all("could not be read" in note for note in trace.notes)


def test_logging_that_switches_the_trace_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with Trace() as trace:
        monkeypatch.setattr(TRACE, "disabled", True)
    assert "disables PyTorch's trace" in trace.notes[0]
    monkeypatch.undo()

    others = list(TRACE.handlers)
    with Trace() as other:
        TRACE.handlers = others
    assert "removed every handler" in other.notes[0]


def test_a_compilation_without_metrics_is_told() -> None:
    heard = {"dynamo_output_graph": {}, "frame_id": 7, "frame_compile_id": 0}
    with Trace() as trace:
        TRACE.debug("", extra={"metadata": heard, "payload": "class GraphModule"})
    assert "no metrics for 1 compilation" in trace.notes[0]


def test_a_version_without_the_trace_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "TRACE_LOG", PrivateName("torch._logging._internal", "no_such_log"))
    with pytest.raises(UnsupportedError, match=r"watching the compiler needs .*no_such_log"):
        Trace().start()


def test_a_watch_prints_one_summary_when_it_stops(capsys: pytest.CaptureFixture[str]) -> None:
    with watch() as seen:
        compile_eager(print_once)(ONES)
    seen.stop()

    out, err = capsys.readouterr()
    assert "Torchwise" not in out
    assert err.count("Torchwise watched PyTorch's compiler") == 1
    assert "print" in err
    assert f"{Path(__file__).name}:{print_once.__code__.co_firstlineno + 2}" in err.replace("\n  ", "").replace(
        "\n", ""
    )


def test_a_watch_without_printing_has_its_summary_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    seen = watch(print=False)
    compile_eager(print_once)(ONES)
    call = compile_eager(select_wave)
    call(ONES, "a")
    call(ONES, "b")
    watched = seen.stop()

    assert capsys.readouterr().err == ""
    summary = " ".join(seen.summary().split())  # where a line ends depends on how many digits the seconds have
    for word in ("1 graph break,", "1 recompilation,", "the value of factor: 'a', then another", "is_compiling"):
        assert word in summary
    assert CompileEvents.from_json(seen.to_json()) == watched
    assert json.loads(seen.to_json())["schema"] == "torchwise.watched/1"
    assert watched.compile_s == sum(one.seconds for one in watched.compilations)


def test_a_watch_over_nothing_says_so() -> None:
    with watch(print=False) as seen:
        select_wave(ONES)
    assert "nothing was compiled" in seen.summary()


def test_a_summary_that_cannot_be_printed_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    with watch():
        monkeypatch.setattr(sys, "stderr", closed)


def test_print_must_be_a_bool() -> None:
    with pytest.raises(InputError, match="print is 'yes', but must be True or False"):
        watch(print="yes")  # type: ignore[arg-type]


def test_a_watch_made_directly_has_not_begun() -> None:
    seen = Watch(print_summary=False)
    compile_eager(select_wave)(ONES)
    assert seen.seen.compilations == ()


@pytest.mark.parametrize("traced", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_watch_that_is_never_stopped_prints_when_the_process_ends(tmp_path: Path, traced: bool) -> None:
    """Runs in a process of its own, once beside the user's own TORCH_TRACE, which must be as complete as without."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nfrom torchwise.diagnose.trace import watch\nwatch()\n"
        "def f(x):\n    y = x + 1\n    print('hello')\n    return y * 2\n"
        "torch.compile(f, backend='eager')(torch.ones(3))\n"
    )
    own = {"TORCH_TRACE": str(tmp_path / "own")} if traced else {}
    ran = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **own},
        check=True,
    )
    assert ran.stdout == "hello\n"
    assert ran.stderr.count("Torchwise watched") == 1
    assert "1 graph break" in ran.stderr
    if traced:
        (log,) = (tmp_path / "own").glob("*.log")
        text = log.read_text()
        assert "dynamo_graph_break_reason" in text
        assert text.count('"compilation_metrics"') == 2
        assert "entire_frame_compile" in text[: text.index("dynamo_start")]
