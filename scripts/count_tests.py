"""Add up what the Rust and Python test runs counted, and print one line: ``N passed, N failed, N skipped``.

Usage: ``python scripts/count_tests.py RUST_LOG PYTEST_XML``. Exits 1 if anything failed or nothing ran.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

# `cargo test` prints one such line per binary; nextest one summary for all.
_CARGO = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
_NEXTEST = re.compile(r"Summary \[.*?\] .*?(\d+) passed")
_NEXTEST_PART = re.compile(r"(\d+) (failed|skipped|timed out)")


def rust(log: str) -> tuple[int, int, int]:
    """Passed, failed and skipped tests in a log of ``cargo test`` or nextest."""
    passed = failed = skipped = 0
    for line in re.sub(r"\x1b\[[0-9;]*m", "", log).splitlines():
        if match := _CARGO.search(line):
            passed, failed, skipped = (
                a + int(b) for a, b in zip((passed, failed, skipped), match.groups(), strict=True)
            )
        elif match := _NEXTEST.search(line):
            passed += int(match[1])
            for count, kind in _NEXTEST_PART.findall(line):
                if kind == "skipped":
                    skipped += int(count)
                else:
                    failed += int(count)
    return passed, failed, skipped


def python(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests in a JUnit report."""
    suites = ET.parse(report).getroot().iter("testsuite")
    passed = failed = skipped = 0
    for suite in suites:
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        omitted = int(suite.get("skipped", 0))
        failed += bad
        skipped += omitted
        passed += int(suite.get("tests", 0)) - bad - omitted
    return passed, failed, skipped


def main() -> int:
    """Print the sum; the exit status."""
    counts = [rust(Path(sys.argv[1]).read_text()), python(Path(sys.argv[2]))]
    passed, failed, skipped = (sum(column) for column in zip(*counts, strict=True))
    sys.stdout.write(f"{passed} passed, {failed} failed, {skipped} skipped\n")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    raise SystemExit(main())
