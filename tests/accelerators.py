"""The CPU as an accelerator, on which the host may not look at a value."""

import sys


def act_as_an_accelerator(monkeypatch):
    """Make the CPU behave as an accelerator does, wherever in nupi it is asked whether the host may look."""
    asked = "host_may_read"
    for module in [each for name, each in sys.modules.items() if name.startswith("nupi.")]:
        if asked in vars(module):
            monkeypatch.setattr(module, asked, lambda _: False)
