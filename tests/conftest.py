"""What all tests share: how many examples property tests try, and processes to run on.

`make test` tries few examples, `make nightly` many. A test that needs fewer than others takes a share, so that it grows
at night too: `@settings(max_examples=settings.default.max_examples // 4)`.
"""

import gc
import os

import pytest
from hypothesis import settings
from ranks import Ranks

# A shared machine may be slow at any moment: how long an example takes says nothing about the code.
settings.register_profile("small", max_examples=50, deadline=None)
settings.register_profile(
    "nightly", max_examples=1000, stateful_step_count=100, deadline=None, print_blob=True
)
settings.load_profile(os.environ.get("NUPI_HYPOTHESIS", "small"))


def pytest_collection_finish():
    """Let the garbage collector look at what tests make only, and not at all the packages that they import.

    Hugging Face's Trainer collects garbage at the end of each run, which took longer than a run.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def ranks():
    """Four processes for all tests of a session: starting them costs more than the tests."""
    pool = Ranks(4)
    yield pool
    pool.close()
