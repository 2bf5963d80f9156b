"""Sums the reports of one ctest run into the line `N passed, N failed, N skipped`.

Counts the cases of every GoogleTest program by its own XML report; a program that ended without one
(a crash, a time limit) counts as one failed test, any other program as one test. Exits 1 if one failed.
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count_cases(report: pathlib.Path) -> collections.Counter:
    """Counts the test cases of one GoogleTest report by outcome."""
    counts = collections.Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None:
            counts["failed"] += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def main(folder: pathlib.Path) -> int:
    total = collections.Counter()
    for program in ElementTree.parse(folder / "ctest.junit").iter("testcase"):
        name, ok = program.get("name"), program.get("status") == "run"
        report = folder / f"{name}.xml"
        counts = count_cases(report) if report.exists() else collections.Counter()
        if not ok and counts["failed"] == 0:
            print(f"{name} ended without naming a failed test")
            counts["failed"] += 1
        if not counts:
            counts["passed"] += 1
        total += counts
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
