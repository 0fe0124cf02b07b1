#!/usr/bin/env python3
"""Thirteen real programs with part of their memory local: farpage beside kernel swap.

  ./dev bench programs                            all of them, at half and a quarter: some hours
  ./dev bench programs redis sort --shares 50
  ./dev bench programs --scale 0.1 --rounds 1     a tenth of the sizes: a quick look
  ./dev bench programs --from FILE --html PAGE    tabulates what --json wrote, also that of a run that was interrupted

The programs are sort, sqlite, redis, memcached, btree, join, kmeans, scan, matrix, compile, xz, java and graph
(bench/compare/workloads.py has a table of them). Each has a peak of at least 512 MiB and checks its output.

Each program runs plainly first: that is what all others are compared with, in run time (redis and memcached: in
requests per second) and in output, which must be the same. A share is a part of the plain run's peak, as a
memory control group counts it. The systems have the same limit in the same account: bench/compare/measuring.py
says how. Swap runs with page-cluster 0 (no read-ahead) and 3 (the kernel's default), and the programs with the
malloc of the C library there, or with --same-allocator with that of farpage; the plain run is the same.

The tables show medians of the rounds, as slowdowns against the plain run; their geometric means over the programs that
no system failed; and the pages that were moved. "killed": the kernel ran out of memory under that limit, three times
in a row; "late": not done after 20 minutes. Needs root.
"""
import argparse
import datetime
import functools
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile

import programs_page
import tables
from measuring import measure
from systems import ROOT, chosen, systems_here, with_farpages_allocator, with_read_ahead
from workloads import NAMES, make_programs


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, prog="./dev bench programs",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="(default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--scale", type=float, default=1, help="of all sizes (%(default)s)")
    parser.add_argument("--shares", type=int, nargs="+", default=[50, 25], metavar="PERCENT",
                        help="of the plain run's peak that stay local (%(default)s)")
    parser.add_argument("--systems", nargs="+", metavar="NAME",
                        help="those whose name contains one of these (default: all)")
    parser.add_argument("--same-allocator", action="store_true",
                        help="programs have farpage's malloc, mimalloc, under kernel swap, too")
    parser.add_argument("--json", metavar="FILE", help="write every single result there, after each run")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots and tables there")
    parser.add_argument("--from", dest="source", metavar="FILE", help="measure nothing: show what --json wrote")
    options = parser.parse_args()
    unknown = set(options.programs) - set(NAMES)
    if unknown:
        parser.error(f"no program {', '.join(sorted(unknown))} ({', '.join(NAMES)})")
    if options.rounds < 1 or options.scale <= 0 or not all(1 <= share <= 100 for share in options.shares):
        parser.error("--rounds: at least 1; --scale: above 0; --shares: 1 to 100")
    return options


def describe(options):
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"],
                            capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    huge = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    return {"benchmark": "programs", "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%MZ}",
            "kernel": platform.release(), "cpus": len(os.sched_getaffinity(0)),
            "huge_pages": huge[huge.index("[") + 1:huge.index("]")], "commit": commit,
            "command": ["./dev", "bench", "programs", *sys.argv[1:]], "rounds": options.rounds,
            "scale": options.scale, "samples": []}


def save(report, file):
    """As a whole: who is interrupted here keeps the former file."""
    path = pathlib.Path(file)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.replace(path)


def take_report(options):
    report = describe(options)
    environment = with_farpages_allocator() if options.same_allocator else None
    systems = chosen(systems_here(functools.partial(with_read_ahead, environment=environment)), options.systems)
    with tempfile.TemporaryDirectory(prefix="farpage-programs-", dir="/dev/shm") as folder:
        programs = make_programs(options.programs or NAMES, folder, options.scale)
        for sample in measure(programs, systems, options.shares, options.rounds):
            report["samples"].append(sample)
            if options.json:
                save(report, options.json)
    return report


def main():
    options = parse_arguments()
    if options.source:
        report = json.loads(pathlib.Path(options.source).read_text())
    else:
        if os.geteuid() != 0:
            sys.exit("programs: swap devices and memory limits need root")
        # As Ctrl-C: swap, control groups and files are removed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("programs: terminated"))
        report = take_report(options)
    if options.html:
        pathlib.Path(options.html).write_text(programs_page.page(report))
    print(tables.all_tables(report))


if __name__ == "__main__":
    main()
