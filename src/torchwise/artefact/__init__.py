"""One file that takes a decision and its compiled code to another process, or to an equal machine.

::

    artefact.save("model.tw", model, decision, (x,))      # compiles once more, in a process of its own
    decision = artefact.load("model.tw", trust=True)      # in the service, before the model is built
    fast = torchwise.apply(model, decision)               # its first call finds everything compiled

For a fleet, a folder by URL takes the file's place, and each machine finds its own in it (`folder`)::

    artefact.save("s3://bucket/models", model, decision, (x,))
    decision = artefact.load("s3://bucket/models", model, trust=True)

Compiled code is run as it lies in the file, by PyTorch, which reads it with pickle: who may write the file may run code
here. So nothing but `load` and `load_all` with `trust=True` takes it out.
"""

from torchwise.artefact.load import info, load, load_all
from torchwise.artefact.manifest import Info, Manifest
from torchwise.artefact.remote import use_redis
from torchwise.artefact.save import save

__all__ = ["Info", "Manifest", "info", "load", "load_all", "save", "use_redis"]
