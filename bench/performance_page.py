"""Generates docs/performance.md from the results in bench/results/ (record.py)."""
import math
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "compare"))
import figures  # noqa: E402

HEAD = """# Performance

Today's figures. This page is generated from [bench/results/](../bench/results) by `./dev bench report`, and the results
by `./dev bench record`. What was measured before, on which machine, and what was tried without gain is in
[experiments/](experiments/README.md).

How to read it:

- Absolute times of shared virtual machines differ by a factor of three between machines and hours. Compare numbers of
  one table, and look at ratios first. Measure your own hardware with the commands below each table.
- The **floor** of a fault is a local userfaultfd fault (data at hand, resolved by the same kind of thread) plus a READ of
  4 KiB over the same transport, measured in the same run.
- p50, p99: percentiles of single touches, in microseconds.
- Each page is compared with a checksum when it comes back. What that costs, with `--checksums on` and `off` in turn, is in
  [experiments/checksums.md](experiments/checksums.md).
- Verbs are measured in the emulated lab VM, because no RDMA card is here. More about them is in
  [experiments/lab-verbs.md](experiments/lab-verbs.md).
"""

# Title, one sentence, and how to show the result. In the order of the page.
SECTIONS = [
    ("ladder", "A remote fault and its floors",
     "Random reads of one thread, without eviction. \"SIGBUS\": the touching thread resolves the fault in its own handler "
     "(the library); else a thread of the pager does. An overhead is what the fault costs above its floor; it can be "
     "negative, because a worker that has answered a fault reads again before it sleeps, and the floor's handler does not."),
    ("fault-shm", "Faults with eviction, shared memory",
     "Random touches, half of them writes, in four times the local memory: each fault also evicts a page."),
    ("fault-tcp", "Faults with eviction, TCP on loopback", "The same over TCP."),
    ("scan-shm", "A sequential walk, shared memory", "256 MiB that are remote, walked through once, beside raw READs."),
    ("scan-tcp", "A sequential walk, TCP on loopback", "The same over TCP."),
    ("evict-shm", "Eviction alone, shared memory", "Dirty memory, all of it evicted, beside raw WRITEs."),
    ("evict-tcp", "Eviction alone, TCP on loopback", "The same over TCP."),
    ("compare", "Beside kernel swap, one program",
     "256 MiB, half of them local, random touches of one thread, half of them writes; medians of the rounds."),
    ("programs", "Beside kernel swap, real programs",
     "Slowdown against a run with all memory local, with a share of its peak local; medians of the rounds. A program that "
     "does several things counts once in a mean, and a program that a system failed is left out; one that only the first of "
     "two systems failed is the worst of their ratio."),
    ("lab", "A remote fault over verbs, in the lab VM",
     "SoftRoCE in an emulated VM; `ib_read_lat` runs in the same boot. Medians of the rounds; only the ratios to it mean "
     "anything."),
    ("connect-tcp", "Connecting", "New channels to a memory node, until their first READ is done."),
    ("control", "The coordinator", "Requests that one coordinator answers, by kind."),
]


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def number(value):
    if value is None:
        return "-"
    if value == math.inf:
        return "failed"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def of_benchmark(report):
    """What `farpage bench ... --output json` reports."""
    parts = []
    if report.get("figures"):
        figures = report["figures"].items()
        words = ("percent", "share", "ratio", "floor", "overhead")
        shown = [(name, value) for name, value in figures if any(word in name for word in words)]
        if shown:
            parts.append(table(["figure", "value"], [(f"`{name}`", number(value)) for name, value in shown]))
    if report.get("rows"):
        parts.append(table(["microseconds", "count", "p50", "p99", "p99.9"],
                           [(row["name"], f"{row['iterations']:,}", number(row["t_typical"]), number(row["p99"]),
                             number(row["p99.9"])) for row in report["rows"]]))
    if report.get("throughputs"):
        first = report["throughputs"][0]["operations_per_s"]
        parts.append(table(["rate", "operations/s", "MB/s", "first line is to it"],
                           [(row["name"], number(row["operations_per_s"]), number(row["MB_per_s"]),
                             "" if row is report["throughputs"][0] else
                             f"{report['throughputs'][0]['MB_per_s'] / row['MB_per_s']:.2f}")
                            for row in report["throughputs"] if first]))
    return "\n\n".join(parts)


def of_compare(report):
    samples = report["samples"]
    measured, killed = [], []
    for system in dict.fromkeys(sample["system"] for sample in samples):
        mine = [s for s in samples if s["system"] == system and not s.get("killed")]
        if not mine:
            killed.append(system)
            continue
        rate, p50, p99 = (statistics.median(s[field] for s in mine)
                          for field in ("accesses_per_s", "fault_p50_us", "fault_p99_us"))
        measured.append((system, rate, p50, p99))
    if not measured:
        return "No system outlived its rounds."
    first = measured[0]
    rows = [(system, number(rate), f"{rate / first[1]:.2f}", number(p50), number(p99), f"{p99 / first[3]:.2f}")
            for system, rate, p50, p99 in measured]
    floors = [(name, "", "", number(floor["p50_us"]), number(floor["p99_us"]), "")
              for name, floor in report["floors"].items()]
    text = table(["system", "accesses/s", "ratio", "fault p50, us", "fault p99, us", "ratio"], rows + floors)
    if killed:
        text += f"\n\nKilled in each round, out of memory under its limit: {', '.join(killed)}."
    return text + f"\n\nRatios are to {first[0]}; the last lines are floors of the same run."


def of_programs(report):
    samples = report["samples"]
    systems, shares = figures.systems_of(samples), figures.shares_of(samples)
    parts = []
    for share in shares:
        if len(shares) > 1:
            parts.append(f"{share} % of the peak local:")
        rows = []
        for program, what in figures.cases_of(samples):
            cells = [figures.cell(samples, program, what, system, share) for system in systems]
            rows.append((program if what == "run" else f"{program}, {what}", *map(of_cell, cells)))
        means = figures.means(samples, share)
        left_out = means[systems[0]].left_out
        rows.append((f"geometric mean{' without ' + ', '.join(left_out) if left_out else ''}",
                     *(number(means[system].value) for system in systems)))
        parts.append(table(["slowdown", *systems], rows))
    ratios = [figures.ratio(samples, first, second, share) for first, second in figures.pairs_of(systems)
              for share in shares]
    parts.append(table(["ratio of slowdowns", "share", "geometric mean", "worst", "program", "left out"], [
        (f"{found.first} / {found.second}", f"{found.share} %", number(found.mean.value), number(found.worst),
         found.worst_program or "-", ", ".join(found.mean.left_out)) for found in ratios]))
    return "\n\n".join(parts)


def of_cell(cell):
    if cell is None:
        return "-"
    if cell.slowdown is None:
        return "killed" if cell.killed else "late"
    return f"{cell.slowdown:.2f}"


def of_lab(report):
    rows = [(row["name"], number(row["p50"]), number(row["p99"]), f"{row['p50_to_ib_read_lat']:.2f}",
             f"{row['p99_to_ib_read_lat_p50']:.2f}") for row in report["rows"]]
    low, high = report["host_took_percent"]
    return table(["microseconds", "p50", "p99", "p50 to `ib_read_lat` p50", "p99 to `ib_read_lat` p50"], rows) + (
        f"\n\nA fault without eviction takes {report['fault_us'] / report['floor_us']:.2f} of its floor (READ p50 plus "
        f"local userfaultfd fault p50). The host took {low:.1f} to {high:.1f} % of a guest CPU in gaps above 1 ms.")


def section(name, title, sentence, result):
    report, about = result["report"], result["machine"]
    body = {"compare": of_compare, "programs": of_programs, "lab": of_lab}.get(name, of_benchmark)(report)
    return (f"## {title}\n\n{sentence}\n\n{body}\n\n`{result['command']}`, {about['date']}, commit {about['commit']}, "
            f"{about['processor']}, {about['cpus']} CPUs, {about['memory_gib']} GiB, Linux {about['kernel']}\n")


def page(results):
    parts = [HEAD]
    parts += [section(name, title, sentence, results[name]) for name, title, sentence in SECTIONS if name in results]
    missing = [name for name, _, _ in SECTIONS if name not in results]
    if missing:
        parts.append("## Not recorded\n\nThere are no results for: " + ", ".join(missing) +
                     f". `./dev bench record {' '.join(missing)}` makes them.\n")
    return "\n".join(parts)
