"""Show the `Example:` of a docstring as code: the parser of the reference only knows the plural, `Examples:`."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Read `Example:` as `Examples:`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for every module, class and function."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
