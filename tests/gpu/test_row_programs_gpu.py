"""Row programs on a real GPU: each program is one kernel, with eager's answer, alone and captured."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from row_cases import CASES, check  # noqa: E402
from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.programs.gpu.launch import Kernel  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.workload import Example  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("capture", ["none", "call"])
@pytest.mark.parametrize("name", CASES)
def test_a_program_is_few_kernels_with_eagers_answer(name: str, capture: str, monkeypatch) -> None:
    made = []
    bind = Kernel.bind
    monkeypatch.setattr(Kernel, "bind", lambda self, original: made.append(self) or bind(self, original))
    case = CASES[name]
    inputs = tuple(one.cuda() for one in case.inputs(torch.Generator().manual_seed(0)))
    plan = Plan(backend="row_programs", capture=capture).with_choice("options", ("fallback_random", True))
    with torch.no_grad():
        call = compile_plan(case.call, plan, Example(inputs), device="cuda", mode="inference").call
        for _ in range(3):
            check(call, case, inputs)
    assert len(made) == case.kernels
