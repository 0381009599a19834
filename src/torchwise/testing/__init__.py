"""Contract suites for plug-ins: inherit from one in a test, and give it your implementation by a fixture.

Suites are classes of pytest tests, with a file for each subject: `storage`, `launcher`, `sampler`, `backend`,
`transform`, `cuda_graph` and `served`. Their docstrings state the contracts. Nothing else of Torchwise imports them.
"""

import pkgutil

try:
    import pytest
except ImportError as error:
    raise ImportError("torchwise.testing holds suites of pytest tests: pip install pytest") from error

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
