"""The pages of the documentation, and the code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(
        path
        for folder in ("docs", "examples", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.md"))
    ),
]


def name_of(page: Path) -> str:
    """Returns a page's path from the root."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str = "") -> list[str]:
    """Returns a page's blocks of code in a language, `""` for none."""
    found = re.findall(
        r"^( *)```(\w*)\n(.*?)^\1```$", page.read_text("utf-8"), re.S | re.M
    )
    return [
        re.sub(f"^{indent}", "", text, flags=re.M)
        for indent, of, text in found
        if of == language
    ]


def script_of(page: str, name: str) -> str:
    """Returns the script of a page of docs/ that begins with `# name`."""
    (found,) = [
        block
        for block in blocks(ROOT / "docs" / page, "python")
        if block.startswith(f"# {name}\n")
    ]
    return found
