"""Runs the benchmark programs and says what docs/performance.md explains.

bench.py BUILD_DIR          all figures, each beside its goal, as a table
bench.py BUILD_DIR --json   the same as one JSON object
bench.py BUILD_DIR --check  what CI gates: instruction counts, and ratios with a wide margin

Both sides of a ratio take turns in rounds of some 30 ms, and a ratio is the median over the pairs
of rounds. Times alone are not comparable with those of another machine or run.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cpython_model import CPythonModel

LIVE = (0, 1_000, 10_000)
MANY = LIVE[-1]
ROUNDS = 15

# Instructions that callgrind counts, with the release build. A bound is the present count and a
# tenth. It may be raised, in a commit that says what the instructions are for.
INSTRUCTIONS_MAX = {"idle_step": 2_400, "renewed_id": 300, "grant_and_free": 3_700}
FLAT_MAX = 1.1  # an idle step at 10,000 leases against one at none
# Far from what is measured on a quiet machine, so that only a mistake gets there.
RATIOS_MIN = {"renew_vs_cpython_10k": 10.0, "pull_vs_raw_16MiB": 0.5}

AT_MOST, AT_LEAST = "at most", "at least"


@dataclass(frozen=True)
class Row:
    """A line of the table: a key of the figures, or (key, size)."""

    key: str
    words: str
    form: str = "{:,.0f} ns"
    size: str | None = None
    goal: tuple[str, float] | None = None


ROWS = (
    *(Row("idle_step_ns", f"idle step, {live:,} live leases", size=str(live), goal=(AT_MOST, 2_000))
      for live in LIVE),
    Row("idle_step_nixl_ns", "idle step, NIXL's inbox included"),
    Row("idle_step_vs_cpython_10k", "  CPython model / ours at 10,000", "{:,.0f} x"),
    Row("renewed_id_ns", "renewed id at 10,000 live leases", "{:,.1f} ns"),
    Row("renew_vs_cpython_10k", "  CPython model / ours", "{:,.1f} x", goal=(AT_LEAST, 20)),
    Row("grant_and_free_ns", "grant and free, at 10,000"),
    Row("grant_and_free_vs_cpython_10k", "  CPython model / ours", "{:,.2f} x"),
    Row("pull_ms", "pull of 1 MiB, validated", "{:,.3f} ms", "1MiB"),
    Row("pull_vs_raw_1MiB", "  bare reads / pull", "{:.2f}"),
    Row("validation_share_1MiB", "  share of the validation", "{:.3f}", goal=(AT_MOST, 0.10)),
    Row("pull_ms", "pull of 16 MiB, validated", "{:,.3f} ms", "16MiB"),
    Row("pull_vs_raw_16MiB", "  bare reads / pull", "{:.2f}", goal=(AT_LEAST, 0.8)),
    Row("reclaim_over_bound_s", "last block back after kill -9, over the bound", "{:.3f} s",
        goal=(AT_MOST, 1)),
    Row("rss_beside_pool_mib", "memory of an instance beside its pool", "{:.1f} MiB",
        goal=(AT_MOST, 100)),
    Row("rss_of_nixl_alone_mib", "  of which NIXL alone", "{:.1f} MiB"),
)


class Program:
    """A benchmark program that answers rounds (rounds.h)."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, bufsize=1)

    def round(self, operation: str, size: int, times: int) -> float:
        """Nanoseconds for each time."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{operation} {size} {times}\n")
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.process.args} ended in {operation} {size}")
        return float(answer)


def say(words: str) -> None:
    print(f"==> {words}", file=sys.stderr, flush=True)


def take_turns(sides: dict[str, object], rounds: int) -> dict[str, list[float]]:
    """Calls each side once to warm up, then `rounds` times in turn; the values by side."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            value = side()  # type: ignore[operator]
            if number > 0:
                values[name].append(value)
    return values


def median_of(f, *columns: list[float]) -> float:
    return statistics.median(f(*row) for row in zip(*columns))


def measure_leases(bench: Path, figures: dict) -> None:
    lease = Program(bench / "lease_bench")
    model = CPythonModel(MANY)
    renewals = take_turns({"ours": lambda: lease.round("renew_all", MANY, 100) / MANY,
                           "cpython": lambda: model.renew_all(4) / MANY}, ROUNDS)
    figures["renewed_id_ns"] = statistics.median(renewals["ours"])
    figures["renew_vs_cpython_10k"] = median_of(lambda a, b: b / a, renewals["ours"],
                                                renewals["cpython"])
    steps = take_turns({str(live): lambda live=live: lease.round("idle_step", live, 40_000)
                        for live in LIVE}
                       | {"cpython": lambda: model.idle_step(50)}, ROUNDS)
    figures["idle_step_ns"] = {live: statistics.median(steps[str(live)]) for live in map(str, LIVE)}
    figures["idle_step_vs_cpython_10k"] = median_of(lambda a, b: b / a, steps[str(MANY)],
                                                    steps["cpython"])
    grants = take_turns({"ours": lambda: lease.round("grant_and_free", MANY, 50_000),
                         "cpython": lambda: model.grant_and_free(50_000)}, ROUNDS)
    figures["grant_and_free_ns"] = statistics.median(grants["ours"])
    figures["grant_and_free_vs_cpython_10k"] = median_of(lambda a, b: b / a, grants["ours"],
                                                         grants["cpython"])


def measure_pulls(bench: Path, figures: dict) -> None:
    pull = Program(bench / "pull_bench")
    figures["pull_ms"] = {}
    for mib, times in ((1, 100), (16, 8)):
        turns = take_turns({operation: lambda operation=operation: pull.round(operation, mib, times)
                            for operation in ("read", "pull", "pull_unvalidated")}, ROUNDS)
        figures["pull_ms"][f"{mib}MiB"] = statistics.median(turns["pull"]) / 1e6
        figures[f"pull_vs_raw_{mib}MiB"] = median_of(lambda a, b: a / b, turns["read"], turns["pull"])
        figures[f"validation_share_{mib}MiB"] = median_of(
            lambda a, b: (a - b) / a, turns["pull"], turns["pull_unvalidated"])
    figures["idle_step_nixl_ns"] = statistics.median(
        pull.round("idle_step", 0, 20_000) for _ in range(ROUNDS))


def measure_instances(bench: Path, figures: dict) -> None:
    run = subprocess.run([bench / "instances_bench"], stdout=subprocess.PIPE, text=True, check=True)
    for line in run.stdout.splitlines():
        name, value = line.split()
        figures[name] = max(float(value), figures.get(name, float(value)))


def report(figures: dict) -> None:
    print(f"{'figure':48} {'value':>14}   goal")
    for row in ROWS:
        value = figures[row.key][row.size] if row.size else figures[row.key]
        goal = ""
        if row.goal:
            way, limit = row.goal
            met = value <= limit if way == AT_MOST else value >= limit
            goal = f"{way} {limit:g}, {'met' if met else 'MISSED'}"
        print(f"{row.words:48} {row.form.format(value):>14}   {goal}".rstrip())
    print(f"\non {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; compare ratios, not times")


def instructions(bench: Path, operation: str, size: int, times: int) -> float:
    """Instructions for each time, the difference of two runs, so that none of the set-up counts."""

    def count(rounds: str) -> int:
        run = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
                              bench / "lease_bench"], input=rounds, capture_output=True, text=True)
        found = re.search(r"Collected : (\d+)", run.stderr)
        if run.returncode or not found:
            sys.exit(f"callgrind could not count {operation}: {run.stderr}")
        return int(found[1])

    once = f"{operation} {size} 1\n"
    return (count(once + f"{operation} {size} {times}\n") - count(once)) / times


def check(bench: Path) -> bool:
    say("Counting instructions")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = {name: pool.submit(instructions, bench, *arguments) for name, arguments in {
            "idle_step_0": ("idle_step", 0, 1_000),
            "idle_step": ("idle_step", MANY, 1_000),
            "renewed_id": ("renew_all", MANY, 10),
            "grant_and_free": ("grant_and_free", MANY, 1_000)}.items()}
    counted = {name: future.result() for name, future in counts.items()}
    counted["renewed_id"] /= MANY
    flat = counted["idle_step"] / counted["idle_step_0"]

    say("Comparing with the CPython model and with bare reads")
    figures: dict = {}
    measure_leases(bench, figures)
    measure_pulls(bench, figures)

    gates = [(f"instructions of {name}", counted[name], AT_MOST, float(limit))
             for name, limit in INSTRUCTIONS_MAX.items()]
    gates.append(("idle step at 10,000 leases / at none", flat, AT_MOST, FLAT_MAX))
    gates += [(name, figures[name], AT_LEAST, limit) for name, limit in RATIOS_MIN.items()]
    failed = 0
    for name, value, way, limit in gates:
        holds = value <= limit if way == AT_MOST else value >= limit
        failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {value:,.2f}, {way} {limit:g}")
    if failed:
        print("The bounds stand at the top of bench/bench.py, with what it takes to move one.")
    return failed == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build_dir", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    bench = arguments.build_dir / "bench"
    if arguments.check:
        return 0 if check(bench) else 1
    figures: dict = {}
    for words, measure in (("leases", measure_leases), ("pulls", measure_pulls),
                           ("instances", measure_instances)):
        say(f"Measuring {words}")
        measure(bench, figures)
    if arguments.json:
        print(json.dumps(figures))
    else:
        report(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
