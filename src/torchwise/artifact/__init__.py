"""One file that takes a decision and its compiled code to another process, or to an equal machine.

::

    artifact.save("model.tw", model, decision, (x,))      # compiles once more, in a process of its own
    decision = artifact.load("model.tw", trust=True)      # in the service, before the model is built
    fast = torchwise.apply(model, decision)               # its first call finds everything compiled

For a fleet, use a folder by URL in place of the file. Each machine finds its own artifact in it (`folder`)::

    artifact.save("s3://bucket/models", model, decision, (x,))
    decision = artifact.load("s3://bucket/models", model, trust=True)

On its first call Dynamo still traces the model, and then finds all code that it asks for. Where no call may wait for
that, as when a plan is swapped into a program that serves, code is compiled ahead (`compile/aot.py`). That takes
fewer models and plans: no graph break, no hooks and no training.

PyTorch runs the compiled code as it lies in the file, and reads it with pickle. So anybody who may write the file may
run code here. Only `load` and `load_all` with `trust=True` take the code out.
"""

from torchwise.artifact.build import save
from torchwise.artifact.load import info, load, load_all
from torchwise.artifact.package import Info, Manifest
from torchwise.artifact.redis_cache import use_redis

__all__ = ["Info", "Manifest", "info", "load", "load_all", "save", "use_redis"]
