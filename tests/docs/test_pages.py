"""README.md and docs/ say what is true: generated parts are fresh, what they show runs, links and names resolve."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from energyml import docgen, docpages

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*docgen.pages(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FILE = re.compile(
    r"(?:energyml|grammar|backends|examples|tests|docs)(?:/[\w.]+)+\.(?:py|lark|json|energy|md)|(?:energyml|backends|grammar|tests)(?:/\w+)+/"
)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return "\n".join(piece for piece in docpages.pieces(page.read_text(encoding="utf-8")) if isinstance(piece, str))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(prose(page)))
    return {title.strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", docgen.pages(), ids=name)
def test_a_page_shows_what_happens(page: Path) -> None:
    # A process of its own: a page may register backends and change into a folder.
    command = [sys.executable, "-m", "energyml.docgen", "--check", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link}: no such file"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading; there are {sorted(anchors(target))}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_named_files_exist(page: Path) -> None:
    for found in FILE.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / found).exists(), found


def test_every_page_of_docs_is_reachable_from_the_readme() -> None:
    links = LINK.findall(prose(ROOT / "README.md"))
    assert {name(page) for page in docgen.pages()[1:]} <= set(links)


def test_every_part_is_used() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in docgen.pages())
    assert set(docgen.PARTS) == set(re.findall(r"<!-- generated: (.+?) -->", text))


def test_every_error_code_has_its_page() -> None:
    from energyml.errors import CATALOGUE

    titles = HEADING.findall(prose(ROOT / "docs/errors.md"))
    assert [title.partition(":")[0] for title in titles if title[1:5].isdigit()] == sorted(
        CATALOGUE, key=lambda code: (code[1:3], code)
    )
