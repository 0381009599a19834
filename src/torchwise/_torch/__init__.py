"""Every name of PyTorch that it does not promise to keep, in one module for each subject.

No other folder imports such a name, reads it from a module of PyTorch or prints it: a test refuses that. So support
for a new release of PyTorch is work in this folder. `tests/unit/test_torch_surface.py` lists what a release lacks.

`dynamo`, `inductor` and `aot_autograd` need no torch before a name is looked up. A function raises `UnsupportedError`
if this release lacks a name that it needs.
"""
