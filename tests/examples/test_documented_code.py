"""Python blocks compile and call what exists; commands name options that exist."""

import argparse
import ast
import importlib.util
import inspect
import re
import shlex

import pytest

import keras_fastnet
from keras_fastnet.cli import make_parser
from tests.documentation import PAGES, ROOT, blocks, name_of

every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS = set(
    re.findall(r"^(\S+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
)


def commands(page):
    """Returns the words of each command in a page's blocks, without variables."""
    for block in blocks(page, "", "bash", "console"):
        for line in block.text.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            except ValueError:  # a line of output
                continue
            while words and re.match(r"[A-Z_]+=", words[0]):
                del words[0]
            if words:
                yield words


def options(words):
    """Returns the options before a script, or all where there is none."""
    for word in words:
        if re.fullmatch(r".*\.py|-m|\[options\]", word):
            return
        if re.match("--?[a-z]", word):
            yield word.partition("=")[0]


def parser_of(command):
    (subparsers,) = [
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return subparsers.choices[command]


@every_page
def test_commands_exist_with_their_options(page):
    wrong = []
    for program, *words in commands(page):
        if program in ("mpiexec", "srun", "sbatch"):
            while words and words[0] not in ("python", "fastnet"):
                del words[0]
            if not words:
                continue
            program, *words = words
        if program == "fastnet" and words and words[0].isalpha():
            known = parser_of(words[0])._option_string_actions
            wrong += [f"{words[0]} {o}" for o in options(words[1:]) if o not in known]
        elif program == "python" and words and (ROOT / words[0]).is_file():
            script = ROOT / words[0]
            code = "".join(path.read_text() for path in script.parent.glob("*.py"))
            wrong += [o for o in options(words[1:]) if f'"{o}"' not in code]
        elif program == "make" and words:
            wrong += [
                target
                for target in words
                if "=" not in target
                and not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
            ]
        elif program == "pip":
            extras = ",".join(re.findall(r"\[(.*?)\]", " ".join(words))).split(",")
            ours = any(w[0] == "." or "keras-fastnet" in w for w in words)
            wrong += [e for e in extras if ours and e and e not in EXTRAS]
    assert not wrong


@pytest.mark.parametrize(
    ("command", "page"),
    [
        *(("run", "launcher"), ("check", "check"), ("bench", "bench")),
        *(("plan", "plan"), ("recipe", "recipes")),
    ],
)
def test_every_option_is_on_its_page(command, page):
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    words = set(re.findall("--[a-z-]+", text)) | {"--help"}
    known = parser_of(command)._option_string_actions
    assert {option for option in known if option.startswith("--")} <= words


def dotted(node):
    """Returns the words of `a.b.c`, or none for another expression."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return [*before, node.attr] if before else []
    return [node.id] if isinstance(node, ast.Name) else []


def names_in(tree):
    """Returns what the names of a block stand for, where it is the package's."""
    names = {"keras_fastnet": keras_fastnet, "fastnet": keras_fastnet}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and "keras_fastnet" in (node.module or ""):
            module = importlib.import_module(node.module)
            for alias in node.names:
                names[alias.asname or alias.name] = getattr(module, alias.name)
    return names


@every_page
def test_python_compiles_and_calls_what_exists(page):
    wrong = []
    for block in blocks(page, "python"):
        tree = ast.parse(block.text)
        names = names_in(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            first, *rest = dotted(node.func) or [""]
            if first not in names:
                continue
            called = names[first]
            for name in rest:
                called = getattr(called, name)
            given = {word.arg: None for word in node.keywords if word.arg}
            try:
                if inspect.isclass(called):
                    # The signature of a class may be its metaclass's.
                    inspect.signature(called.__init__).bind_partial(
                        None, *node.args, **given
                    )
                else:
                    inspect.signature(called).bind_partial(*node.args, **given)
            except TypeError as error:
                wrong.append(f"{ast.unparse(node)}: {error}")
    assert not wrong


@every_page
def test_imports_of_python_exist(page):
    missing = set()
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.Import):
                missing |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                missing.add(node.module.split(".")[0])
    # Packages of other environments, and those from which the pages lead away.
    missing -= {"horovod", "official", "ray", "tensorflow_addons", "tf_keras"}
    assert {name for name in missing if not importlib.util.find_spec(name)} == set()
