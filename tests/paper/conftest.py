import pytest
from ranks import processes

from nupi.paper.data import adult, cifar10
from nupi.paper.data.fetch import DataUnavailableError
from nupi.paper.jobs import workers


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


@pytest.fixture
def quick_workers(monkeypatch):
    """Processes for jobs that do not each import torch anew; test_running.py has tests of those that users get."""
    monkeypatch.setattr(workers, "CONTEXT", processes())
