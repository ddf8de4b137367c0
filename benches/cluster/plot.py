#!/usr/bin/env python3
"""Draws what `run readers` and `run ps` measured, as SVG by hand: one panel per model, the ideal line beside it.

usage: plot.py RESULTS.jsonl FOLDER      -> FOLDER/cluster-readers.svg, FOLDER/cluster-ps.svg
"""
import json, re, statistics, sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 320, 64, 16, 56, 52
INK, FAINT, MEASURED, IDEAL, LIMIT = "#1f2328", "#d8dee4", "#0550ae", "#8c959f", "#bc4c00"
WHAT = {"readers": ("readers", "reader"), "ps": ("ps processes", "ps")}


def nice(top):
    """A round step that gives at most six lines up to `top`."""
    step = 10 ** len(str(int(top))) / 10
    return next(s for s in (step / 10, step / 5, step / 2, step, step * 2) if top / s <= 6)


def text(x, y, words, anchor="middle", color=INK, size=12, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}"{more}>{words}</text>'


def line(points, color, dash="", width=2):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dash}"/>'


def panel(model, mbit, runs, limit, bench):
    """`runs`: rows/s of each run by the number of processes. `limit`: rows/s of the runs without network limits."""
    many, single = WHAT[bench]
    medians = {count: statistics.median(values) for count, values in sorted(runs.items())}
    one, last = medians[1], max(medians)
    bound = statistics.median(limit) if limit else 0
    # A limit far above would flatten all other lines: it is written as text.
    drawn = bound if bound < 1.3 * one * last else 0
    top = max([one * last, drawn, *(v for values in runs.values() for v in values)]) * 1.08
    x = lambda count: LEFT + (WIDTH - LEFT - RIGHT) * count / (last + 0.3)
    y = lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top
    step = nice(top)
    out = [text(WIDTH / 2, 22, f"{model}, each {single} on a line of {mbit} Mbit/s", size=14, more=' font-weight="600"')]
    for i in range(int(top / step) + 1):
        out += [line([(LEFT, y(i * step)), (WIDTH - RIGHT, y(i * step))], FAINT, width=1),
                text(LEFT - 6, y(i * step) + 4, f"{i * step:,.0f}", "end")]
    for count in range(1, last + 1):
        out.append(text(x(count), HEIGHT - BOTTOM + 18, count))
    out += [text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, many), text(LEFT - 6, TOP - 12, "rows/s", "end")]
    out.append(line([(x(0), y(0)), (x(last), y(one * last))], IDEAL, "5 4"))
    out.append(text(x(last) - 4, y(one * last) - 8, "in proportion", "end", IDEAL))
    if limit and not drawn:
        out.append(text(LEFT + 8, TOP - 12, f"{last} {many}, lines without limit: {bound:,.0f}", "start", LIMIT))
    if drawn:
        out += [line([(LEFT, y(bound)), (WIDTH - RIGHT, y(bound))], LIMIT, "2 3"),
                text(LEFT + 6, y(bound) - 6, "lines without limit", "start", LIMIT)]
    out.append(line([(x(count), y(value)) for count, value in medians.items()], MEASURED))
    for count, values in runs.items():
        out += [line([(x(count), y(min(values))), (x(count), y(max(values)))], MEASURED, width=1),
                f'<circle cx="{x(count):.1f}" cy="{y(medians[count]):.1f}" r="4" fill="{MEASURED}"/>']
    return "\n".join(out)


def draw(bench, results):
    models = {}
    for result in results:
        found = re.match(r"(\w+), (\d+) \w+(?: at (\d+) Mbit/s)?", result["name"])
        model, count, mbit = found[1], int(found[2]), found[3]
        runs, limit, at = models.setdefault(model, ({}, [], []))
        (runs.setdefault(count, []) if mbit else limit).append(result["rows_per_s"])
        at += [mbit] if mbit else []
    panels = [panel(model, at[0], runs, limit, bench) for model, (runs, limit, at) in models.items()]
    width = WIDTH * len(panels)
    body = "\n".join(f'<g transform="translate({i * WIDTH} 0)">\n{p}\n</g>' for i, p in enumerate(panels))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
            f'font-family="system-ui, sans-serif">\n<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n')


def main():
    results = [json.loads(row) for row in Path(sys.argv[1]).read_text().splitlines()]
    for bench in WHAT:
        if own := [result for result in results if result["bench"] == bench]:
            (Path(sys.argv[2]) / f"cluster-{bench}.svg").write_text(draw(bench, own))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
