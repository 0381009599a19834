"""The families as pure data, one file for each, so that a list of them costs no torch.

To add a workload: an entry in the file of its family, and `build_<operation>` in the family's code, with these
keywords.
"""
