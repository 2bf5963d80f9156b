"""Checks docs/scenarios.md against the tests.

Every fault seen in the field has one row, `| A01 | what happened | where |`. `where` links the
files that hold tests named after the id (`A01_RenewedHeadDoesNotHideExpired`), all of them and no
others, or says in words why there is none. `--update` writes the links anew and keeps the words.
"""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNTS = {"A": 19, "B": 20, "C": 14, "D": 17, "E": 4, "F": 16, "G": 4, "H": 14}
IDS = [f"{group}{number:02}" for group, count in COUNTS.items() for number in range(1, count + 1)]
DOCUMENT = ROOT / "docs/scenarios.md"
ROW = re.compile(r"^(\| ([A-H]\d\d) \| [^|]+ \| )([^|]*)( \|)$", re.MULTILINE)
TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P)\(\s*\w+,\s*([A-H]\d\d)_\w+\)", re.MULTILINE)


def tests_by_id() -> dict[str, set[str]]:
    """Returns, for each id, the files with tests that are named after it."""
    files = collections.defaultdict(set)
    for folder in ("kvlease", "tests"):
        for path in sorted(ROOT.joinpath(folder).rglob("*")):
            if path.name.endswith(("_test.cc", "_testing.h")):
                for scenario in TEST.findall(path.read_text()):
                    files[scenario].add(path.relative_to(ROOT).as_posix())
    return files


def check():
    rows = [(row[2], row[3]) for row in ROW.finditer(DOCUMENT.read_text())]
    if [scenario for scenario, _ in rows] != IDS:
        yield f"its rows are not {IDS[0]} … {IDS[-1]}, each once, in that order"
    tests = tests_by_id()
    for scenario, where in rows:
        listed = set(re.findall(r"\]\(\.\./([^)]+)\)", where))
        for path in sorted(tests[scenario] - listed):
            yield f"{scenario}: {path} has a test of that name; list it"
        for path in sorted(listed - tests[scenario]):
            yield f"{scenario}: {path} has no test of that name"
        if not where.strip():
            yield f"{scenario}: no test, and no word on why"
    for scenario in sorted(tests.keys() - set(IDS)):
        yield f"{scenario}: a test is named after it, but there is no such scenario"


def update():
    tests = tests_by_id()

    def rewrite(row: re.Match) -> str:
        if not tests[row[2]]:
            return row[0]
        links = [f"[{path.rpartition('/')[2]}](../{path})" for path in sorted(tests[row[2]])]
        words = row[3].partition("; ")[2] if row[3].startswith("[") else ""
        return row[1] + ", ".join(links) + ("; " + words if words else "") + row[4]

    DOCUMENT.write_text(ROW.sub(rewrite, DOCUMENT.read_text()))


def main() -> int:
    if sys.argv[1:] == ["--update"]:
        update()
    findings = [f"docs/scenarios.md: {finding}" for finding in check()]
    tested = len(tests_by_id())
    summary = f"{len(IDS)} scenarios, {tested} tested by name, {len(IDS) - tested} with a reason"
    print("\n".join(findings or [summary]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
