"""Paths, links, modules and names that the documentation mentions exist."""

import importlib
import re

import pytest

from tests.documentation import PAGES, ROOT, name_of

FOLDERS = "keras_fastnet|tests|benchmarks|examples|docs"

every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def anchors(page):
    """Returns the anchors that GitHub gives to a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def resolve(name):
    """Returns the object of a dotted name."""
    first, *rest = name.split(".")
    found = importlib.import_module(first)
    for depth, part in enumerate(rest, 2):
        if not hasattr(found, part):
            importlib.import_module(".".join(name.split(".")[:depth]))
        found = getattr(found, part)
    return found


@every_page
def test_paths_exist(page):
    text = page.read_text("utf-8")
    mentioned = re.findall(rf"(?<![\w/.:-])(?:{FOLDERS})/[\w./-]*\w/?", text)
    missing = {path for path in mentioned if not (ROOT / path).exists()}
    assert not missing


@every_page
def test_links_lead_to_files_and_headings(page):
    broken = set()
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"\w+://", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.add(link)
    assert not broken


@every_page
def test_modules_to_run_exist(page):
    missing = set()
    for name in re.findall(r"-m ((?:tests|benchmarks)[\w.]*\w)", page.read_text()):
        path = ROOT / name.replace(".", "/")
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
            missing.add(name)
    assert not missing


@every_page
def test_names_of_the_package_can_be_imported(page):
    names = re.findall(
        r"(?<![\w./\"-])(?:keras_)?fastnet(?:\.[A-Za-z_]\w*)+", page.read_text("utf-8")
    )
    missing = set()
    for name in sorted(set(names)):
        try:
            resolve(re.sub("^fastnet", "keras_fastnet", name))
        except (AttributeError, ImportError) as error:
            missing.add(f"{name}: {error}")
    assert not missing


def test_every_page_can_be_found():
    """From the site's contents, and but for the reference from the README."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    contents = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert pages <= set(re.findall(r"^(\w+)$", contents, re.M))
    readme = (ROOT / "README.md").read_text("utf-8")
    assert pages <= set(re.findall(r"\(docs/(\w+)\.md", readme))
