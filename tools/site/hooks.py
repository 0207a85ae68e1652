"""What `make docs` adds to mkdocs: files of the repository that a page links to become pages of the site.

A page in docs/ may link to `../examples/fair_classifier.py`. On a forge this opens the file, on the site a page that
shows it. A link to a folder opens a list of its files. So the same link works in both, and a strict build finds broken
ones.

The alternative text of a notebook's figure is in the metadata of its cell, as `alt`, because the site's templates have
no place for it.
"""

from __future__ import annotations

import json
import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".yml": "yaml", ".sh": "bash", ".csv": "text"}


def repository_path(page: str, link: str) -> Path | None:
    """The target of a link outside docs/, relative to the repository's root; None if it is inside docs/."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    if target.startswith(("docs/", "..")) or not (ROOT / target).exists():
        return None
    return Path(target)


def shown_at(path: Path) -> str:
    """The page of the site that shows a file of the repository."""
    return f"files/{path.as_posix()}.md"


def shown(path: Path) -> str:
    """A page that shows a file, or lists a folder."""
    whole = ROOT / path
    if whole.is_dir():
        names = sorted(p.relative_to(whole).as_posix() for p in whole.rglob("*") if p.is_file())
        return f"# {path}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    text = whole.read_text()
    if path.suffix == ".md":
        return text
    return f"# {path}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for everything outside docs/ that a page links to."""
    wanted: set[Path] = set()
    for file in list(files.documentation_pages()):
        if file.src_uri.endswith(".md"):
            links = LINK.findall(file.content_string)
            wanted |= {path for link in links if (path := repository_path(file.src_uri, link)) is not None}
    for path in sorted(wanted):
        page = File.generated(config, shown_at(path), content=shown(path))
        page.inclusion = page.inclusion.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Change links to files outside docs/ into links to the pages that show these files."""
    here = page.file.src_uri
    # The text's own path in the repository, to which its links are relative.
    home = here[len("files/") : -len(".md")] if here.startswith("files/") else f"docs/{here}"

    def redirected(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(home), found.group(1)))
        shown_as = target[len("docs/") :] if target.startswith("docs/") else shown_at(Path(target))
        if files.get_file_from_path(shown_as) is None:
            return found.group(0)
        return posixpath.relpath(shown_as, posixpath.dirname(here) or ".")

    return LINK.sub(redirected, markdown)


WITHOUT_TEXT = "No description has been provided for this image"


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Set the alternative texts of a notebook's figures, in their order."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    cells = json.loads(Path(page.file.abs_src_path).read_text())["cells"]
    for text in [cell["metadata"]["alt"] for cell in cells if "alt" in cell["metadata"]]:
        html = html.replace(WITHOUT_TEXT, escape(text), 1)
    if WITHOUT_TEXT in html:
        raise ValueError(f"{page.file.src_uri} has a figure without a text: give its cell the metadata `alt`")
    return html
