"""Compile graphs with OpenVINO for the CPU.

Its own backend of `torch.compile` keeps weights as inputs, and its plugin for CPUs refuses convolutions with such
weights. So graphs are exported with the weights as constants, and converted as a whole.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise.compile.backends.exported import Run, compile_exported
from torchwise.compile.backends.graphs import NOTHING, Varying
from torchwise.compile.backends.kept_models import load_or_convert
from torchwise.compile.backends.named_operators import OperatorError
from torchwise.compile.backends.pure_graph import find_shape
from torchwise.compile.backends.whole_numbers import find_dtypes
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan

_TYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "boolean",
}
MAX_IDLE = 4
"""Requests that are kept for later calls. Each holds the tensors of its last call."""
_core: Any = None
_core_lock = threading.Lock()
_LACKS = re.compile(r"(?:No conversion rule found for operations?|Conversion is failed for): (.+)")


def compile(call: Callable[..., Any], plan: Plan, varying: Varying = NOTHING) -> Callable[..., Any]:
    """Return `call`, whose graphs OpenVINO compiles (see `compile_exported`)."""
    return compile_exported(call, plan, _compile_program, varying, is_of_32_bits=True)


def _compile_program(
    program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> Run:
    import openvino

    for tensor in (*inputs, *outputs):
        if tensor.device.type != "cpu":
            raise UnsupportedError(f"OpenVINO runs on the CPU here, but a tensor is on {tensor.device}")
    lacking = find_dtypes(program, set(_TYPES))
    for dtype, nodes in lacking.items():
        raise OperatorError(f"OpenVINO has no {dtype} on the CPU, where it computes in float32", nodes)
    tensors = (*program.parameters(), *program.buffers(), *inputs)
    core, config = _load_core(), _make_config(tensors)

    def convert() -> tuple[Any, Callable[[], bytes]]:
        compiled = core.compile_model(_convert(program), "CPU", config)
        return compiled, lambda: compiled.export_model().getvalue()

    abilities = sorted(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))  # a file is for a processor with these
    facts = ("openvino", openvino.__version__, abilities, sorted(config.items()))
    compiled = load_or_convert(program, facts, lambda data: core.import_model(io.BytesIO(data), "CPU", config), convert)
    if len(compiled.inputs) != len(inputs):
        raise UnsupportedError(f"OpenVINO has {len(compiled.inputs)} of its {len(inputs)} inputs")
    return _Session(compiled, outputs)


def _load_core() -> Any:
    """Return OpenVINO's core, the only one of this process, which lives as long.

    Its plugin for CPUs gives the thread that loads it a stack for signals, and puts back the one before when it goes.
    With several of them, the one that is put back may be that of a core that is gone. Then the next signal, such as
    that of Ctrl-C, ends the process (OpenVINO 2026.4).
    """
    global _core
    import openvino

    with _core_lock:
        if _core is None:
            _core = openvino.Core()
        return _core


def _convert(program: torch.export.ExportedProgram) -> Any:
    """Return the program as a model of OpenVINO, which shares its weights.

    `openvino.convert_model` does the same, and reports each use to OpenVINO's makers.
    """
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
    from openvino.frontend.pytorch.torchdynamo.export_decompositions import ops_to_not_decompose

    decompositions = torch.export.default_decompositions()
    for kept in ops_to_not_decompose():
        decompositions.pop(kept, None)
    program = program.run_decompositions(decompositions)
    decoder = TorchFXPythonDecoder(program.module(), dynamic_shapes=True)
    frontend = FrontEndManager().load_by_framework("pytorch")
    try:
        return frontend.convert(frontend.load(decoder))
    except Exception as error:  # OpenVINO has an error of its own for each kind of fault
        lacking = _LACKS.search(str(error))
        if lacking is None:
            raise
        nodes = [node for node in program.graph.nodes if str(node.target) in re.split(r"[,\s]+", lacking[1])]
        raise OperatorError(f"OpenVINO has no operation for {lacking[1]}", nodes) from error


def _make_config(tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return settings that keep the model's own precision and PyTorch's number of threads.

    Threads are not bound to cores, as two processes that bind theirs take the same cores.
    """
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    narrow = len(dtypes) == 1 and not dtypes & {torch.float32}
    return {
        "INFERENCE_PRECISION_HINT": _TYPES.get(dtypes.pop(), "f32") if narrow else "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,
    }


class _Session:
    """A compiled model, and its requests that no call uses now. A call takes one for itself.

    Requests read PyTorch's memory, and write to that of new tensors if the sizes are known. An output that clones an
    input is made here: OpenVINO would take the memory of the answer for that of the input.
    """

    def __init__(self, compiled: Any, outputs: Sequence[torch.Tensor]) -> None:
        self._compiled, self._idle = compiled, list[Any]()
        self._outputs = [
            (shape, output.dtype) if (shape := find_shape(output)) is not None else None for output in outputs
        ]
        self._dtypes = [output.dtype for output in outputs]
        self._copied = _find_copies(compiled)
        given = [port.get_element_type().get_type_name() for port in compiled.outputs]
        if given != [_TYPES[dtype] for dtype in self._dtypes]:
            raise UnsupportedError(f"OpenVINO answers in {given}, and PyTorch in {self._dtypes}")

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute the outputs."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        for place, tensor in enumerate(inputs):
            request.set_input_tensor(place, _share(tensor))
        answers = [torch.empty(known[0], dtype=known[1], device="cpu") if known else None for known in self._outputs]
        for place, source in self._copied.items():
            answers[place] = inputs[source].clone()
        for place, answer in enumerate(answers):
            if answer is not None and place not in self._copied:
                request.set_output_tensor(place, _share(answer))
        request.infer(share_outputs=True)
        found = [
            _copy(request.get_output_tensor(place), dtype) if answer is None else answer
            for place, (answer, dtype) in enumerate(zip(answers, self._dtypes, strict=True))
        ]
        if len(self._idle) < MAX_IDLE:
            self._idle.append(request)
        return found


def _find_copies(compiled: Any) -> dict[int, int]:
    """Return the places of outputs that are inputs as they were given, each with that input's. They have its name."""
    names = {name: place for place, port in enumerate(compiled.inputs) for name in port.get_names()}
    found = ((place, names.get(name)) for place, port in enumerate(compiled.outputs) for name in port.get_names())
    return {place: source for place, source in found if source is not None}


def _share(tensor: torch.Tensor) -> Any:
    """Return the same memory as a tensor of OpenVINO."""
    import openvino

    if tensor.dtype is torch.bfloat16:  # which NumPy does not have
        return openvino.Tensor(tensor.view(torch.int16).numpy(), list(tensor.shape), openvino.Type.bf16)
    return openvino.Tensor(tensor.numpy(), shared_memory=True)


def _copy(tensor: Any, dtype: torch.dtype) -> torch.Tensor:
    array = tensor.data.copy()
    return torch.from_numpy(array).view(dtype) if dtype is torch.bfloat16 else torch.from_numpy(array)
