"""Capture CUDA graphs, one file for each unit of capture.

A plan captures whole calls (`call`), or segments between the reads of GPU data in Python (`branches`). Their choices in
`plan/choices/capture.py` name the classes. Loops and training steps (`loop`, `step`) are captured when a program
requests it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class CudaGraph(Protocol):
    """A call that is answered by replaying CUDA graphs: the class that the choice of a plan's `capture` names.

    Answers are the caller's, unless they are borrowed. Inputs that the call writes to are written to, or the call is
    refused. Weights that are changed in place take effect. `torchwise.testing.cuda_graph` has its contract as tests.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the call does, for inputs of any signature."""

    def get_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a faster callable for calls of this signature, valid while gradients and autocast are disabled."""
        ...

    def close(self) -> None:
        """Free the graphs and their memory. It must not be called afterwards."""
