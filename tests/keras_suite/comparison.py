"""Compares the outcomes of Keras's tests by mode with the list of known failures."""

import json
import pathlib
from typing import Any


def read_known(path: pathlib.Path) -> dict[str, list[str]]:
    """Returns the ids of the tests that are known to fail, by mode.

    The file lists causes, each with `reason`, `mirrored` (the outcome under
    `MirroredStrategy`), `modes` and `tests`.
    """
    causes = json.loads(path.read_text())
    return {
        mode: [
            test
            for cause in causes
            if mode in cause["modes"]
            for test in cause["tests"]
        ]
        for mode in ("one", "two")
    }


class Outcomes:
    """Outcomes of tests in one mode.

    Attributes:
        texts: By id, `"passed"`, `"skipped"` or `"failed"`.
        errors: By id, the error of those that failed.
    """

    def __init__(self):
        self.texts: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.unfinished: list[str] = []

    def read(self, records: list[dict[str, Any]]) -> None:
        """Reads the records that the plugin wrote, in their order."""
        began = {record["id"] for record in records if record["outcome"] == "began"}
        for record in records:
            test, outcome = record["id"], record["outcome"]
            if outcome == "began" or self.texts.get(test) == "failed":
                continue
            self.texts[test] = outcome
            if outcome == "failed":
                self.errors[test] = record["error"]
        self.unfinished = sorted(began - set(self.texts))

    def give_up_unfinished(self, error: str) -> None:
        """Marks tests that began and have no outcome as failed."""
        for test in self.unfinished:
            self.texts[test] = "failed"
            self.errors[test] = error
        self.unfinished = []

    def update(self, others: "Outcomes") -> None:
        """Adds the outcomes of other tests."""
        self.texts.update(others.texts)
        self.errors.update(others.errors)

    def of(self, outcome: str, files: list[str]) -> set[str]:
        """Returns the tests of some files that have an outcome."""
        return {
            test
            for test, text in self.texts.items()
            if text == outcome and test.split("::")[0] in files
        }


class Comparison:
    """Compares plain Keras with the strategies.

    Args:
        outcomes: By mode.
        known: The ids of known failures, by mode.
    """

    def __init__(self, outcomes: dict[str, Outcomes], known: dict[str, list[str]]):
        self._outcomes = outcomes
        self._known = {mode: known[mode] for mode in outcomes if mode in known}

    @property
    def passed(self) -> int:
        """The number of tests that passed under a strategy, in all modes."""
        return sum(
            text == "passed"
            for mode in self._known
            for text in self._outcomes[mode].texts.values()
        )

    def failed_unlisted(self) -> list[str]:
        """Returns the tests that failed under a strategy and are not in the list."""
        return sorted(
            {
                test
                for mode, known in self._known.items()
                for test, text in self._outcomes[mode].texts.items()
                if text == "failed" and test not in known
            }
        )

    def problems(self) -> list[str]:
        """Returns one line per test for which the list is wrong."""
        plain = self._outcomes["plain"]
        lines = []
        for mode, known in self._known.items():
            seen = self._outcomes[mode]
            lines += [
                f"FAILED [{mode}] {test}: {_first_line(seen.errors[test])}"
                for test in self.failed_unlisted()
                if seen.texts.get(test) == "failed"
                and plain.texts.get(test) == "passed"
            ]
            lines += [
                f"LISTED, but {seen.texts[test]} [{mode}] {test}: take it out of "
                "known.json"
                for test in known
                if seen.texts.get(test, "failed") != "failed"
            ]
        return lines

    def table(self, files: dict[str, list[str]]) -> str:
        """Returns the numbers of tests by group of files, in Markdown."""
        plain = self._outcomes["plain"]
        rows = [
            ("group", "run", "plain", "one device", "two devices", "MirroredStrategy")
        ]
        rows.append(("---",) + ("---:",) * 5)
        totals = [0] * 5
        for group, paths in files.items():
            if not paths:
                continue
            passing = plain.of("passed", paths)
            ran = passing | plain.of("failed", paths)
            columns = [len(ran), len(passing)]
            for mode in ("one", "two", "mirrored"):
                seen = self._outcomes.get(mode, Outcomes())
                columns.append(len(passing & seen.of("passed", paths)))
            totals = [a + b for a, b in zip(totals, columns, strict=True)]
            rows.append((group, *map(str, columns)))
        rows.append(("all", *map(str, totals)))
        listed = [str(len(self._known.get(mode, {}))) for mode in ("one", "two")]
        rows.append(("in the list", "", "", *listed, ""))
        if "mirrored" not in self._outcomes:
            rows = [row[:-1] for row in rows]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:300]
