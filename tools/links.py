"""Checks that every relative link in the repository's markdown files leads somewhere.

The file must exist and, where the link names a heading (`#words-of-it`), have that heading.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def prose(path: pathlib.Path) -> str:
    """Returns the text without its fenced code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: pathlib.Path) -> set[str]:
    """Returns the names that a heading can be linked by."""
    headings = re.findall(r"^#+ +(.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    findings, count = [], 0
    for name in listed:
        path = ROOT / name
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
            if re.match(r"\w+:", link):
                continue
            count += 1
            target, _, anchor = link.partition("#")
            there = (path.parent / target).resolve() if target else path
            if not there.exists():
                findings.append(f"{name}: {link} leads nowhere")
            elif anchor and anchor not in anchors(there):
                findings.append(f"{name}: {target or name} has no heading #{anchor}")
    print("\n".join(findings or [f"{len(listed)} documents, {count} links hold"]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
