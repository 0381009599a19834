"""The programs of `examples/programs/`, one for each library: plain scripts that run, and repeat their answers."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "programs"
TIMED = FOLDER.parents[1] / "benchmarks" / "programs"
LIBRARIES = {
    "accelerate_training": "accelerate",
    "diffusers_pipeline": "diffusers",
    "fastapi_service": "fastapi",
    "lightning_fit": "pytorch_lightning",
    "ray_serve": "ray.serve",
    "sentence_encoder": "transformers",
    "timm_images": "timm",
    "transformers_generate": "transformers",
    "transformers_pipeline": "transformers",
    "transformers_trainer": "transformers",
}


def test_every_program_is_run_and_none_names_torchwise() -> None:
    programs = {file.stem: file.read_text().lower() for file in FOLDER.glob("*.py")}
    assert programs.keys() == LIBRARIES.keys()
    timed = {file.stem: file.read_text().lower() for file in TIMED.glob("*.py")}
    assert [name for name, text in {**programs, **timed}.items() if "torchwise" in text] == []
    assert timed.keys() == {"llama", "stable_diffusion"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.models] if name == "timm_images" else []) for name in LIBRARIES]
)
def test_a_program_runs_without_a_network_and_repeats_its_answers(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    try:
        importlib.import_module(LIBRARIES[name])
    except Exception as error:  # a build for another torch may raise any error, such as a RuntimeError
        pytest.skip(f"NOT TESTED: {name} needs {LIBRARIES[name]}, which cannot be imported ({error})")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "2"])
    printed = []
    for _ in range(2):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""
    assert list(tmp_path.iterdir()) == [], "a program leaves nothing behind"
