"""Explaining on a real GPU: kernels by the device's own clock, the roofline, waits, gaps, and fit for one graph."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torchwise.diagnose.explain import explain  # noqa: E402
from torchwise.records.explanation import Basis, Explanation  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
]


class Small(torch.nn.Module):
    """Many launches and little work: the GPU waits for the host."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply eight layers."""
        y: torch.Tensor = self.layers(x)
        return y


class Waiting(Small):
    """The same, and a number that the host waits for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale by a number that is read from the device."""
        y = super().forward(x)
        return y / y.abs().mean().item()


class Asking(Small):
    """The same, and a question that the host waits for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double the output if its mean is above 0."""
        y = super().forward(x)
        return y * 2 if y.mean() > 0 else y


def explain_model(model: torch.nn.Module, *args: torch.Tensor, **options: object) -> Explanation:
    return explain(model.cuda().eval(), args, budget=150, **options)  # type: ignore[arg-type]


def test_kernels_are_timed_by_the_device_and_held_against_the_roofline() -> None:
    told = explain_model(torch.nn.Linear(4096, 4096), torch.randn(4096, 4096, device="cuda"))
    assert told.limits is not None
    assert told.limits.bandwidth > 1e11
    (product,) = [kernel for kernel in told.kernels if kernel.flops]
    assert product.flops == pytest.approx(2 * 4096**3, rel=0.1)
    assert product.share is not None
    assert 0.2 < product.share <= 1.2
    assert told.execution.host_share < 0.5
    assert told.execution.busy_s == pytest.approx(sum(kernel.seconds for kernel in told.kernels), rel=0.5)


def test_what_waits_for_the_host_is_said_and_a_graph_is_the_mend() -> None:
    told = explain_model(Small(), torch.randn(4, 64, device="cuda"))
    assert told.execution.host_share > 0.3
    found = {one.kind: one for one in told.findings}
    assert "host-bound" in found, told.notes
    assert found["host-bound"].saving is not None
    assert told.capturable.answer is True


def test_a_wait_for_the_device_is_found_at_its_line(tmp_path: Path) -> None:
    told = explain_model(Waiting(), torch.randn(4, 64, device="cuda"), artifacts=tmp_path)
    found = [one for one in told.findings if one.kind in ("graph break", "synchronisation")]
    assert found
    assert all(place.file == __file__ for one in found for place in one.places)
    assert any("item()" in place.excerpt for one in found for place in one.places)
    assert any(one.saving is not None and one.saving.basis is Basis.MEASURED for one in found), told.notes
    assert told.capturable.answer is True, (told.capturable, told.notes)
    assert "numbers_on_gpu" in told.capturable.reasons[0]
    assert all((tmp_path / name).exists() for stage in told.stages for name in stage.artifacts)


def test_a_question_is_mended_by_a_capture_in_pieces() -> None:
    told = explain_model(Asking(), torch.randn(4, 64, device="cuda"))
    (found,) = [one for one in told.findings if one.kind == "synchronisation"]
    assert found.plan is not None
    assert found.plan.capture == "branches"
    assert found.saving is not None
    assert found.saving.basis is Basis.MEASURED, told.notes
    assert told.capturable.answer is False
