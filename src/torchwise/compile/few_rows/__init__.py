"""Products of few rows with large matrices, by kernels of our own that read the weights as fast as a copy.

`operator` is the operator of PyTorch, which compiled code calls. `forms` lists how its kernel may be cut. `kernel` is
the kernel, with `tiles` for more than 8 rows. The rewrite `function_graphs/products_of_few_rows.py` puts the operator
in place of products.
"""
