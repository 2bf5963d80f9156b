"""Draws docs/adaptive-lease.svg: the replay of a trace with fixed and with adaptive leases.

Usage: adaptive_lease_figure.py [BUILD_FOLDER], which holds traces_tests.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, LEFT, RIGHT = 720, 56, 12
TOP, HEIGHT, GAP = 28, 150, 46
SECONDS, DURATION_MAX = 3600, 30
COLOURS = {"fixed": "#9a9a9a", "adaptive": "#1f6fb4"}


def read_replays(build: pathlib.Path):
    """Returns {policy: [(seconds, duration)]} and {policy: [(seconds, block-seconds)]}."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "figure")
        subprocess.run([build / "traces_tests", "--gtest_filter=Figure.*"], check=True,
                       env=os.environ | {"KVL_FIGURE_DATA": str(path)}, stdout=subprocess.DEVNULL)
        lines = [line.split() for line in path.read_text().splitlines()]
    pick = lambda kind: {policy: [(float(at), float(value)) for name, what, at, value in lines
                                  if (name, what) == (policy, kind)] for policy in COLOURS}
    return pick("duration"), pick("death")


def x_of(seconds: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * seconds / SECONDS


def steps(durations) -> str:
    """Returns the path of what was granted, one point a pixel: the longest of its time."""
    pixels = {}
    for at, duration in durations:
        pixel = round(x_of(at))
        pixels[pixel] = max(pixels.get(pixel, 0), duration)
    height = lambda duration: TOP + HEIGHT * (1 - duration / DURATION_MAX)
    points, last = [], None
    for pixel, duration in sorted(pixels.items()) + [(round(x_of(SECONDS)), None)]:
        if last is not None:
            points.append(f"H{pixel}")
        if duration is not None:
            points.append(f"V{height(duration):.1f}" if points else f"M{pixel} {height(duration):.1f}")
            last = duration
    return "".join(points)


def text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#444") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}" stroke="#ddd"/>'


def draw(durations, deaths) -> str:
    below = TOP + HEIGHT + GAP
    most = max(value for rows in deaths.values() for _, value in rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {below + HEIGHT + 30}" '
           'font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="#fff"/>',
           text(LEFT, 16, "seconds granted; the way to D is slow in the grey time"),
           f'<rect x="{x_of(1415):.0f}" y="{TOP}" width="{x_of(1945) - x_of(1415):.0f}" '
           f'height="{HEIGHT}" fill="#f0f0f0"/>']
    for seconds in (0, 10, 20, 30):
        y = TOP + HEIGHT * (1 - seconds / DURATION_MAX)
        out += [line(LEFT, y, WIDTH - RIGHT, y), text(LEFT - 6, y + 4, str(seconds), "end")]
    for policy, colour in COLOURS.items():
        out.append(f'<path d="{steps(durations[policy])}" fill="none" stroke="{colour}" '
                   'stroke-width="1.5"/>')
    out.append(text(LEFT, below - 12, "thousands of block·seconds kept after each decoder's death"))
    for thousands in range(0, int(most / 1000) + 1, 100):
        y = below + HEIGHT * (1 - 1000 * thousands / most)
        out += [line(LEFT, y, WIDTH - RIGHT, y), text(LEFT - 6, y + 4, str(thousands), "end")]
    for index, (policy, colour) in enumerate(COLOURS.items()):
        for at, value in deaths[policy]:
            height = HEIGHT * value / most
            out.append(f'<rect x="{x_of(at) - 11 + 11 * index:.0f}" y="{below + HEIGHT - height:.1f}" '
                       f'width="10" height="{height:.1f}" fill="{colour}"/>')
        out.append(text(WIDTH - RIGHT, 16, "fixed 30 s", "end", colour)
                   if policy == "fixed" else
                   text(WIDTH - RIGHT - 90, 16, "adaptive", "end", colour))
    for minutes in range(0, 61, 10):
        anchor = "middle" if minutes < 60 else "end"  # the last one must not leave the picture
        out.append(text(x_of(60 * minutes), below + HEIGHT + 18, f"{minutes} min", anchor))
    return "\n".join(out + ["</svg>"]) + "\n"


def main() -> int:
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release").resolve()
    (ROOT / "docs/adaptive-lease.svg").write_text(draw(*read_replays(build)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
