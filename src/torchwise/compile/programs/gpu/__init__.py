"""Row programs on a GPU: all operators of a block of rows in one kernel of Triton, with loops inside of it.

`axes` and `labels` find which numbers of several tensors belong together, and so which axes are rows. `loops` finds
loops that an export unrolled. `tiles`, `expressions` and `lowering` write the operators, `kernel` puts them together,
and `launch` compiles, tunes and launches.
"""
