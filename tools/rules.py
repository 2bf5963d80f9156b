"""Checks docs/rules.tsv against docs/protocol.md and the code.

Every rule of the protocol has one line, `L4<TAB>implemented` or `L37<TAB>pending`. An implemented
rule is cited (`L4`) by code that implements it and by a test that proves it. Pending rules that have
both citations already are listed, to be looked at and marked.
"""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def citations() -> tuple[dict, dict]:
    """Returns, for code and for tests, the files that cite each rule."""
    code, tests = collections.defaultdict(set), collections.defaultdict(set)
    for path in sorted(ROOT.joinpath("kvlease").rglob("*")) + sorted(ROOT.joinpath("tests").rglob("*")):
        if path.suffix in (".h", ".cc"):
            is_test = path.name.endswith(("_test.cc", "testing.cc", "testing.h"))
            for rule in re.findall(r"\bL\d+\b", path.read_text()):
                (tests if is_test else code)[rule].add(path.relative_to(ROOT).as_posix())
    return code, tests


def main() -> int:
    findings, ready = [], []
    rules = re.findall(r"^- \*\*(L\d+) ", ROOT.joinpath("docs/protocol.md").read_text(), re.MULTILINE)
    rows = [line.split("\t") for line in ROOT.joinpath("docs/rules.tsv").read_text().splitlines()]
    if [row[0] for row in rows] != rules:
        findings.append("docs/rules.tsv: its rules are not those of docs/protocol.md, in that order")

    code, tests = citations()
    for rule, state in rows:
        missing = [where for where, cited in (("code", code), ("a test", tests)) if rule not in cited]
        if state not in ("implemented", "pending"):
            findings.append(f"docs/rules.tsv: {rule} is `{state}`, neither implemented nor pending")
        elif state == "implemented" and missing:
            findings.append(f"docs/rules.tsv: {rule} is implemented, but not cited in {' nor in '.join(missing)}")
        elif state == "pending" and not missing:
            ready.append(rule)
    for rule in sorted((code.keys() | tests.keys()) - set(rules)):
        findings.append(f"{min(code[rule] | tests[rule])}: cites {rule}, which is no rule")

    if ready:
        print(f"pending, though cited in code and in a test: {' '.join(ready)}")
    states = collections.Counter(state for _, state in rows)
    summary = f"{len(rows)} rules, {states['implemented']} implemented, {states['pending']} pending"
    print("\n".join(findings or [summary]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
