"""Contract suites for plug-ins: inherit from one in a test, and give it your implementation by a fixture.

Each suite is a class of pytest tests, in a file of its own: `storage`, `launcher`, `sampler`, `backend`, `transform`,
`cuda_graph` and `served`. Its docstring states the contract. Nothing else of Torchwise imports this package.
"""

import pkgutil

try:
    import pytest
except ImportError as error:
    raise ImportError("torchwise.testing holds suites of pytest tests: pip install pytest") from error

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
