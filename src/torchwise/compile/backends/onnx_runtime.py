"""Compile graphs with ONNX Runtime, on the CPU or with its CUDA provider."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from torchwise.compile.backends.exported import Run, compile_exported
from torchwise.compile.backends.graphs import NOTHING, Varying
from torchwise.compile.backends.kept_models import load_or_convert
from torchwise.compile.backends.named_operators import OperatorError
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan

CUDA = "CUDAExecutionProvider"
_LACKS = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.:]+)'")


def compile(call: Callable[..., Any], plan: Plan, varying: Varying = NOTHING) -> Callable[..., Any]:
    """Return `call`, whose graphs ONNX Runtime compiles (see `compile_exported`)."""
    return compile_exported(call, plan, _compile_program, varying)


def _compile_program(
    program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> Run:
    session = _make_session(program, (*inputs, *outputs))
    names, device = [one.name for one in session.get_inputs()], outputs[0].device
    if len(names) != len(inputs):
        raise UnsupportedError(f"ONNX has {len(names)} of its {len(inputs)} inputs, as it drops those without effect")
    return _Session(session, device, [output.dtype for output in outputs])


def _make_session(program: torch.export.ExportedProgram, tensors: Sequence[torch.Tensor]) -> Any:
    import onnx
    import onnxruntime
    import onnxscript

    provider = _choose_provider(tensors)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.force_spinning_stop", "1")  # or its threads disturb PyTorch's
    options.log_severity_level = 3  # errors, which are raised as well

    def load(model: str | bytes) -> Any:
        return onnxruntime.InferenceSession(model, options, providers=[provider])

    def convert() -> tuple[Any, Callable[[], bytes]]:
        converted = _convert(program)
        with tempfile.TemporaryDirectory(prefix="torchwise-onnx-") as folder:  # weights beyond 2 GB need files
            file = str(Path(folder, "model.onnx"))
            converted.save(file)
            return load(file), lambda: converted.model_proto.SerializeToString()

    facts = ("onnx", onnx.__version__, onnxscript.__version__)  # the session has its settings, and the file has none
    return load_or_convert(program, facts, load, convert)


def _choose_provider(tensors: Sequence[torch.Tensor]) -> Any:
    """Return the provider for the device of the tensors, with its settings.

    Raises:
        UnsupportedError: this build has none for it.
    """
    import onnxruntime

    devices = {tensor.device for tensor in tensors}
    if devices == {torch.device("cpu")}:
        return "CPUExecutionProvider"
    if len(devices) > 1 or (device := devices.pop()).type != "cuda":
        raise UnsupportedError("ONNX Runtime needs all inputs and outputs on the CPU, or on one GPU")
    if CUDA not in onnxruntime.get_available_providers():
        raise UnsupportedError("this onnxruntime has no CUDA provider: pip install onnxruntime-gpu", ("backend",))
    return CUDA, {"device_id": device.index, "use_tf32": int(torch.backends.cuda.matmul.allow_tf32)}


def _convert(program: torch.export.ExportedProgram) -> torch.onnx.ONNXProgram:
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of each library that is not installed
    try:
        converted = torch.onnx.export(program, dynamo=True, verbose=False, optimize=False)
    except torch.onnx.OnnxExporterError as error:
        lacking = _LACKS.search(str(error))
        if lacking is None:
            raise
        raise OperatorError(f"ONNX has no operation for {lacking[1]}", _find_named(program, lacking[1])) from error
    finally:
        log.setLevel(level)
    assert converted is not None
    return converted


def _find_named(program: torch.export.ExportedProgram, operator: str) -> list[torch.fx.Node]:
    """Return the nodes of an operator that ONNX lacks, whichever library of PyTorch's has it."""
    name = operator.split(".")[1]
    nodes = program.run_decompositions().graph.nodes
    return [node for node in nodes if str(node.target).split(".")[1:2] == [name]]


class _Session:
    """A session, which several threads may call. It reads PyTorch's memory, and its outputs are PyTorch's."""

    def __init__(self, session: Any, device: torch.device, dtypes: Sequence[torch.dtype]) -> None:
        self._session, self._device, self._dtypes = session, device, dtypes
        self._inputs = [one.name for one in session.get_inputs()]
        self._outputs = [one.name for one in session.get_outputs()]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute the outputs."""
        from onnxruntime import OrtValue

        binding = self._session.io_binding()
        for name, tensor in zip(self._inputs, inputs, strict=True):
            binding.bind_ortvalue_input(name, OrtValue.from_dlpack(tensor))
        for name in self._outputs:
            binding.bind_output(name, self._device.type, self._device.index or 0)
        if self._device.type == "cuda":  # the session has a stream of its own
            torch.cuda.current_stream(self._device).synchronize()
        self._session.run_with_iobinding(binding)
        answers = map(from_dlpack, binding.get_outputs())
        return [answer.view(dtype) for answer, dtype in zip(answers, self._dtypes, strict=True)]
