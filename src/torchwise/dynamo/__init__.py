"""The ecosystem's own door: `torch.compile(model, backend="torchwise")`, each captured graph by what was measured."""

from torchwise.dynamo.door import backend

__all__ = ["backend"]
