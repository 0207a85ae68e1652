"""Imports one module from another text, if an environment variable says so.

Python imports a module of this name when it starts, so processes that a test starts have the fault too.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):  # type: ignore[no-untyped-def]  # noqa: ARG002
        return compile(_FAULT["text"], self.path, "exec", dont_inherit=True)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ARG004
        if name != _FAULT["module"]:
            return None
        return importlib.util.spec_from_file_location(
            name, _FAULT["path"], loader=_Loader(name, _FAULT["path"])
        )


if "NUPI_FAULT" in os.environ:
    with open(os.environ["NUPI_FAULT"], encoding="utf-8") as _file:  # noqa: PTH123 - nothing else is imported here
        _FAULT = json.load(_file)
    sys.meta_path.insert(0, _Finder)
