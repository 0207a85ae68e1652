import pytest

from nupi.paper.data import adult, cifar10
from nupi.paper.data.fetch import DataUnavailableError


@pytest.fixture(scope="session")
def adult_data():
    """The real data; tests that need it are skipped only where no source of it can be reached."""
    try:
        return adult.load()
    except DataUnavailableError as error:
        pytest.skip(f"needs the Adult data, and {error}")


@pytest.fixture(scope="session")
def cifar_data():
    """The real images; tests that need them are skipped only where no source of them can be reached."""
    try:
        return cifar10.load()
    except DataUnavailableError as error:
        pytest.skip(f"needs CIFAR-10, and {error}")
