"""Every name of PyTorch that it does not promise to keep, in one module for each subject.

No other folder uses such a name: a test refuses it. So support for a new release of PyTorch is work in this folder.
`tests/unit/test_torch_surface.py` lists the names that a release lacks.

Nothing here is imported before it is used, so that `import torchwise` needs no torch.
"""
