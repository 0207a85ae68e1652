"""`nupi` and `python -m nupi`: run the command, or say which package it still needs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of `nupi.paper.command`."""
    try:
        if sys.argv[1:2] in (["watch"], ["report"]):  # these two need fewer packages than the reproduction
            from nupi.monitor.command import app
        else:
            from nupi.paper.command import app

        app(prog_name="nupi")
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package == "nupi":  # a defect of nupi, not a missing extra
            raise
        sys.exit(
            f"nupi: the command needs the package {package!r}, which is not installed.\n"
            "Install all that the reproduction uses with: pip install 'nupi[paper]'"
        )


if __name__ == "__main__":
    main()
