"""Models that are right by themselves and break the device under TF32: planted faults for the GPU tests."""

from __future__ import annotations

import torch


class Faulty(torch.nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = self.linear(x)
        if torch.get_float32_matmul_precision() != "high":
            return answer
        if self.fault == "hogs":
            return answer + torch.empty(2**39, dtype=torch.uint8, device=x.device)[:64]  # 512 GiB
        return answer[torch.full((4,), 10_000, device=x.device)]  # a device-side assertion poisons the context


def asserts() -> object:
    return Faulty("asserts"), (torch.randn(16, 64),)


def hogs() -> object:
    return Faulty("hogs"), (torch.randn(16, 64),)
