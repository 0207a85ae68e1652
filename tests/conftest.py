import pytest
from ranks import Ranks


@pytest.fixture(scope="session")
def ranks():
    """Four processes for all tests of a session: starting them costs more than the tests."""
    pool = Ranks(4)
    yield pool
    pool.close()
