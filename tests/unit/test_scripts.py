"""The scripts of a checkout, and the behaviour of tests on a machine that lacks the programs that they start."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

import parallel
import programs

ROOT = Path(__file__).parents[2]
SERVERS = ("redis-server", "initdb", "chromium")
COREUTILS = ("bash", "sh", "dirname", "mkdir", "rm", "cat", "id")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with a shell, a compiler and nothing else: `bin` is all of its PATH, and the script's own checkout."""
    for folder in ("bin", "scripts"):
        (tmp_path / folder).mkdir()
    for name in COREUTILS:
        found = shutil.which(name)
        assert found
        (tmp_path / "bin" / name).symlink_to(found)
    put(tmp_path, "g++")
    script = (ROOT / "scripts/system-packages").read_text()
    copy = tmp_path / "scripts/system-packages"
    copy.write_text(script.replace("/usr/lib/postgresql", f"{tmp_path}/none"))  # Debian keeps it off the PATH
    copy.chmod(0o755)
    return tmp_path


def put(machine: Path, name: str, does: str = "") -> None:
    """Give the machine a program."""
    program = machine / "bin" / name
    program.unlink(missing_ok=True)
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)


def put_apt(machine: Path, does: str) -> None:
    """Make its user root, and give it an apt-get that notes how it is called."""
    put(machine, "id", "echo 0")
    put(machine, "apt-get", f'echo "$@" >>"{machine}/called"\n{does}')


def calls(machine: Path) -> list[str]:
    """Return how apt-get was called."""
    noted = machine / "called"
    return noted.read_text().splitlines() if noted.exists() else []


def bring(machine: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script there."""
    environment = {"PATH": str(machine / "bin"), **variables}
    command = [str(machine / "scripts/system-packages"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def installs(machine: Path) -> str:
    """Return the script of an apt-get that installs everything asked for."""
    makes = "".join(f'echo "#!/bin/sh" >"{machine}/bin/{name}"; chmod +x "{machine}/bin/{name}"; ' for name in SERVERS)
    (machine / "bin/chmod").symlink_to(shutil.which("chmod") or "")
    return f'case "$*" in *install*) {makes};; esac'


def test_what_is_missing_is_installed_where_that_may_be_done(machine: Path) -> None:
    put_apt(machine, installs(machine))
    done = bring(machine)
    assert (done.returncode, done.stdout) == (0, "")
    update, install = calls(machine)
    assert update.startswith("update ")
    assert install.endswith("redis-server postgresql chromium fonts-dejavu-core")
    assert bring(machine).returncode == 0
    assert len(calls(machine)) == 2, "nothing is missing any more"


def test_only_what_skip_without_is_installed(machine: Path) -> None:
    put_apt(machine, "")
    put(machine, "redis-server")
    put(machine, "google-chrome")
    bring(machine)
    assert calls(machine)[1].endswith("Timeout=300 postgresql")


@pytest.mark.parametrize("lacks", ["root", "apt-get"])
def test_where_nothing_may_be_installed_it_says_what_to_type(machine: Path, lacks: str) -> None:
    put(machine, "id", "echo 1000" if lacks == "root" else "echo 0")
    if lacks == "root":
        put(machine, "apt-get", f"echo called >>{machine}/called")
    done = bring(machine)
    assert done.returncode == 1
    assert "missing: redis-server postgresql chromium fonts-dejavu-core; as root: apt-get install" in done.stderr
    assert calls(machine) == []


def test_what_failed_is_tried_once_by_itself_and_again_when_asked_and_in_ci(machine: Path) -> None:
    put_apt(machine, "exit 100")
    for arguments, variables, expected in (
        (["--once"], {}, 1),
        (["--once"], {}, 1),  # it failed before
        ([], {}, 2),
        (["--once"], {"CI": "true"}, 3),
    ):
        assert bring(machine, *arguments, **variables).returncode == 1
        assert len(calls(machine)) == expected
    put(machine, "redis-server")  # another machine than the one on which it failed
    bring(machine, "--once")
    assert len(calls(machine)) == 4


def test_an_argument_that_it_does_not_know_is_refused(machine: Path) -> None:
    assert bring(machine, "--onec").returncode == 2


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment is a stand-in that prints how pytest is called."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/test", tmp_path / "scripts/test")
    for name, does in (
        ("scripts/system-packages", "exit 1"),
        ("scripts/setup", f'echo "$*" >"{tmp_path}/setup"; echo "{tmp_path}"'),
        ("bin/python", 'echo "$OMP_WAIT_POLICY" "$@"'),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "setup", "passed"),
    [
        ([], "", ""),
        (["-m", "not slow", "-x"], "", " -m not slow -x"),
        (["--torch", "2.15.0", "-n", "0"], "--torch 2.15.0", " -n 0"),
        (["tests/unit/test_zoo.py", "--torch=2.15.0", "--pdb"], "--torch=2.15.0", " tests/unit/test_zoo.py --pdb"),
    ],
)
def test_the_tests_run_on_all_cores_whatever_could_not_be_installed(
    checkout: Path, given: list[str], setup: str, passed: str
) -> None:
    done = subprocess.run([checkout / "scripts/test", *given], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"passive -m pytest -n auto --dist loadfile --max-worker-restart 0{passed}\n"
    assert (checkout / "setup").read_text().strip() == setup


@pytest.mark.parametrize("ci", [None, "", "false", "true"])
def test_a_test_without_its_program_is_skipped_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, ci: str | None) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    ends: Any = (pytest.fail.Exception, pytest.skip.Exception)
    with pytest.raises(ends, match="there is no redis-server, which this test starts: apt install redis-server") as end:
        programs.skip_without("redis-server")
    assert end.type is ends[ci != "true"]


def test_the_last_line_says_how_skipped_tests_are_run() -> None:
    lacks = "('tests/conftest.py', 60, 'Skipped: NOT TESTED: there is no {}, which this test starts: apt install x')"
    reasons = [lacks.format("redis-server"), lacks.format("Chromium"), lacks.format("redis-server")]
    others = ["('a.py', 3, 'Skipped: NOT TESTED: needs a CUDA device')", ""]
    assert programs.way_out([*reasons, *others]) == (
        "Not tested, for want of Chromium (1 test), redis-server (2 tests). "
        "To test: scripts/system-packages as root, or apt install chromium redis-server"
    )
    assert programs.way_out(others) == ""


GIB = 2**30
DOCS = len([*Path(__file__).parents[1].glob("docs/test_*.py")])


@pytest.mark.parametrize(
    ("cores", "memory", "given", "options", "expected"),
    [
        (8, 99 * GIB, ["tests"], {}, 8),
        (99, 999 * GIB, ["tests/docs", "tests/unit/test_plan.py"], {}, DOCS + 1),
        (8, 99 * GIB, ["tests/unit/test_plan.py", "tests/unit/test_zoo.py::test_a", "tests/unit/test_zoo.py"], {}, 2),
        (8, 99 * GIB, ["tests/unit/test_plan.py::test_a"], {}, 0),
        (8, 9 * GIB, ["tests"], {}, 2),
        (8, 1 * GIB, ["tests"], {}, 0),
        (1, 99 * GIB, ["tests"], {}, 0),
        (8, 99 * GIB, ["tests"], {"capture": "no"}, 0),
        (8, 99 * GIB, ["tests"], {"trace": True}, 0),
    ],
)
def test_there_are_as_many_processes_as_cores_files_and_memory_for_them(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    memory: int,
    given: list[str],
    options: dict[str, Any],
    expected: int,
) -> None:
    monkeypatch.setattr(os, "environ", {})
    arguments = [argument.replace("tests", str(ROOT / "tests"), 1) for argument in given]
    found = {"capture": "fd", "trace": False, **options}
    config: Any = SimpleNamespace(args=arguments, getoption=found.__getitem__)
    assert parallel.workers(config, cores, memory) == expected
    assert os.environ == ({"OMP_NUM_THREADS": str(cores // expected)} if expected else {})


def test_processes_of_tests_share_nothing_but_precompiled_headers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = []
    for worker in ("gw0", "gw1", "gw0"):  # and a folder of an earlier run is taken as it is
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        parallel.use_own_folder(worker)
        folders.append(Path(default_cache_dir()))
    assert folders[0] == folders[2] != folders[1]
    assert folders[0].is_relative_to(tmp_path)
    assert len({(folder / "precompiled_headers").resolve() for folder in folders}) == 1


def test_tests_on_the_gpu_stay_in_one_process() -> None:
    made = object.__new__(parallel.GpuTogether)
    scopes = [
        made._split_scope(f"tests/{file}::test_a") for file in ("gpu/test_a.py", "gpu/test_b.py", "unit/test_c.py")
    ]
    assert scopes == ["tests/gpu", "tests/gpu", "tests/unit/test_c.py"]


def test_files_of_few_tests_come_first_as_theirs_take_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    base = parallel.GpuTogether.__mro__[1]
    monkeypatch.setattr(base, "_assign_work_unit", lambda self, _node: taken.append(self.workqueue.popitem(False)[0]))
    made = object.__new__(parallel.GpuTogether)
    made.workqueue = OrderedDict.fromkeys(["of 90 tests", "of 20 tests", "of 3 tests"])
    for _ in range(3):
        made._assign_work_unit(None)
    assert taken == ["of 3 tests", "of 20 tests", "of 90 tests"]


def test_readme_names_the_scripts_on_its_first_screen() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[:24]
    assert [name for name in ("scripts/demo", "scripts/test") if not any(name in line for line in first)] == []


@pytest.fixture
def release(checkout: Path) -> Path:
    """A checkout in Git with stand-ins that note how they are called, in `called`, outside of what Git sees."""
    shutil.copy(ROOT / "scripts/release", checkout / "scripts/release")
    notes = f'echo "$(basename "$0") $*" >>"{checkout}/called"; ! grep -qxe "$1 $2" "{checkout}/bad" 2>/dev/null'
    for name, does in (("bin/python", notes), ("bin/torchwise", f'echo "$PWD" >"{checkout}/cwd"; {notes}')):
        (checkout / name).write_text(f"#!/bin/sh\n{does}\n")
        (checkout / name).chmod(0o755)
    (checkout / ".gitignore").write_text("called\nsetup\nbad\ncwd\ndist\n")
    (checkout / "dist").mkdir()
    (checkout / "scripts/setup").write_text(
        f'#!/bin/sh\necho "setup $*" >>"{checkout}/called"; mkdir -p "{checkout}/dist"; echo "{checkout}"\n'
    )
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=checkout, check=True)
    return checkout


def start_release(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run its script."""
    return subprocess.run([checkout / "scripts/release"], capture_output=True, text=True, check=False, timeout=60)


def test_a_release_is_built_checked_installed_and_tried_away_from_the_checkout(release: Path) -> None:
    done = start_release(release)
    assert done.returncode == 0, done.stderr
    called = calls(release)
    assert [line.split(" /")[0] for line in called[1:3]] == ["python -m build --outdir dist"] * 2
    assert called[2].endswith("/source/plugins/models")
    assert called[3].startswith("python -m twine check --strict dist/")
    assert called[4:6] == ["setup --wheels dist", "torchwise zoo ivhl"]
    assert called[6].startswith("torchwise tune zoo:tutorial.fusion_demo ")
    assert str(release) not in (release / "cwd").read_text()


def test_a_release_needs_a_commit_and_passes_no_bad_package(release: Path) -> None:
    for bad, last in (("-m twine", "python -m twine"), ("tune zoo:tutorial.fusion_demo", "torchwise tune")):
        (release / "bad").write_text(bad)
        assert start_release(release).returncode == 1
        assert calls(release)[-1].startswith(last)
    (release / "new.py").touch()
    done = start_release(release)
    assert (done.returncode, "uncommitted" in done.stderr) == (1, True)


def test_setup_refuses_a_folder_without_wheels(tmp_path: Path) -> None:
    for given in (["--wheels", str(tmp_path)], ["--wheels"]):
        done = subprocess.run([ROOT / "scripts/setup", *given], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, "needs a folder with wheels" in done.stderr) == (1, True)
