"""Messages and invariants that the documentation quotes are those of the code."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def table(page, heading):
    """Returns the first cells of the table below a heading."""
    text = (ROOT / "docs" / page).read_text("utf-8").partition(heading)[2]
    rows = re.findall(r"(?:^\|.*\n)+", text, re.M)[0].splitlines()[2:]
    return [row.split(" | ")[0].removeprefix("| ") for row in rows]


def text_of(node):
    """Returns a string or f-string, with a marker in the place of every value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "\0"


@pytest.fixture(scope="module")
def strings():
    """All strings of the package, f-strings whole, without backticks."""
    return [
        text_of(node).replace("`", "")
        for path in sorted((ROOT / "keras_fastnet").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.JoinedStr | ast.Constant)
    ]


def in_a_string(message, strings):
    """Whether a string has a message, with `…` for what differs, in one line."""
    parts = [re.escape(part.strip()) for part in re.split("…", message)]
    pattern = re.compile(".*".join(parts), re.S)
    return any(pattern.search(string) for string in strings)


def test_errors_of_a_cluster(strings):
    cells = table("cluster.md", "## Errors")
    messages = [message for cell in cells for message in re.findall("`(.*?)`", cell)]
    assert len(messages) > 20
    assert [m for m in messages if not in_a_string(m, strings)] == []


def test_messages_of_troubleshooting(strings):
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    # The last table is of what is seen without a message.
    tables = page.partition("## No error")[0]
    messages = re.findall(r"^\| `(.*?)` \|", tables, re.M)
    assert len(messages) > 30
    assert [m for m in messages if not in_a_string(m, strings)] == []


def test_verdicts_of_fastnet_check(strings):
    verdicts = table("check.md", "## Verdicts\n")
    assert len(verdicts) == 4
    assert [verdict for verdict in verdicts if not in_a_string(verdict, strings)] == []
