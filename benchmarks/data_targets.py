"""Targets whose work depends on their data: torchwise bench benchmarks/data_targets.py:detection

`detection` finds as many boxes as there are. `adaptive` takes as many steps as the error requires, by a solver that is
written like torchdiffeq's. `torchdiffeq` is the library itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchwise.workload import Example, Workload

BATCH, WIDTH = 256, 64


class DetectionHead(torch.nn.Module):
    """Finds boxes above a threshold, the best first, without those that overlap a better one."""

    def __init__(self, channels: int = 64, threshold: float = 0.75, overlap: float = 0.3) -> None:
        super().__init__()
        self.tower = torch.nn.Sequential(
            torch.nn.Conv2d(channels, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(channels, channels, 3, padding=1),
            torch.nn.ReLU(),
        )
        self.score = torch.nn.Conv2d(channels, 1, 1)
        self.box = torch.nn.Conv2d(channels, 4, 1)
        self.threshold, self.overlap = threshold, overlap

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return boxes (kept, 4) as corners, and their scores, of an image's features (1, channels, rows, columns)."""
        hidden = self.tower(features)
        scores = torch.sigmoid(4 * self.score(hidden)).flatten()
        rows, columns = features.shape[2:]
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        centres = torch.stack([x, y], dim=-1).view(-1, 2).to(features)
        offset, size = self.box(hidden)[0].flatten(1).mT.split(2, dim=1)
        boxes = torch.cat([centres + offset - 2 * size.exp(), centres + offset + 2 * size.exp()], dim=1)
        found = (scores > self.threshold).nonzero().squeeze(1)
        boxes, scores = boxes[found], scores[found]
        order = scores.argsort(descending=True)
        boxes, scores = boxes[order], scores[order]
        kept = suppress_boxes(boxes, self.overlap)
        return boxes[kept], scores[kept]


def suppress_boxes(boxes: torch.Tensor, overlap: float) -> torch.Tensor:
    """Return a mask of kept boxes, by greedy non-maximum suppression from the first box on, in plain PyTorch."""
    area = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=2)
    covers = (shared / (area[:, None] + area[None] - shared) > overlap).triu(1)
    kept = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    while True:  # a kept box suppresses those it covers: this converges in a few rounds
        now = ~(covers & kept[:, None]).any(dim=0)
        if torch.equal(now, kept):
            return kept
        kept = now


def detection() -> Workload:
    """Build a detection head on features of 32 × 32."""
    torch.manual_seed(0)
    return Workload(DetectionHead().eval(), (Example((torch.randn(1, 64, 32, 32),)),), name="detection")


class Dopri5(torch.nn.Module):
    """Computes y(1) of dy/dt = f(y), by Dormand and Prince's method with steps as large as the tolerance allows."""

    def __init__(self, slope: Callable[[torch.Tensor], torch.Tensor], rtol: float = 1e-5, atol: float = 1e-6) -> None:
        super().__init__()
        self.slope, self.rtol, self.atol = slope, rtol, atol

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """Take steps from 0 to 1, and read from the GPU whether each is accurate enough."""
        time = torch.tensor([0.0, 1.0], dtype=torch.float64, device=y.device)
        t, end = time[0], time[1]
        dt = torch.tensor(0.1, dtype=torch.float64).to(y.device)
        safety, grow, shrink = (torch.tensor(v, dtype=torch.float64, device=y.device) for v in (0.9, 10.0, 0.2))
        first = self.slope(y)
        while t < end:
            assert t + dt > t, "the step is too small"
            assert torch.isfinite(y).all(), "the state is not finite"
            dt = torch.minimum(dt, end - t)
            new, last, error = self.step(y, first, dt.to(y.dtype))
            scale = self.atol + self.rtol * torch.maximum(y.abs(), new.abs())
            ratio = (error / scale).square().mean().sqrt().to(dt.dtype)
            if ratio <= 1:
                t, y, first = t + dt, new, last
            dt = dt * torch.minimum(grow, torch.maximum(safety / ratio**0.2, shrink))
        return y

    def step(self, y: torch.Tensor, first: torch.Tensor, dt: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the state after a step, its slope, and the error of the step."""
        slopes = [first]
        for row in TABLEAU:
            weights = torch.tensor(row, dtype=y.dtype, device=y.device)
            slopes.append(self.slope(y + dt * torch.tensordot(weights, torch.stack(slopes), dims=1)))
        new = y + dt * torch.tensordot(torch.tensor(TABLEAU[-1]).to(y), torch.stack(slopes[:-1]), dims=1)
        return new, slopes[-1], dt * torch.tensordot(torch.tensor(ERROR).to(y), torch.stack(slopes), dims=1)


TABLEAU = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


class Slope(torch.nn.Module):
    """The slope of a state: a small network, and a pull towards zero."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Tanh(), torch.nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """Return dy/dt."""
        return 8 * self.net(y) - y**3


def adaptive() -> Workload:
    """Build an ODE whose solver chooses its steps."""
    torch.manual_seed(0)
    return Workload(Dopri5(Slope()).eval(), (Example((torch.randn(BATCH, WIDTH),)),), name="adaptive")


class Odeint(torch.nn.Module):
    """The same ODE, solved by torchdiffeq."""

    def __init__(self, slope: torch.nn.Module) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """Return the state at time 1."""
        from torchdiffeq import odeint  # type: ignore[import-not-found]

        time = torch.tensor([0.0, 1.0], device=y.device)
        path: torch.Tensor = odeint(lambda _, y: self.slope(y), y, time, rtol=1e-5, atol=1e-6, method="dopri5")
        return path[-1]


def torchdiffeq() -> Workload:
    """Build the same ODE for torchdiffeq, which must be installed."""
    torch.manual_seed(0)
    return Workload(Odeint(Slope()).eval(), (Example((torch.randn(BATCH, WIDTH),)),), name="torchdiffeq")
