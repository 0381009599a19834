"""Libraries that the workers' server imports once: found in a target, and never a user's own file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial import preload
from torchwise.trial.job import Job
from torchwise.trial.preload import VARIABLE, import_listed, list_imports

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

class transformers_like:
    pass
"""


def list_for(target: str, device: str = "cpu") -> list[str]:
    return list_imports(SimpleNamespace(workload=WorkloadSpec(target, device=device)))


def test_imports_at_the_top_and_in_the_factory_count(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(FILE)
    top = ["transformers.models.bert", "diffusers:UNet2DModel", "diffusers:something"]
    assert list_for(f"{file}:plain") == [*top, "transformers:AutoModel"], "as the file is about such a library"
    found = list_for(f"{file}:sentence")
    assert found == [*top, "transformers:BertConfig", "timm.layers", "transformers:AutoModel"]


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


def test_targets_by_prefix_and_live_models(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_for("hf:gpt2@decode,length=64") == ["transformers:PreTrainedModel"]
    for name in list(sys.modules):
        if name.partition(".")[0] in preload.LIBRARIES:
            monkeypatch.delitem(sys.modules, name)
    assert list_for("live model") == []
    for name in ("timm.models", "timm.models.resnet", "timm.data", "transformers.models.vit.modeling_vit", "my.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert list_for("live model") == ["timm.models", "transformers.models.vit.modeling_vit"]


def test_a_server_for_a_gpu_imports_none_and_other_jobs_have_the_target_inside() -> None:
    assert list_for("hf:gpt2", device="cuda") == []
    inner = SimpleNamespace(workload=WorkloadSpec("hf:gpt2", device="cpu"))
    assert list_imports(SimpleNamespace(job=inner)) == ["transformers:PreTrainedModel"]
    assert list_imports(object()) == []
    assert list_imports(Job) == []


def test_what_fails_to_import_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = []

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            imported.append(name)
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "lazy_library", Lazy("lazy_library"))
    monkeypatch.setenv(VARIABLE, "lazy_library:Model,no_such_module_at_all,,lazy_library:Other")
    import_listed()
    assert imported == ["Model", "Other"]
    monkeypatch.delenv(VARIABLE)
    import_listed()


@pytest.mark.slow
def test_a_second_worker_finds_the_library_imported(tmp_path: Path) -> None:
    """In a process of its own, as the server of this one runs already."""
    model = tmp_path / "model.py"
    model.write_text(
        "def make():\n"
        "    import torch\n"
        "    import torchvision as _  # noqa\n"
        "    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n"
    )
    package = tmp_path / "site" / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'imports')!r}, 'a').write('x')\n")
    code = (
        "import torchwise\n"
        f"torchwise.tune({f'{model}:make'!r}, plans=[torchwise.Plan(threads=1)], budget=30, "
        f"store={str(tmp_path / 's.db')!r}, effort='quick')\n"
    )
    script = tmp_path / "run.py"
    script.write_text("if __name__ == '__main__':\n    " + code.replace("\n", "\n    ").rstrip() + "\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    subprocess.run([sys.executable, str(script)], check=True, env=environment, capture_output=True, timeout=120)
    assert (tmp_path / "imports").read_text() == "x", "by the server alone, for all workers"
