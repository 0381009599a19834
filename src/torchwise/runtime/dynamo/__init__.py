"""The backend for `torch.compile(model, backend="torchwise")`, which runs each captured graph by measured evidence."""

from torchwise.runtime.dynamo.graph_backend import backend

__all__ = ["backend"]
