"""Checks the repository's markdown files against the repository.

Every relative link leads to a file and, where it names one, to a heading (`#words-of-it`). A fenced
block under a comment that names a file (`<!-- tests/install/lease_once.cc -->`) is that file's text,
or a part of it. docs/configuration.md names every flag and every option of the protocol, and
docs/scenarios.md the tests of each scenario (scenarios.py).
"""

import pathlib
import re
import subprocess
import sys

import scenarios

ROOT = pathlib.Path(__file__).resolve().parent.parent


def prose(text: str) -> str:
    """Returns the text without its fenced code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Returns the names that a heading can be linked by."""
    headings = re.findall(r"^#+ +(.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(path: pathlib.Path, text: str):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"\w+:", link):
            continue
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve() if target else path
        if not there.exists():
            yield f"{link} leads nowhere"
        elif anchor and anchor not in anchors(there.read_text()):
            yield f"{target or path.name} has no heading #{anchor}"


def check_quotes(path: pathlib.Path, text: str):
    quotes = re.findall(r"^<!-- (\S+/\S+) -->\n```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for source, quoted in quotes:
        if not (ROOT / source).exists():
            yield f"quotes {source}, which does not exist"
        elif quoted not in (ROOT / source).read_text():
            yield f"quotes {source}, but not as it stands there"


def check_options(path: pathlib.Path, text: str):
    if path != ROOT / "docs/configuration.md":
        return
    rows = re.findall(r'OptionRow\{\s*"(\w+)",\s*"([^"]*)"',
                      (ROOT / "kvlease/core/lease_config.cc").read_text())
    for name, default in rows:
        if f"| `{name}` | {default} |" not in text:
            yield f"has no row for {name} with its default, {default}"
    for source in ("serve.cc", "route.cc", "top.cc", "access_flags.cc"):
        flags = (ROOT / "kvlease/cli" / source)
        for flag in re.findall(r'"(--[a-z-]+)"', flags.read_text() if flags.exists() else ""):
            if f"`{flag}`" not in text:
                yield f"does not name {flag} ({source})"


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    paths = [ROOT / name for name in listed if (ROOT / name).exists()]
    findings = [f"{path.relative_to(ROOT)}: {finding}" for path in paths
                for check in (check_links, check_quotes, check_options)
                for finding in check(path, path.read_text())]
    findings += [f"docs/scenarios.md: {finding}" for finding in scenarios.check()]
    print("\n".join(findings or [f"the links, quotes and options of {len(paths)} documents hold"]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
