"""`torchwise run`: the program keeps its output and its exit code, whatever it does."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from test_program import THREADS, Searches
from typer.testing import CliRunner

from live_decisions import make_decision
from program_server import ProgramServer
from torchwise.cli import app
from torchwise.errors import InputError, StorageError
from torchwise.plan import EAGER, Plan
from torchwise.plan.requirements import Property
from torchwise.records import files
from torchwise.runtime.program import script, tuning
from torchwise.runtime.program.decisions import stays_as_written
from torchwise.runtime.program.script import Script
from torchwise.study import Request

NET = """
import os, sys, threading
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x).relu()

torch.manual_seed(0)
net, x = Net().eval(), torch.ones(3, 4)
def call(times=5):
    with torch.no_grad():
        for _ in range(times):
            out = net(x)
    return round(float(out.sum()), 4)
"""

PLAIN = {
    "words": "import sys; print(sys.argv, __name__, __file__, __package__, __spec__, __cached__, type(__builtins__))",
    "path": "import os, sys; print(sys.path[0] == os.path.dirname(__file__))",
    "annotations": "class A:\n    x: int\nprint(A.__annotations__)",
    "options": "import argparse; p = argparse.ArgumentParser(); p.add_argument('--n', type=int); p.parse_args()",
    "help": "import argparse; argparse.ArgumentParser(description=__doc__).parse_args(['--help'])",
    "reads": "import sys; print(sys.stdin.read()[::-1], end='')",
    "exits": "import sys; print('out'); sys.exit(3)",
    "message": "import sys; print('out'); sys.exit('stopped')",
    "raises": "print('out')\ndef f():\n    raise KeyError('mine') from ValueError(1)\nf()",
    "leaves": "import os, sys; print('out', flush=True); os._exit(5)",
    "killed": "import os, signal; print('out', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    "signals": (
        "import os, signal, time; signal.signal(signal.SIGUSR1, lambda *_: print('got it'))\n"
        "os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.01); print(signal.getsignal(signal.SIGINT).__name__)"
    ),
    "threads": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "pool": (
        "import concurrent.futures as f, sys, time; pool = f.ThreadPoolExecutor(2)\n"
        # In one write: `print` makes two, between which another thread may write.
        "for n in range(3): pool.submit(lambda: (time.sleep(0.05), sys.stdout.write('worked\\n')))"
    ),
    "processes": (
        "import concurrent.futures as f, multiprocessing as m\n"
        "pool = f.ProcessPoolExecutor(1, m.get_context('fork')); print(pool.submit(abs, -3).result())"
    ),
    "spawns": (
        "import multiprocessing as m\ndef f(): print('child', __name__, flush=True)\n"
        "if __name__ == '__main__':\n    m.get_context('spawn').Process(target=f).start()"
    ),
    "starts": "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', 'print(1)']))",
    "forks": "import os, sys; pid = os.fork(); sys.exit(4 if pid == 0 else os.waitstatus_to_exitcode(os.wait()[1]))",
    "prints": "import sys\nfor n in range(20000): print(n)\nsys.stdout.buffer.write(bytes(range(256)))",
    "unprintable": "print('x'); print(chr(0xd800))",
    "logs": "import logging, sys; logging.basicConfig(stream=sys.stdout, level=20); logging.info('said')",
    "closes": "import sys; print('out'); sys.stdout.close(); sys.stderr = None",
    "moves": "import os, tempfile\nwith tempfile.TemporaryDirectory() as d:\n    os.chdir(d)\nprint('out')",
    "atexit": "import atexit; atexit.register(print, 'late'); print('out')",
    "coroutines": "import asyncio\nasync def f(): return await asyncio.to_thread(abs, -3)\nprint(asyncio.run(f()))",
    "neighbours": "from pathlib import Path; import other; print(other.__name__, len(Path(__file__).read_text()))",
}
"""Programs that need no torch, and so run alone in no time."""

PROGRAMS = {
    "main": "def main():\n    print(call())\nif __name__ == '__main__':\n    main()",
    "threads": "threading.Thread(target=lambda: print(call())).start()",
    "forks": "call(); pid = os.fork(); print('child' if pid == 0 else os.waitpid(pid, 0)[1], call(), flush=True)",
    "workers": (
        "if __name__ == '__main__':\n"
        "    data = torch.utils.data.DataLoader(torch.arange(8.), batch_size=4, num_workers=2)\n"
        "    print(call(), [float(one.sum()) for one in data])"
    ),
    "compiles": "net = torch.compile(net, backend='eager', fullgraph=True); print(call())",
    "draws": "import random; call(); random.seed(0); print(torch.rand(2), random.random())",
    "stops": "call(); print('out'); sys.exit(9)",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ProgramServer]:
    with ProgramServer() as found:
        yield found


def write(folder: Path, name: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(NET + PROGRAMS[name])
    return file


def python(folder: Path, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, *words], cwd=folder, input=given, capture_output=True, check=False)


@pytest.mark.parametrize("name", list(PLAIN))
def test_a_program_keeps_its_output_and_its_exit_code(tmp_path: Path, name: str, server: ProgramServer) -> None:
    (tmp_path / "program.py").write_text(PLAIN[name])
    (tmp_path / "other.py").write_text("")
    words, given = ("program.py", "--n", "a b", "-m", "x"), b"one\ntwo\n"
    alone = python(tmp_path, *words, given=given)
    recorded = server.run(tmp_path, ["torchwise", "run", *words], given)
    assert (recorded.stdout, recorded.returncode) == (alone.stdout, alone.returncode)
    assert recorded.stderr.startswith(alone.stderr.decode())
    ends_at_once = name in ("leaves", "killed")
    assert recorded.stderr.count("program.py called no module") == (0 if ends_at_once else 1)


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_with_a_model_keeps_them_too(tmp_path: Path, name: str, server: ProgramServer) -> None:
    file = write(tmp_path, name)
    alone = server.run(tmp_path, [file.name])
    recorded = server.run(tmp_path, ["torchwise", "run", file.name])
    assert (recorded.stdout, recorded.returncode) == (alone.stdout, alone.returncode)
    assert alone.stdout != b""
    assert recorded.stderr.count(f"{file.name} ran for") == 1
    assert "Net" in recorded.stderr


def test_an_error_inside_a_model_is_printed_as_the_programs_own(tmp_path: Path, server: ProgramServer) -> None:
    (tmp_path / "broken.py").write_text(f"{NET}\ncall()\nprint('out')\nnet(torch.ones(3, 5))")
    found = server.run(tmp_path, ["torchwise", "run", "--tune", "broken.py"])
    assert (found.stdout, found.returncode) == (b"out\n", 1)
    trace, _, report = found.stderr.partition("RuntimeError: mat1 and mat2")
    assert "program/" not in trace
    assert trace.count('broken.py", line') == 2
    assert "nothing was tuned, as the program ended with exit code 1" in report


def test_ctrl_c_ends_a_program_as_its_traceback_says(tmp_path: Path, server: ProgramServer) -> None:
    (tmp_path / "waits.py").write_text(f"{NET}\ncall()\nraise KeyboardInterrupt")
    found = server.run(tmp_path, ["torchwise", "run", "waits.py"])
    assert found.returncode == 130
    assert found.stderr.splitlines()[3] == "KeyboardInterrupt"
    assert "waits.py ran for" in found.stderr


def test_reports_go_where_the_command_was_given(tmp_path: Path, server: ProgramServer) -> None:
    text = "import os, sys\nos.chdir('/')\ncall()\nsys.stderr = open(os.devnull, 'w')"
    (tmp_path / "moves.py").write_text(NET + text)
    found = server.run(tmp_path, ["torchwise", "run", "--json", "r.json", "--html", "r.html", "moves.py"])
    assert "moves.py ran for" in found.stderr
    assert json.loads((tmp_path / "r.json").read_text())["program"] == "moves.py"
    assert (tmp_path / "r.html").is_file()


def test_a_recording_on_standard_output_stands_there_alone(tmp_path: Path, server: ProgramServer) -> None:
    text = "import os, subprocess\nprint(call())\nos.write(1, b'raw\\n')\nsubprocess.run(['echo', 'child'], check=True)"
    (tmp_path / "prints.py").write_text(NET + text)
    found = server.run(tmp_path, ["torchwise", "run", "--json", "-", "prints.py"])
    assert json.loads(found.stdout)["program"] == "prints.py"
    assert {"raw", "child"} < set(found.stderr.split())


def test_a_pool_that_a_program_left_open_closes_no_other_one(tmp_path: Path) -> None:
    import concurrent.futures

    earlier = concurrent.futures.ThreadPoolExecutor(1)  # as the compiler has one
    assert earlier.submit(abs, -1).result() == 1
    file = tmp_path / "pool.py"
    file.write_text(PLAIN["pool"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "argv", [*sys.argv])
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        assert Script(str(file), [], is_module=False).run() == 0
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(abs, -3).result() == 3
    assert earlier.submit(abs, -2).result() == 2
    earlier.shutdown()


def test_collections_of_a_program_leave_out_what_torchwise_loaded(tmp_path: Path, server: ProgramServer) -> None:
    (tmp_path / "collects.py").write_text("import gc\nprint(len(gc.get_objects()) < 5000)")
    assert server.run(tmp_path, ["torchwise", "run", "collects.py"]).stdout == b"True\n"


@pytest.mark.parametrize("named", [["-m", "pack"], ["-mpack"], ["--module", "pack"], ["--module=pack"]])
def test_a_module_of_a_package_is_run_with_its_own_options(
    tmp_path: Path, server: ProgramServer, named: list[str]
) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 3")
    (package / "__main__.py").write_text(
        "import sys\nfrom .other import VALUE\nprint(VALUE, sys.argv, __package__, __spec__.name, __name__)"
    )
    alone = python(tmp_path, "-m", "pack", "--tune", "x")
    recorded = server.run(tmp_path, ["torchwise", "run", *named, "--tune", "x"])
    assert (recorded.stdout, recorded.returncode) == (alone.stdout, 0)
    assert recorded.stdout.startswith(b"3 ")


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    """Decide at once, and let the command run programs in this process."""
    found = Searches()
    monkeypatch.setattr(tuning, "search", found)
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return found


def invoke(*words: str) -> str:
    """Run `torchwise run` in this process, and return what it wrote to standard error."""
    done = CliRunner().invoke(app, ["run", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stderr


def printed_command(report: str) -> list[str]:
    """Return the words after `torchwise run` of the command that a report ends with, as a shell reads them."""
    text = report[report.index("torchwise run") :].replace("\\\n", " ").splitlines()[0]
    return shlex.split(text)[2:]


def test_the_printed_commands_lead_from_a_recording_to_a_run_by_plans(
    tmp_path: Path, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "main")
    words = ["--store", "the store's.db", "main.py", "--words of the", "program itself", *map(str, range(20))]
    tune = printed_command(invoke(*words))
    assert tune == ["--tune", *words]
    apply = printed_command(invoke(*tune))
    assert apply == ["--apply", *words]
    assert invoke(*apply).split()[-1] == "5"
    ((request, _),) = searches.asked
    assert (request.workload.calls, request.workload.restarts) == (5, 1), "as in this run"


def test_what_a_package_does_as_it_is_imported_is_recorded(
    tmp_path: Path, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "calls_at_import"
    package.mkdir()
    (package / "__init__.py").write_text(f"{NET}\ncall(5)\nassert sys.argv == ['-m', 'x'], sys.argv")
    (package / "__main__.py").write_text("import sys\nassert sys.argv == [__file__, 'x'], sys.argv")
    report = invoke("-m", "calls_at_import", "x")
    assert any(line.split()[:1] == ["Net"] for line in report.splitlines())
    with pytest.raises(InputError, match="there is no such module with Python code"):
        invoke("-m", "calls_at_import.missing")


def test_more_calls_than_recorded_are_named(tmp_path: Path, searches: Searches) -> None:
    file = write(tmp_path, "main")
    words = ["--tune", "--store", str(tmp_path / "s.db"), str(file)]
    invoke("--calls", "1e6", *words)
    invoke("--restarts", "3", *words)
    assert [(r.workload.calls, r.workload.restarts) for r, _ in searches.asked] == [(1_000_000, 1), (15, 3)]


def test_the_sizes_to_come_are_named_and_repeated_in_the_next_command(tmp_path: Path, searches: Searches) -> None:
    searches.plan = EAGER
    words = ["--tune", "--sizes", "fixed", "--wait"]
    report = invoke(*words, "--store", str(tmp_path / "s.db"), str(write(tmp_path, "main")))
    assert [(request.workload.sizes, request.wait) for request, _ in searches.asked] == [("fixed", True)]
    assert printed_command(report)[:4] == words


def judge(model: object) -> float:
    """Judge a model, for the option that names this function."""
    return 1.0 if model else 0.0


OF_A_SEARCH: dict[str, tuple[list[str], Callable[[Request], object], object]] = {
    "tolerance": (["--allow", "substituted", "--tolerance", "0.1"], lambda r: r.workload.tolerance, 0.1),
    "objective": (["--objective", "throughput"], lambda r: r.workload.objective, "throughput"),
    "iterations": (["--iterations", "50"], lambda r: r.iterations, 50),
    "fullgraph": (["--fullgraph"], lambda r: r.fullgraph, True),
    "workers": (["--workers", "2"], lambda r: r.workers, 2),
    "require": (
        ["--require", "deterministic", "--require", "bitwise"],
        lambda r: r.workload.require,
        (Property.DETERMINISTIC, Property.BITWISE),
    ),
    "plan": (
        ["--plan", "eager", "--plan", "inductor + freezing"],
        lambda r: r.plans,
        (EAGER, Plan(backend="inductor", options=(("freezing", True),))),
    ),
}


@pytest.mark.parametrize("name", OF_A_SEARCH)
def test_options_of_a_search_reach_it_and_are_repeated_in_the_next_command(
    name: str, tmp_path: Path, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "main")
    searches.plan = EAGER
    given, read, expected = OF_A_SEARCH[name]
    report = invoke("--tune", *given, "--store", "s.db", "main.py")
    assert [read(request) for request, _ in searches.asked] == [expected]
    assert printed_command(report)[: len(given) + 1] == ["--tune", *given]


def test_a_study_is_deleted_once_and_not_by_the_next_command(
    tmp_path: Path, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "main")
    searches.plan, words = EAGER, ["--store", "s.db", "main.py"]
    report = invoke("--tune", "--fresh", *words)
    assert [request.fresh for request, _ in searches.asked] == [True]
    assert printed_command(report) == ["--tune", "--calls", "1e6", *words]


def test_a_metric_in_a_file_is_found_wherever_the_program_goes(
    tmp_path: Path, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    file = tmp_path / "moves.py"
    file.write_text(f"{NET}\ncall()\nos.chdir({str(tmp_path)!r})")
    options = ["--tune", "--allow", "quantized", "--tolerance", "0.1", "--store", str(tmp_path / "s.db")]
    for metric in (f"{Path(__file__).name}:judge", "test_run_command:judge"):
        monkeypatch.chdir(Path(__file__).parent)
        invoke(*options, "--metric", metric, str(file))
    assert [request.workload.metric for request, _ in searches.asked] == [f"{__file__}:judge", "test_run_command:judge"]


def test_a_plan_of_the_programs_own_studies_is_named_by_its_id(tmp_path: Path, searches: Searches) -> None:
    words = ["--store", str(tmp_path / "s.db"), str(write(tmp_path, "main"))]
    invoke("--tune", *words)
    invoke("--tune", "--plan", THREADS.id[:12], *words)
    assert searches.asked[1][0].plans == (THREADS,)
    with pytest.raises(InputError, match="no decision in this store chose a plan with id 0123456789ab"):
        invoke("--tune", "--plan", "0123456789ab", *words)


def test_a_program_for_which_no_plan_pays_runs_alone(tmp_path: Path, searches: Searches) -> None:
    searches.plan = EAGER
    file, store = write(tmp_path, "main"), str(tmp_path / "s.db")
    tuned = invoke("--tune", "--budget", "60", "--effort", "quick", "--store", store, str(file))
    assert "No plan surely pays" in tuned
    words = ["--tune", "--effort", "quick", "--budget", "60", "--calls", "1e6"]
    assert printed_command(tuned)[: len(words)] == words
    file.write_text(
        "import gc, sys, traceback\nprint(sys.argv, sys.flags, sys.warnoptions, sys._xoptions, gc.get_freeze_count())\n"
        "print(sorted(sys.modules), traceback.extract_stack(), sys.path)\nsys.exit(7)"
    )
    options, program = ["-W", "ignore::FutureWarning", "-X", "int_max_str_digits=0"], [str(file), "--n", "a b"]
    alone = python(tmp_path, *options, "-B", *program)
    applied = python(tmp_path, *options, "-Bm", "torchwise", "run", "--apply", "--store", store, *program)
    assert (applied.stdout, applied.returncode) == (alone.stdout, 7), "the same process as without Torchwise"
    assert b"Net runs as written" in applied.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-m torchwise run --apply x.py --n 1", []),
        ("-X dev -Im torchwise run --apply x.py --n 1", ["-X", "dev", "-I"]),
        ("-Imtorchwise run --apply x.py --n 1", ["-I"]),
        ("-Xtracemalloc bin/torchwise run --apply x.py --n 1", ["-Xtracemalloc"]),
        ("-Walways::m.c -m torchwise run --apply x.py --n 1", ["-Walways::m.c"]),
        ("bin/torchwise run --apply --store s.db x.py --n 1", []),
        ("launcher.py x.py --n 1", None),
        ("-m ipykernel_launcher -f kernel.json", None),
        ("-m pytest", None),
    ],
)
def test_the_options_of_python_are_those_of_the_command_line_itself(
    line: str, expected: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = line.split()
    starts = next(at for at, word in enumerate([*own, "run"]) if word in ("run", "x.py", "-f"))
    monkeypatch.setattr(sys, "orig_argv", ["python", *own])
    monkeypatch.setattr(sys, "argv", ["torchwise", *own[starts:]])
    assert script._list_python_options(["x.py", "--n", "1"]) == expected


@pytest.mark.parametrize("named", ["-m pack", "-mpack", "--module pack", "--module=pack"])
def test_a_module_runs_alone_however_it_is_named(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = f"run --apply {named} --n 1".split()
    monkeypatch.setattr(sys, "orig_argv", ["python", "-Xdev", "bin/torchwise", *given])
    monkeypatch.setattr(sys, "argv", ["bin/torchwise", *given])
    assert script._list_python_options(["-m", "pack", "--n", "1"]) == ["-Xdev"]
    assert script._list_python_options(["-m", "other", "--n", "1"]) is None


@pytest.fixture
def written_alone(tmp_path: Path, searches: Searches) -> list[str]:
    """Return the words that apply the decisions for a program for which no plan pays."""
    searches.plan = EAGER
    words = ["--store", str(tmp_path / "s.db"), str(write(tmp_path, "main"))]
    invoke("--tune", *words)
    return ["--apply", *words]


def test_a_program_is_run_inside_the_one_that_calls_the_command_line(
    written_alone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it replaces the process"))
    done = CliRunner().invoke(app, ["run", *written_alone])
    assert float(done.stdout) > 0
    assert "Net runs as written" in done.stderr


@pytest.mark.parametrize("broken", ["stdout", "stderr", "reader", "html", "exec"])
def test_neither_a_stream_nor_a_file_keeps_a_program_from_running(
    written_alone: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str
) -> None:
    def fill_disk(_text: str, path: Path) -> None:
        raise StorageError(f"{path} cannot be written: the disk is full")

    words = ["run", *written_alone]
    if broken == "html":
        words[2:2] = ["--html", str(tmp_path / "r.html")]
        monkeypatch.setattr(files, "write_atomically", fill_disk)

    replaced: list[object] = []

    def replace_process(_file: str, given: list[str]) -> None:
        replaced.append(given)
        if broken == "exec":
            raise OSError("it may not")
        raise SystemExit(7)

    class Broken(io.StringIO):
        def write(self, *_text: str) -> int:
            raise BrokenPipeError

        flush = write  # type: ignore[assignment]

    monkeypatch.setattr(os, "execv", replace_process)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "torchwise", *words])
    monkeypatch.setattr(sys, "argv", ["torchwise", *words])
    stream = {"stdout": None, "stderr": None, "reader": Broken()}.get(broken, io.StringIO())
    monkeypatch.setattr(sys, "stdout" if broken == "stdout" else "stderr", stream)
    with pytest.raises(SystemExit) as ended:
        app(words, standalone_mode=False)
    assert ended.value.code == (0 if broken == "exec" else 7)
    assert replaced == [[sys.executable, words[-1]]]
    if broken == "html":
        assert "r.html cannot be written" in stream.getvalue()


def test_a_decision_for_other_sizes_alone_is_no_plan() -> None:
    decisions = {"Net": [make_decision(torch.sin, EAGER)], "Net/other-sizes": [make_decision(torch.sin, THREADS)]}
    assert stays_as_written(decisions)
    assert not stays_as_written({**decisions, "Other": [make_decision(torch.sin, THREADS)]})


def test_ctrl_c_ends_a_server_whose_modules_are_then_tuned(tmp_path: Path, searches: Searches) -> None:
    file = tmp_path / "serves.py"
    file.write_text(f"{NET}\ncall()\nraise KeyboardInterrupt")
    done = CliRunner().invoke(app, ["run", "--tune", "--store", str(tmp_path / "s.db"), str(file)])
    assert done.exit_code == 130
    assert len(searches.asked) == 1


def test_ctrl_c_ends_a_server_whose_main_thread_has_ended(tmp_path: Path, server: ProgramServer) -> None:
    """In a process of its own: the signal has ended that of tests, and others would wait for it without end."""
    (tmp_path / "serves.py").write_text(
        f"{NET}\ncall()\nimport signal, threading, time\n"
        "def serve():\n    time.sleep(1)\n"  # so that the main thread has ended, on a busy machine, too
        "    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)\n    time.sleep(0.3)\n"
        "threading.Thread(target=serve).start()"
    )
    found = server.run(tmp_path, ["torchwise", "run", "serves.py"])
    assert found.returncode == 130
    assert "serves.py ran for" in found.stderr
    assert "Net" in found.stderr


def test_a_store_that_cannot_be_used_is_refused_before_the_program_runs(tmp_path: Path, searches: Searches) -> None:
    file = tmp_path / "writes.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    done = CliRunner().invoke(app, ["run", "--tune", "--store", str(tmp_path / "s.txt"), str(file)])
    assert isinstance(done.exception, StorageError)
    assert not (tmp_path / "ran").exists()


def test_a_script_is_tuned_then_run_by_the_stored_plans(
    tmp_path: Path, searches: Searches, server: ProgramServer
) -> None:
    file, store = write(tmp_path, "main"), str(tmp_path / "s.db")
    written, page = tmp_path / "r.json", tmp_path / "r.html"
    words = ["--store", store, "--json", str(written), "--html", str(page), str(file)]
    done = CliRunner().invoke(app, ["run", "--tune", "--budget", "60", *words])
    assert done.exit_code == 0, done.exception
    record = json.loads(written.read_text())
    assert record["schema"] == "torchwise.recording/1"
    assert [(one["name"], one["calls"], one["speedup"]["mid"]) for one in record["modules"]] == [("Net", 5, 2.0)]
    assert "main.py" in page.read_text()
    shown = done.stdout
    applied = CliRunner().invoke(app, ["run", "--apply", "--store", store, str(file)])
    assert applied.exit_code == 0, applied.exception
    assert applied.stdout == shown
    later = server.run(tmp_path, ["torchwise", "run", "--apply", "--store", store, file.name])
    assert later.returncode == 0
    row = next(line.split() for line in later.stderr.splitlines() if line.split()[:1] == ["Net"])
    assert row[-1] == "5"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no program is given: name a script, or a module with -m MODULE"),
        (["nothing.py"], "script is 'nothing.py', but there is no such file"),
        (["-m", "no.such"], "module is 'no.such', but"),
        (["--tune", "--apply", "x.py"], "--tune and --apply are given"),
        (["--apply", "--json", "r.json", "x.py"], "only a recording is written as JSON"),
        (["--budget", "9", "x.py"], "--budget is given without --tune"),
        (["--apply", "--calls", "1e6", "x.py"], "--calls is given without --tune"),
        (["--require", "bitwise", "x.py"], "--require is given without --tune"),
        (["--plan", "eager", "x.py"], "--plan is given without --tune"),
        (["--fresh", "x.py"], "--fresh is given without --tune"),
        (["--fullgraph", "--apply", "x.py"], "--fullgraph is given without --tune"),
        (["--tune", "--tolerance", "0", "{}"], "tolerance is 0.0, but must be above 0 and finite"),
        (["--tune", "--metric", "a:b", "{}"], "a metric is given, but no tolerance"),
        (
            ["--tune", "--tolerance", "0.1", "--metric", "no.py:f", "{}"],
            "--metric: target is 'no.py:f', but there is no file 'no.py'",
        ),
        (["--tune", "--tolerance", "0.1", "--metric", "garbage", "{}"], "'garbage'"),
        (["--tune", "--tolerance", "0.1", "--metric", "distribution", "{}"], "leave --tolerance (tolerance) out"),
        (["--tune", "--require", "determinist", "{}"], "require is 'determinist', but must be one of"),
        (["--tune", "--objective", "speed", "{}"], "objective is 'speed', but must be one of latency"),
        (["--tune", "--iterations", "4", "{}"], "iterations is 4, but must be a whole number from 5 to 400"),
        (["--tune", "--plan", "fastest", "{}"], "plan is 'fastest', but must be a plan's words"),
        (
            ["--tune", "--plan", "inductor + int8_weights", "{}"],
            "is quantized, but only up to same-precision is allowed",
        ),
        (["--apply", "--store", "missing.db", "nothing.py"], "script is 'nothing.py'"),
    ],
)
def test_bad_input_is_named_with_the_way_out(words: list[str], message: str, tmp_path: Path) -> None:
    unrun = tmp_path / "unrun.py"
    unrun.write_text("raise AssertionError('the program must not run before its options are checked')")
    done = CliRunner().invoke(app, ["run", *(word.format(unrun) for word in words)])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_a_script_with_a_mistake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f(:")
    done = CliRunner().invoke(app, ["run", str(tmp_path / "bad.py")])
    assert isinstance(done.exception, InputError)
    assert "bad.py is no Python program" in str(done.exception)
