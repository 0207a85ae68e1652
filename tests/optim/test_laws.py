import pytest
from laws import CASES, LAWS

PAIRS = [
    pytest.param(law, case, id=f"{case}-{law.__name__}")
    for law, holds in LAWS.items()
    for case in CASES
    if holds(case)
]


@pytest.mark.parametrize(("law", "case"), PAIRS)
def test_law(law, case):
    law(case)
