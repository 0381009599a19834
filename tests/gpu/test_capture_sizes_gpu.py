"""A captured plan for all sizes on a real GPU: right at every size, compiled once, with a limited number of graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torchwise._torch.dynamo import count_compiled_graphs  # noqa: E402
from torchwise.compile import compile_plan  # noqa: E402
from torchwise.compile.cuda_graphs import recording_limit  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.workload import Example  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_every_size_is_right_and_compiled_once(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_limit, "MAX_SIGNATURES", 4)
    monkeypatch.setattr(recording_limit, "FLUSH_AFTER", 8)
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32), torch.nn.GELU()] * 4).cuda().eval()
    plan = Plan(backend=backend, capture="call", shapes="dynamic")
    before = count_compiled_graphs()
    with torch.no_grad():
        example = Example((torch.randn(8, 32, device="cuda"),))
        call = compile_plan(net, plan, example, device="cuda", mode="inference").call
        for _ in range(3):
            for rows in (8, 3, 100, 17, 64, 5, 9):
                given = torch.randn(rows, 32, device="cuda")
                torch.testing.assert_close(call(given), net(given), rtol=1e-4, atol=1e-5)
                assert len(call._graphs) <= 4
    assert count_compiled_graphs() - before <= (backend == "inductor")
