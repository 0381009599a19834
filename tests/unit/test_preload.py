"""Libraries that the workers' server imports once for a command: which, when, and when not."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import torchwise.cli
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial import preload
from torchwise.trial.loading import save
from torchwise.trial.preload import NOTHING, VARIABLE, import_listed, list_imports
from torchwise.workload import Example, Workload

FILE = """
import numpy, my_package
import transformers.models.bert as bert
from diffusers import UNet2DModel, something
from .transformers import local

def plain():
    return 1

def sentence(seed):
    from transformers import BertConfig
    import timm.layers
    return transformers.AutoModel
"""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "GPU_FILES", ())


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make stand-ins for the libraries, on the path. Later tests in this process find the real ones again."""
    site = tmp_path / "site"
    for name in preload.LIBRARIES:
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(site))
    real = take_libraries()
    yield site
    take_libraries()
    sys.modules.update(real)


def take_libraries() -> dict[str, ModuleType]:
    """Take the libraries out of the loaded modules, with all that lies in them."""
    loaded = [name for name in sys.modules if name.partition(".")[0] in preload.LIBRARIES]
    return {name: sys.modules.pop(name) for name in loaded}


def list_for(target: str, device: str = "cpu") -> list[str]:
    told = list_imports(SimpleNamespace(workload=WorkloadSpec(target, device=device)), in_command=True)
    return [name for name, _ in json.loads(told)]


@pytest.mark.usefixtures("libraries")
def test_imports_at_the_top_and_in_the_factory_count(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(FILE)
    top = ["transformers.models.bert", "diffusers:UNet2DModel", "diffusers:something"]
    assert list_for(f"{file}:plain") == [*top, "transformers:AutoModel"], "as the file is about such a library"
    inside = ["transformers:BertConfig", "timm.layers", "transformers:AutoModel"]
    assert list_for(f"{file}:sentence") == [*top, *inside]


@pytest.mark.usefixtures("libraries")
def test_imports_of_other_factories_do_not(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("def one():\n    import transformers\n    transformers.A\ndef other():\n    return 1\n")
    assert list_for(f"{file}:one") == ["transformers", "transformers:A"]
    assert list_for(f"{file}:other") == []


@pytest.mark.parametrize("text", ["def broken(:", "\0", None])
def test_a_file_that_cannot_be_read_is_left_to_the_worker(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "model.py"
    if text is not None:
        file.write_text(text)
    assert list_for(f"{file}:make") == []


@pytest.mark.usefixtures("libraries")
def test_targets_by_prefix_and_those_without_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_for("hf:gpt2@decode,length=64") == ["transformers:PreTrainedModel"]
    assert list_for("zoo:tutorial.fusion_demo") == []
    assert list_for("hf:gpt2", device="cuda") == ["transformers:PreTrainedModel"]
    inner = SimpleNamespace(workload=WorkloadSpec("hf:gpt2", device="cpu"))
    assert list_imports(SimpleNamespace(job=inner), in_command=True) != NOTHING
    assert list_imports(SimpleNamespace(job=inner), in_command=False) == NOTHING
    assert list_imports(object(), in_command=True) == NOTHING
    assert list_for("timm:resnet18") == ["timm"]
    monkeypatch.setattr(preload, "GPU_FILES", (__file__,))
    assert [list_for("hf:gpt2"), list_for("timm:resnet18")] == [[], ["timm"]], "where a GPU can be seen"


def test_a_library_beside_the_target_is_not_taken_for_the_installed_one(libraries: Path, tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("")
    file = tmp_path / "model.py"
    file.write_text("import timm, transformers\n")
    told = dict(json.loads(list_imports(SimpleNamespace(workload=WorkloadSpec(f"{file}:make")), in_command=True)))
    assert told == {"timm": str(tmp_path / "timm.py"), "transformers": str(libraries / "transformers" / "__init__.py")}


def write_model(file: Path) -> None:
    """Write a live model with a layer of a library."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), sys.modules["timm.layers.own"].Layer())
    save(Workload(model, (Example((torch.ones(1, 2),)),)), str(file))


@pytest.mark.parametrize("in_command", [False, True])
def test_the_classes_of_a_live_model_count(libraries: Path, tmp_path: Path, in_command: bool) -> None:
    (libraries / "timm" / "layers").mkdir()
    (libraries / "timm" / "layers" / "__init__.py").write_text("")
    (libraries / "timm" / "layers" / "own.py").write_text("import torch\nclass Layer(torch.nn.Module):\n    pass\n")
    importlib.import_module("timm.layers.own")
    importlib.import_module("diffusers")  # which the model has nothing of
    file = tmp_path / "model.pt"
    write_model(file)
    live = SimpleNamespace(workload=WorkloadSpec("live:Net", device="cpu"), source=str(file))
    told = json.loads(list_imports(live, in_command=in_command))
    assert told == [["timm.layers.own", str(libraries / "timm" / "__init__.py")]]


def test_commands_have_libraries_imported() -> None:
    commands = Path(torchwise.cli.__file__).parent
    made = re.findall(r"ProcessLauncher\(.*?\)", "\n".join(file.read_text() for file in commands.glob("*.py")))
    assert made == ["ProcessLauncher(preloads=True)"] * len(made)
    assert len(made) >= 5


@pytest.mark.parametrize("text", [b"", b"no archive", None])
def test_a_live_model_that_cannot_be_read_is_left_to_the_worker(tmp_path: Path, text: bytes | None) -> None:
    file = tmp_path / "model.pt"
    if text is not None:
        file.write_bytes(text)
    live = SimpleNamespace(workload=WorkloadSpec("live:Net", device="cpu"), source=str(file))
    assert list_imports(live, in_command=False) == NOTHING


def listen(monkeypatch: pytest.MonkeyPatch, site: Path, name: str, text: str) -> str:
    """Write a library, and tell the server to import it."""
    (site / name / "__init__.py").write_text(text)
    monkeypatch.setattr(preload, "imported", [])
    monkeypatch.setenv(VARIABLE, json.dumps([[f"{name}:Model", str(site / name / "__init__.py")]]))
    return name


def test_a_listed_library_is_imported_in_silence_and_remembered(
    libraries: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    name = listen(monkeypatch, libraries, "timm", "import os\nos.write(1, b'noise')\nMODEL = 1\n")
    import_listed()
    assert name in sys.modules
    assert [module.__name__ for module in preload.imported] == [name]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "text", ["raise SystemExit(3)", "raise RuntimeError", "def __getattr__(name): raise KeyboardInterrupt"]
)
def test_a_library_that_fails_is_left_to_the_worker(
    libraries: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    listen(monkeypatch, libraries, "timm", text)
    import_listed()
    assert ("timm" in sys.modules) == text.startswith("def"), "without the attribute that failed"


def test_a_library_from_elsewhere_is_not_imported(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = listen(monkeypatch, libraries, "timm", "")
    monkeypatch.setenv(VARIABLE, json.dumps([[name, "/elsewhere/timm/__init__.py"]]))
    import_listed()
    assert name not in sys.modules
    monkeypatch.delenv(VARIABLE)
    import_listed()


@pytest.mark.parametrize("what", ["threads", "gpu"])
def test_a_server_that_may_not_be_forked_ends(libraries: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    listen(monkeypatch, libraries, "timm", "")
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    counts = iter((1, 2) if what == "threads" else (1, 1))
    monkeypatch.setattr(preload, "_count_threads", lambda: next(counts))
    monkeypatch.setattr(preload, "_holds_gpu", lambda: what == "gpu")
    import_listed()
    assert ended == [1]


def test_a_cuda_that_was_set_up_counts_as_held(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = ModuleType("torch")
    stand_in.cuda = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    assert preload._holds_gpu()
    stand_in.cuda = SimpleNamespace(is_initialized=lambda: False)
    assert not preload._holds_gpu()


BRIEF_CLI = Path(__file__).parent.parent / "brief.py"
NOTE = "open({file!r}, 'a').write(str(__file__) + '\\n')\n"


SEES_GPU = any(Path(file).exists() for file in preload.GPU_FILES)


def tune(tmp_path: Path, library: str, *more: str) -> list[str]:
    """Tune a target that imports a library by the command, and return the file of the library for each import."""
    file = tmp_path / "imports"
    (tmp_path / "model.py").write_text(
        "def make():\n    import torch, torchvision as _\n    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n"
    )
    package = tmp_path / "site" / "torchvision"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(NOTE.format(file=str(file)) + library)
    words = [f"{tmp_path / 'model.py'}:make", "--device", "cpu", "--effort", "quick", "--budget", "90"]
    for threads in (1, 2):  # the worker of the inspection tries the first of two plans, and another one the second
        words += ["--plan", f'{{"schema":"torchwise.plan/1","threads":{threads}}}']
    words += ["--store", str(tmp_path / "store.db"), *more]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, str(BRIEF_CLI), "tune", *words]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, timeout=200)
    assert done.returncode in (0, 4), done.stderr[-2000:]  # whether the plan is faster is open on a busy machine
    return file.read_text().splitlines()


@pytest.mark.slow
@pytest.mark.skipif(SEES_GPU, reason="where a GPU can be seen, torchvision is left to the workers")
def test_the_workers_of_a_command_find_the_library_imported(tmp_path: Path) -> None:
    library = "import numpy.linalg, scipy.linalg, scipy.sparse\n"
    assert len(tune(tmp_path, library)) == 1, "by the server alone, for all workers"


@pytest.mark.slow
@pytest.mark.skipif(SEES_GPU, reason="where a GPU can be seen, torchvision is left to the workers")
def test_a_library_that_starts_threads_or_ends_the_server_is_imported_by_each_worker(tmp_path: Path) -> None:
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    assert len(tune(tmp_path, threads)) >= 3, "by a server that ended, and by each worker"


def test_a_server_that_has_a_driver_open_holds_the_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = tmp_path / "nvidia0"
    driver.touch()
    monkeypatch.setattr(preload, "DRIVER_FILES", (str(driver),))
    assert not preload._holds_gpu()
    with driver.open():
        assert preload._holds_gpu()


@pytest.mark.slow
def test_workers_import_the_library_beside_the_target(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text(NOTE.format(file=str(tmp_path / "imports")))
    files = tune(tmp_path, "")
    assert len(files) >= 2
    assert set(files) == {str(tmp_path / "torchvision.py")}
