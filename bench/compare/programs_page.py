"""The results of `./dev bench programs` as one HTML page. The plots are inline SVG, so the page loads nothing else."""
import html
import math
import shlex

from figures import cases_of, cell, distinct, least_rounds, means, pairs_of, peak_of, ratio, shares_of, systems_of
from tables import OVER_LIMIT, kill_words, mib, number, outcome, page_rows, plain_score, ratio_words

STYLE = """
  body { font: 15px/1.45 system-ui, sans-serif; color: #1c2321; background: #fff;
         max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
  th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #dde2e0; vertical-align: top; }
  th:first-child, td:first-child, td.word, th.word { text-align: left; }
  tr.mean td { border-top: 2px solid #5c6663; font-weight: 600; }
  tr.first td { border-top: 2px solid #b9c2bf; }
  .facts td { text-align: left; } .facts td:first-child { color: #5c6663; width: 11rem; }
  .plain td, .legend span { white-space: nowrap; }
  .scroll { overflow-x: auto; } svg { width: 100%; height: auto; }
  .legend svg { width: .9rem; vertical-align: -.1rem; }
  svg text { font: 12px system-ui, sans-serif; fill: #5c6663; } svg text.name { fill: #1c2321; font-size: 13px; }
  .grid { stroke: #e6eae8; } .one { stroke: #5c6663; } .failed { color: #a61b1b; }
"""
# A colour for each memory; of two systems on the same, the second is drawn hollow.
COLOURS = ["#1b6ca8", "#3a7d44", "#c8553d", "#b8860b", "#8e5ea2", "#2f4b4f"]
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 940, 150, 60, 10, 44
LANE, GAP = 9, 12  # of one system; between cases


def marks(systems):
    """By system: (colour, hollow)."""
    memories = list(dict.fromkeys(system.split(",")[0] for system in systems))
    seen = []
    found = {}
    for system in systems:
        memory = system.split(",")[0]
        found[system] = (COLOURS[memories.index(memory) % len(COLOURS)], memory in seen)
        seen.append(memory)
    return found


def case_name(program, what):
    return program if what == "run" else f"{program}, {what}"


class Axis:
    """Logarithmic, from 0.5 or 1 to the next 1, 2 or 5 above all values."""

    def __init__(self, values):
        self.least = 0.5 if min(values, default=1) < 0.95 else 1.0
        steps = [digit * 10 ** power for power in range(6) for digit in (1, 2, 5)]
        self.most = next((step for step in steps if step >= 1.05 * max(values, default=1)), steps[-1])
        self.ticks = [step for step in (0.5, *steps) if self.least <= step <= self.most]

    def x(self, value):
        part = math.log(max(value, self.least) / self.least) / math.log(self.most / self.least)
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1, part)


def mark(x, y, colour, hollow):
    return (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" stroke="{colour}" stroke-width="1.6" '
            f'fill="{"#fff" if hollow else colour}"/>')


def cross(x, y, colour):
    return (f'<path d="M{x - 3.2:.1f} {y - 3.2:.1f}l6.4 6.4m0 -6.4l-6.4 6.4" stroke="{colour}" stroke-width="2" '
            'fill="none"/>')


def drawn_cell(found, axis, y, colour, hollow, title):
    if found is None:
        return ""
    if found.slowdown is None:
        return f'<g><title>{title}</title>{cross(WIDTH - RIGHT + 14, y, colour)}</g>'
    begin, end = axis.x(found.least), axis.x(found.most)
    return (f'<g><title>{title}</title><line x1="{axis.x(1):.1f}" x2="{axis.x(found.slowdown):.1f}" y1="{y:.1f}" '
            f'y2="{y:.1f}" stroke="{colour}" stroke-width="1" opacity=".45"/><line x1="{begin:.1f}" x2="{end:.1f}" '
            f'y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="2.5"/>'
            f'{mark(axis.x(found.slowdown), y, colour, hollow)}</g>')


def plot(samples, share):
    systems, cases = systems_of(samples), cases_of(samples)
    cells = {(case, system): cell(samples, *case, system, share) for case in cases for system in systems}
    axis = Axis([value for found in cells.values() if found is not None and found.slowdown is not None
                 for value in (found.least, found.most)])
    row = LANE * len(systems) + GAP
    bottom = TOP + row * len(cases)
    parts = [f'<svg viewBox="0 0 {WIDTH} {bottom + BOTTOM}" role="img" aria-label="Slowdown of each program with '
             f'{share} % of its peak local">']
    for tick in axis.ticks:
        x = axis.x(tick)
        parts.append(f'<line class="{"one" if tick == 1 else "grid"}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" '
                     f'y2="{bottom}"/><text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{bottom + 37}" text-anchor="middle">times the plain '
                 'run (logarithmic)</text>')
    for i, case in enumerate(cases):
        top = TOP + i * row
        parts.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{top}" y2="{top}"/><text class="name" x="8" '
                     f'y="{top + row / 2 + 4:.1f}">{html.escape(case_name(*case))}</text>')
        for lane, (system, (colour, hollow)) in enumerate(marks(systems).items()):
            title = html.escape(f"{case_name(*case)}, {system}: {outcome(cells[case, system])}")
            parts.append(drawn_cell(cells[case, system], axis, top + GAP / 2 + LANE * (lane + 0.5), colour, hollow,
                                    title))
    parts.append("</svg>")
    return "\n".join(parts)


def legend(samples):
    parts = [f'<span><svg viewBox="0 0 12 12">{mark(6, 6, colour, hollow)}</svg> '
             f'{html.escape(system)}</span>' for system, (colour, hollow) in marks(systems_of(samples)).items()]
    return f"<p class=\"legend\">{' &nbsp; '.join(parts)}</p>"


def table(heads, rows, kind="", words=(0,)):
    """rows: (class of the row, cells); the columns `words` are aligned to the left."""
    def cells(tag, row):
        return "".join(f'<{tag}{" class=word" if i in words else ""}>{text}</{tag}>' for i, text in enumerate(row))
    lines = [f'<div class="scroll"><table class="{kind}">']
    if heads:
        lines.append(f"<tr>{cells('th', heads)}</tr>")
    lines += [f'<tr class="{style}">{cells("td", row)}</tr>' for style, row in rows]
    return "\n".join([*lines, "</table></div>"])


def slowdown_table(samples, share):
    systems = systems_of(samples)
    found = means(samples, share)
    rows = []
    for program, what in cases_of(samples):
        cells = [cell(samples, program, what, system, share) for system in systems]
        rows.append(("", [html.escape(case_name(program, what)), plain_score(samples, program, what),
                          f"{peak_of(samples, program) / (1 << 20):,.0f}",
                          *(f'<span class="failed">{outcome(one)}</span>' if one is not None and one.slowdown is None
                            else outcome(one) for one in cells)]))
    rows.append(("mean", ["geometric mean", "", "", *(f"{number(found[system].value, '.2f')}x" for system in systems)]))
    mean = next(iter(found.values()))
    note = f"The geometric mean is over {len(mean.programs)} programs"
    if mean.left_out:
        note += f"; left out, because a system failed or was not measured: {', '.join(mean.left_out)}"
    note += (". A program counts once, whatever it does. !: some rounds were killed or late; they count as the slowest "
             "for the median.")
    heads = ["", "plain", "peak, MiB", *map(html.escape, systems)]
    return table(heads, rows, "plain") + f"\n<p>{html.escape(note)}</p>"


def ratio_table(samples):
    rows = []
    for first, second in pairs_of(systems_of(samples)):
        for share in shares_of(samples):
            found = ratio(samples, first, second, share)
            if found.worst is None:
                rows.append(("", [f"{first} / {second}", f"{share} %", "-", "-", ratio_words(found)]))
                continue
            rows.append(("", [f"{first} / {second}", f"{share} %", number(found.mean.value, ".2f"), number(found.worst, ".2f"),
                              found.worst_program + (f" (without {', '.join(found.mean.left_out)})"
                                                     if found.mean.left_out else "")]))
    return table(["slowdown / slowdown", "share", "geometric mean", "worst", "of"],
                 [(style, list(map(html.escape, row))) for style, row in rows], words=(0, 4))


def pages_table(samples):
    rows = []
    before = None
    for program, share, system, came, went, over, beside in page_rows(samples):
        rows.append(("first" if (program, share) != before else "", [
            html.escape(program), html.escape(system), f"{share} %", number(came), number(went),
            f"{round(over, 1) + 0.0:.1f} %" if over <= OVER_LIMIT else f'<span class="failed">{over:.1f} %</span>',
            number(beside, ",.1f")]))
        before = program, share
    return table(["", "system", "share", "pages in", "pages out", "over the limit", "beside, MiB"], rows, words=(0, 1))


def facts(report):
    rounds = least_rounds(report["samples"])
    rows = [("date", report["date"]), ("machine", f"Linux {report['kernel']}, {report['cpus']} CPUs"),
            ("commit", report["commit"]), ("command", shlex.join(report["command"])),
            ("rounds", f"{rounds} of {report['rounds']} of each program in each system, or more"
             if rounds != report["rounds"] else rounds),
            ("scale", f"{report['scale']:g}"), ("transparent huge pages", report["huge_pages"]),
            ("limits", "a share of the plain run's peak as a memory control group counts it: anonymous memory, page "
                       "tables, kernel stacks. Swap: the limit of the group. farpage: --local is the limit less what "
                       "the group counts beside it.")]
    return table([], [("", [name, html.escape(str(value))]) for name, value in rows], "facts")


def page(report):
    samples = report["samples"]
    parts = ['<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
             '<meta name="viewport" content="width=device-width, initial-scale=1">',
             f"<title>farpage bench programs</title>\n<style>{STYLE}</style></head><body>",
             "<h1>farpage bench programs</h1>", facts(report)]
    for share in shares_of(samples):
        parts += [f"<h2>Slowdown with {share} % of the peak local</h2>", legend(samples), plot(samples, share),
                  "<p>A dot is the median of the rounds, the thick line goes from the least to the most. A cross at "
                  "the right edge: killed, or late.</p>",
                  slowdown_table(samples, share)]
    parts += [f"<p>A{html.escape(kill_words(samples)[1:])}.</p>", "<h2>Ratios</h2>",
              "<p>Above 1.00, the first system is slower. The worst program is that of the largest ratio, or one that only "
              "the first system failed.</p>",
              ratio_table(samples), "<h2>Pages moved, and memory</h2>",
              "<p>Medians of the rounds. Over the limit: by how much the peak of the worst round exceeded it. Beside: "
              "memory of this machine that the system took and that no limit contains: farpage's pager, or zram's "
              "compressed pages.</p>", pages_table(samples), "</body></html>"]
    return "\n".join(parts) + "\n"
