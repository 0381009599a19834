"""Compiled code leaves out the checks of its inputs, where guards notice all that these would. Others stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchwise._torch import inductor
from torchwise.compile import compile_plan
from torchwise.compile.backends.graphs import _checks_inputs
from torchwise.compile.inductor_patches import without_input_checks
from torchwise.plan import Plan
from torchwise.workload import Example

pytestmark = pytest.mark.usefixtures("dynamo_afresh")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.register_buffer("table", torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x * self.weight + self.table)[0]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """List the checks that Inductor writes, as input or operator with the name of the buffer."""
    found: list[tuple[str, str]] = []
    wrapper = inductor.WRAPPER_CODE.get()
    write = wrapper.write_assert_size_stride

    def note(self: Any, name: str, size: str, stride: str, op_name: str) -> None:
        found.append((op_name, name))
        write(self, name, size, stride, op_name)

    monkeypatch.setattr(wrapper, "write_assert_size_stride", note)
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        yield found


def with_other_strides(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t().contiguous().t()


CHANGES: dict[str, Callable[[Net, torch.Tensor], torch.Tensor]] = {
    "an input's strides": lambda _, x: with_other_strides(x),
    "a weight's strides": lambda net, x: setattr(net.weight, "data", with_other_strides(net.weight.data)) or x,
}


@pytest.mark.slow
def test_what_the_checks_of_inputs_notice_is_noticed_without_them(written: list[tuple[str, str]]) -> None:
    net, x = Net().eval(), torch.randn(4, 4)
    with torch.no_grad():
        compiled = compile_plan(net, Plan(backend="inductor"), Example((x,)), device="cpu", mode="inference")
        compiled.call(x)
        assert written, "an operator's answer is checked"
        assert not [name for kind, name in written if kind == "input"]
        for change in CHANGES.values():
            bypass = compiled.bypass((x,), {})
            assert torch.equal(bypass(x), net(x))
            given = change(net, x)
            assert torch.equal((bypass if given is x else compiled.call)(given), net(given))


def test_other_code_keeps_its_checks_and_another_key() -> None:
    details = inductor.GRAPH_KEY.get()

    def make_key() -> dict[str, Any]:
        module = torch.fx.symbolic_trace(lambda x: x + 1)
        return vars(details(module, [torch.ones(1)], {}, []))

    before = make_key()
    with without_input_checks():
        assert make_key()["caller_checks_inputs"] is True
    assert "caller_checks_inputs" not in make_key()
    assert before.keys() == make_key().keys()


def test_only_code_whose_inputs_guards_check_leaves_them_out() -> None:
    with torch.no_grad():
        assert _checks_inputs(Plan(backend="inductor"))
        for plan in (
            Plan(backend="aot_eager"),
            Plan(backend="inductor", scope="rolled"),
            Plan(backend="inductor", scope="regional"),
            Plan(backend="inductor", shapes="dynamic"),
            Plan(backend="inductor", transforms=("complex_to_real",)),
        ):
            assert not _checks_inputs(plan), plan
    with torch.enable_grad():
        assert not _checks_inputs(Plan(backend="inductor")), "a backward reads answers of the forward"
