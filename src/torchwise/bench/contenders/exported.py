"""Contenders that first export the model with `torch.export`: AOTInductor and ONNX Runtime."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchwise.bench.contenders.contender import Setting, inference_only, lacks
from torchwise.workload import Example, Workload


class AOTInductor:
    """Inductor's ahead-of-time package."""

    name = "aot-inductor"

    def missing(self, setting: Setting) -> str | None:
        """Return why it cannot run here, or None."""
        return inference_only(setting, self.name)

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:  # noqa: ARG002
        """Export, compile, package and load."""
        from torchwise._torch import inductor

        example = workload.examples[0]
        exported = torch.export.export(_module(workload), example.args, dict(example.kwargs))
        package = str(Path(_folder(), "model.pt2"))
        loaded: Callable[..., Any] = inductor.AOTI_LOAD.get()(
            inductor.AOTI_PACKAGE.get()(exported, package_path=package)
        )
        return loaded


class OnnxRuntime:
    """ONNX Runtime, on the CPU or with its CUDA provider. Tensors are shared without copies if possible."""

    name = "onnxruntime"

    def missing(self, setting: Setting) -> str | None:
        """Return why it cannot run here, or None."""
        missing = [lacks(name, name) for name in ("onnxruntime", "onnxscript", "onnx")]
        why = inference_only(setting, self.name) or next(filter(None, missing), None)
        if why or setting.device == "cpu":
            return why
        import onnxruntime

        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            return None
        return "this onnxruntime has no CUDA provider: pip install onnxruntime-gpu"

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:
        """Export to ONNX and open a session."""
        import onnxruntime

        example = workload.examples[0]
        file = str(Path(_folder(), "model.onnx"))
        program = torch.onnx.export(
            _module(workload), example.args, kwargs=dict(example.kwargs), dynamo=True, verbose=False
        )
        assert program is not None
        program.save(file)
        provider = "CUDAExecutionProvider" if setting.device == "cuda" else "CPUExecutionProvider"
        session = onnxruntime.InferenceSession(file, providers=[provider])
        return _session_call(session, workload, example)


def _session_call(session: Any, workload: Workload, example: Example) -> Callable[..., Any]:
    """Return a call of the session with the inputs and outputs of the model."""
    import onnxruntime
    import torch.utils.dlpack

    from torchwise._torch import pytree as _pytree
    from torchwise.workload import pytree

    names = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]
    with torch.no_grad():
        shape = _pytree.tree_flatten(workload.call(*example.clone().args, **example.clone().kwargs))[1]

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [t.detach().contiguous() for t in pytree.tensors((args, kwargs))]
        values = map(onnxruntime.OrtValue.from_dlpack, tensors)
        answers = session.run_with_ort_values(outputs, dict(zip(names, values, strict=True)))
        return _pytree.tree_unflatten([torch.utils.dlpack.from_dlpack(answer) for answer in answers], shape)

    return call


def _folder() -> str:
    """Make a folder in this contender's compile caches, to be removed with them."""
    caches = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if caches:
        os.makedirs(caches, exist_ok=True)
    return tempfile.mkdtemp(prefix="torchwise-exported-", dir=caches)


def _module(workload: Workload) -> Any:
    """Return the model as a module. A function is wrapped in one, as only modules can be exported."""
    if isinstance(workload.call, torch.nn.Module):
        return workload.call

    class Function(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return workload.call(*args, **kwargs)

    return Function()
