"""Checks the laws of the rooms (the folders of kvlease/), which no compiler checks.

The include table, what the pure rooms must not use, which files may include a heavy header, that
every file says at its top what it is for, and how long lines, functions and files may be. Each
finding names the place and the way out. `--pure-sources` prints the pure rooms' .cc files instead.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What a room may include beside itself; CMakeLists.txt must not say more.
MAY_INCLUDE = {
    "base": set(),
    "core": {"base"},
    "wire": {"base", "core"},
    "transport": {"base", "core"},
    "fabric": {"base", "core", "transport"},
    "nixl": {"base", "core", "transport"},
    "connector": {"base", "core", "wire", "transport"},
    "engine": {"base", "core", "connector"},
    "synthetic": {"base", "core", "connector", "engine"},
    "route": {"base", "core", "wire"},
    "obs": {"base", "core"},
    "runtime": {"base"},
}
EVERYTHING = set(MAY_INCLUDE) | {"serving"}
MAY_INCLUDE |= {"serving": EVERYTHING, "cli": EVERYTHING}

PURE = ("base", "core", "wire", "transport", "fabric", "connector", "engine", "synthetic", "route")

# What a pure room must not use, and what to use there.
BANNED_IN_PURE = [
    (r"\b(steady_clock|system_clock|high_resolution_clock)\b|\b(clock_gettime|gettimeofday)\(",
     "take `Instant now` as the last parameter"),
    (r"<random>|\brandom_device\b|\bmt19937|\bs?rand\(|\bgetrandom\(",
     "draw from a Prng whose seed the caller gives"),
    (r"\bstd::(recursive_|shared_|timed_)?mutex\b|\b(lock_guard|unique_lock|scoped_lock)\b"
     r"|\bcondition_variable|\bcounting_semaphore",
     "the loop thread owns the state: hand the value over at the room's edge"),
    (r"\bsleep_(for|until)\b|\bu?sleep\(|\bnanosleep\(", "return a deadline, and let the host wait"),
    (r"\bthrow\b|\btry\s*\{|\bcatch\s*\(", "return a Result, or KVL_CHECK what only a bug can break"),
    (r"<(format|print)>", "g++ 12 has neither: append to a std::string"),
    (r"\bstd::unordered_(map|set|multimap|multiset)\b",
     "an ordered container, or boost::unordered_flat_map that is never iterated"),
]
# Its tests may print, read files, and run a second thread where memory order is what they test.
BANNED_OUTSIDE_TESTS = [
    (r"<(fstream|filesystem|sys/socket\.h|unistd\.h|fcntl\.h)>|\bfopen\(|\b(std::)?getenv\(",
     "take the value as a parameter; runtime and cli do I/O"),
    (r"\bstd::j?thread\b|\bstd::(async|future|promise)\b|\bthis_thread\b|\bpthread_",
     "offer poll(now) and next_deadline(), and let the host wait"),
    (r"<iostream>|\bstd::(cout|cerr|clog)\b|\bf?printf\(|\bfputs\(",
     "return a typed event; the host logs it"),
]
# The one place that prints: a failed check, on its way to abort().
MAY_PRINT = {"kvlease/base/check.h"}

# Headers that cost seconds to compile, and the files that pay for them.
HEAVY = [
    (r"<boost/json", [r"kvlease/wire/\w+\.cc", r"kvlease/(serving|cli)/\w+\.cc", r"tests/.*\.cc"]),
    (r"<boost/(asio|beast)", [r"kvlease/(runtime|serving)/\w+\.(h|cc)"]),
    (r"<boost/url", [r"kvlease/runtime/\w+\.cc"]),
    (r"<sodium", [r"kvlease/wire/\w+\.cc", r"kvlease/cli/\w+\.cc"]),
    (r"<CLI/", [r"kvlease/cli/\w+\.cc"]),
    (r"<prometheus/", [r"kvlease/obs/\w+\.cc"]),
    (r"<dlfcn\.h>", [r"kvlease/nixl/\w+\.cc"]),
]

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600


class Source:
    """One C++ file: its lines, and the same lines without comments and the insides of literals."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text()
        self.lines = self.text.splitlines()
        self.code = blank_comments_and_literals(self.text).splitlines()
        parts = self.name.split("/")
        self.room = parts[1] if parts[0] == "kvlease" else None
        self.is_test = self.room is None or bool(re.search(r"(_test|testing)\.(h|cc)$", self.name))

    def includes(self):
        """Yields (line number, what stands after #include)."""
        for number, line in enumerate(self.lines, 1):
            if match := re.match(r"\s*#include\s+(\S+)", line):
                yield number, match[1]


def blank_comments_and_literals(text: str) -> str:
    """Replaces them by nothing (literals by empty ones), and keeps every line break."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<mark>\w*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
        re.DOTALL)

    def blank(match):
        kept = '""' if match[0][0] in "R\"'" else ""
        return kept + "\n" * match[0].count("\n")

    # Names of headers are literals that count.
    includes = re.compile(r'^(\s*#include\s+)"([^"]+)"', re.MULTILINE)
    return pattern.sub(blank, includes.sub(r"\1<\2>", text))


def check_includes(source: Source):
    for number, header in source.includes():
        if header.startswith("<kvlease/"):
            yield number, f"{header} in angle brackets: write \"kvlease/…\""
        if source.room and (match := re.match(r'"kvlease/(\w+)/', header)):
            if match[1] != source.room and match[1] not in MAY_INCLUDE[source.room]:
                allowed = ", ".join(sorted(MAY_INCLUDE[source.room])) or "nothing else of ours"
                yield number, f"room {source.room} may include {allowed}, not {match[1]}"
        elif header.startswith('"') and not re.match(r'"(kvlease|tests|bench)/', header):
            yield number, f"{header}: the include path is the repository path, \"kvlease/…\""
        for pattern, files in HEAVY:
            if re.match(pattern, header) and not any(re.fullmatch(f, source.name) for f in files):
                yield number, f"{header} is for {' '.join(files)}: go through what they declare"


def check_pure(source: Source):
    if source.room not in PURE:
        return
    banned = list(BANNED_IN_PURE)
    if not source.is_test and source.name not in MAY_PRINT:
        banned += BANNED_OUTSIDE_TESTS
    for number, line in enumerate(source.code, 1):
        for pattern, instead in banned:
            if match := re.search(pattern, line):
                yield number, f"`{match[0].strip()}` in a pure room: {instead}"


def check_hash_order(source: Source):
    """An index by hash may be asked, never walked: its order differs between builds."""
    if source.room not in PURE:
        return
    stem = re.sub(r"\.(h|cc)$", "", source.name)
    pair = "\n".join(p.read_text() for e in (".h", ".cc") if (p := ROOT / (stem + e)).exists())
    names = set(re.findall(r"unordered_(?:flat|node)_(?:map|set)<[^;{}()]*>\s+(\w+)[;{ =]", pair))
    for number, line in enumerate(source.code, 1):
        for name in names:
            if re.search(rf":\s*{name}\)|\b{name}\.c?begin\(", line):
                yield number, f"`{name}` is ordered by hash: walk an ordered container instead"


def check_form(source: Source):
    if not source.text.startswith("//"):
        yield 1, "no comment at the top: say in a sentence or two what this file is for"
    if source.name.endswith(".h") and "#pragma once" not in source.text:
        yield 1, "no #pragma once"
    if len(source.lines) > FILE_LINES_MAX:
        yield 1, f"{len(source.lines)} lines, at most {FILE_LINES_MAX}: split it by concept"
    for number, line in enumerate(source.lines, 1):
        if len(line) > COLUMNS_MAX:
            yield number, f"{len(line)} columns, at most {COLUMNS_MAX}"
        if match := re.search(r"\b(FIXME|XXX|TODO(?!\(\w+\):))\b", line):
            yield number, f"{match[0]}: finish it, or write TODO(topic): sentence"


def check_function_lengths(source: Source):
    """Counts from the line where the statement begins to the one that closes its brace.

    Lines `case …:` are rows of a table and do not count.
    """
    depth, begins, function = 0, 1, None  # begins: where the present statement does
    for number, line in enumerate(source.code, 1):
        if function is None and re.search(r"[)\w>] \{$", line) and not any(
                re.match(r"\s*(inline )?(namespace|class|struct|enum|union|extern)\b", part)
                for part in source.code[begins - 1:number]):
            function, outer, rows = begins, depth, 0
        depth += line.count("{") - line.count("}")
        if function is not None:
            rows += bool(re.match(r"\s*case [\w:]+:", line))
            if depth <= outer:
                if (length := number - function + 1 - rows) > FUNCTION_LINES_MAX:
                    yield function, f"a function of {length} lines, at most {FUNCTION_LINES_MAX}"
                function = None
        if not line.strip() or re.search(r"[;{}]$|^#|^ (public|private|protected):", line):
            begins = number + 1


def check_build_file():
    """What CMakeLists.txt links must be what the table allows."""
    text = (ROOT / "CMakeLists.txt").read_text()
    for match in re.finditer(r"kvlease_room\((\w+)([^)]*)\)", text):
        depends = re.search(r"DEPENDS((?: \w+)+)", match[2].replace("PRIVATE", ")"))
        for room in depends[1].split() if depends else []:
            if room not in MAY_INCLUDE.get(match[1], set()):
                line = text[:match.start()].count("\n") + 1
                yield line, f"room {match[1]} links {room}, which tools/rooms.py does not allow"


def check_other_files():
    """Scripts, build files and documents say at their top what they are for, too."""
    openings = {".py": '"""', ".cmake": "#", ".txt": "#", ".sh": "#!", ".md": "# "}
    for folder in (".", "cmake", "tools", "docs", "tests"):
        files = ROOT.joinpath(folder).glob("*") if folder == "." else ROOT.joinpath(folder).rglob("*")
        for path in sorted(files):
            opening = openings.get(path.suffix)
            if opening and path.is_file() and not path.read_text().startswith(opening):
                yield path.relative_to(ROOT), f"does not begin with `{opening}` and its purpose"


def main() -> int:
    sources = [Source(path) for folder in ("kvlease", "tests", "bench")
               for path in sorted(ROOT.joinpath(folder).rglob("*")) if path.suffix in (".h", ".cc")]
    if sys.argv[1:] == ["--pure-sources"]:
        print("\n".join(s.name for s in sources
                        if s.room in PURE and s.name.endswith(".cc") and not s.is_test))
        return 0
    checks = (check_includes, check_pure, check_hash_order, check_form, check_function_lengths)
    findings = [f"{s.name}:{number}: {words}" for s in sources for check in checks
                for number, words in check(s)]
    findings += [f"CMakeLists.txt:{number}: {words}" for number, words in check_build_file()]
    findings += [f"{path}:1: {words}" for path, words in check_other_files()]
    print("\n".join(findings or [f"{len(sources)} files keep the laws of their rooms"]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
