#!/usr/bin/env python3
"""farpage against kernel swap: the same program, the same share of its memory local, in one boot.

  ./dev bench compare             natively: farpage over shm and tcp, under `run` and as a library whose
                                  faults are resolved in a SIGBUS handler; swap on zram and on a loop device
  ./dev bench compare --lab       in the lab VM: farpage over verbs; swap on NVMe-oF/RDMA, NBD and zram

The program is random_touch (bench/compare/random_touch.cc). Each system is measured in turn in every round;
the table shows medians of the rounds and ratios to farpage's first column. farpage limits the memory that is
touched, swap all memory of the program. So swap's limit is higher, by what the program's control group counted beside
the local memory in farpage's last run with the same touches. Needs root.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

import swap_devices
from memory_group import memory_group
from systems import BUILD, ROOT, Farpage, Killed, KernelSwap, chosen, libraries_here, systems_here, unless_killed

MIB = 1 << 20
# The program's memory beside the measured part (libraries, page tables, its own tables) when farpage is not measured.
USUAL_BESIDE = 8 * MIB


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, prog="./dev bench compare",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", action="store_true", help="boot the lab VM and compare there")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--size", type=int, default=256, metavar="MIB", help="memory touched (%(default)s)")
    parser.add_argument("--shares", type=int, nargs="+", default=[25, 50], metavar="PERCENT",
                        help="of it that stay local (%(default)s)")
    parser.add_argument("--writes", type=int, nargs="+", default=[0, 50], metavar="PERCENT",
                        help="of the touches that write (%(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4], help="(%(default)s)")
    parser.add_argument("--systems", nargs="+", metavar="NAME",
                        help="those whose name contains one of these (default: all)")
    parser.add_argument("--touches", type=int, default=20000, help="timed for the latencies (%(default)s)")
    parser.add_argument("--seconds", type=int, default=3, help="of untimed touches, for the rate (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write every single result there")
    parser.add_argument("--output", choices=["table", "json"], default="table")
    return parser.parse_args()


def run(system, limit, arguments):
    with memory_group() as group, system.confine(limit, group) as place:
        words = place.command([BUILD / "random_touch", *arguments])
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=place.environment)
        peak = group.peak_bytes()
    if done.returncode == -signal.SIGKILL:
        raise Killed(" ".join(words))
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}: {done.stderr[-2000:]}")
    result = json.loads(done.stdout)
    if result["timed_faults"] == 0:
        raise RuntimeError(f"{' '.join(words)}: not one touch was of a page that was away")
    return {**result, "limit_bytes": limit, "peak_bytes": peak}


def floors():
    """The wire and the local fault, measured in the same boot."""
    words = [BUILD / "farpage", "bench", "ladder", "--iterations", "3000", "--output", "json"]
    if "LAB_VM" in os.environ:
        words += ["--transport", "verbs"]
    report = json.loads(subprocess.run(words, capture_output=True, text=True, check=True,
                                       env=dict(os.environ, FARPAGE_LOG_LEVEL="error")).stdout)
    return {row["name"]: {"p50_us": row["t_typical"], "p99_us": row["p99"]} for row in report["rows"]}


def read_latency():
    """ib_read_lat -s 4096 of this boot, in the lab."""
    words = ["ib_read_lat", "-d", os.environ["LAB_DEV"], "-x", os.environ["LAB_GID"], "-F", "-s", "4096",
             "-n", "5000"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def line():
        done = subprocess.run([*words, os.environ["LAB_IP"]], capture_output=True, text=True)
        return next((text.split() for text in done.stdout.splitlines() if text.split()[:1] == ["4096"]), None)

    columns = swap_devices.wait_for("ib_read_lat", line)
    server.wait()
    return {"p50_us": float(columns[4]), "p99_us": float(columns[7])}


def measure_all(options, systems):
    samples = []
    size = options.size * MIB
    beside = {}  # by (share, writes, threads)
    for number in range(options.rounds):
        for system in systems:
            with system.running(size):
                for share in options.shares:
                    for writes in options.writes:
                        for threads in options.threads:
                            print(f"compare: round {number + 1} of {options.rounds}, {system.name}, "
                                  f"{share} % local, {writes} % writes, {threads} thread(s)", file=sys.stderr)
                            arguments = [size, threads, writes, options.touches, options.seconds, number + 1]
                            local, touches = size * share // 100, (share, writes, threads)
                            limit = local
                            if isinstance(system, KernelSwap):
                                limit += beside.get(touches, USUAL_BESIDE)
                            result = unless_killed(system, lambda: run(system, limit, arguments))
                            if isinstance(system, Farpage):
                                beside[touches] = max(0, result["peak_bytes"] - local)
                            samples.append({"round": number + 1, "system": system.name, "share": share,
                                            "writes": writes, "threads": threads, **(result or {"killed": True})})
    return samples


def median(samples, field, **wanted):
    """Over the rounds that the program survived; None: there is no such round."""
    values = [s[field] for s in samples if field in s and all(s[key] == value for key, value in wanted.items())]
    return statistics.median(values) if values else None


def ratio(value, ours):
    return "-" if ours is None else f"{value / ours:.2f}"


def table(options, systems, samples):
    lines = [f"{'':24}{'accesses/s':>12}{'ratio':>8}{'fault p50':>12}{'fault p99':>12}{'p99 ratio':>11}"
             f"{'first (mean)':>13}"]
    for share in options.shares:
        for writes in options.writes:
            for threads in options.threads:
                lines.append(f"{share} % local, {writes} % writes, {threads} thread{'s' if threads > 1 else ''}")
                wanted = {"share": share, "writes": writes, "threads": threads}
                ours = {field: median(samples, field, system=systems[0].name, **wanted)
                        for field in ("accesses_per_s", "fault_p99_us")}
                for system in systems:
                    rate, p50, p99, first = (
                        median(samples, field, system=system.name, **wanted)
                        for field in ("accesses_per_s", "fault_p50_us", "fault_p99_us", "first_touch_mean_us"))
                    if rate is None:
                        lines.append(f"  {system.name:22}{'killed, out of memory, in each round':>48}")
                        continue
                    lines.append(f"  {system.name:22}{rate:12,.0f}{ratio(rate, ours['accesses_per_s']):>8}"
                                 f"{p50:12.1f}{p99:12.1f}{ratio(p99, ours['fault_p99_us']):>11}{first:13.2f}")
    return "\n".join(lines)


def describe(report):
    lines = [f"farpage bench compare, {report['date']}, Linux {report['kernel']}, {report['cpus']} CPUs, "
             f"{'lab VM (emulated)' if report['lab'] else 'native'}, commit {report['commit']}",
             f"{report['size_mib']} MiB, medians of {report['rounds']} rounds; usec; ratios to the first line"]
    lines += [f"  {name:38}{floor['p50_us']:10.1f}{floor['p99_us']:10.1f}" for name, floor in report["floors"].items()]
    return "\n".join(lines)


def compare(options):
    systems = chosen([*systems_here(), *libraries_here()], options.systems)
    measured = floors()
    if "LAB_VM" in os.environ:
        measured = {"ib_read_lat -s 4096": read_latency(), **measured}
    samples = measure_all(options, systems)
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"],
                            capture_output=True, text=True).stdout.strip() or "unknown"
    report = {"benchmark": "compare", "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%MZ}",
              "kernel": platform.release(), "cpus": len(os.sched_getaffinity(0)), "lab": "LAB_VM" in os.environ,
              "commit": commit, "command": " ".join(sys.argv), "size_mib": options.size,
              "rounds": options.rounds, "floors": measured, "samples": samples}
    if options.json:
        path = pathlib.Path(os.environ["LAB_OUT"]) / "compare.json" if report["lab"] else pathlib.Path(options.json)
        path.write_text(json.dumps(report, indent=2) + "\n")
    if options.output == "json":
        print(json.dumps(report, indent=2))
    else:
        print(f"{describe(report)}\n{table(options, systems, samples)}")


def boot_lab(options):
    """Runs this script in the VM. Of the VM's files only those in the out folder remain."""
    with tempfile.TemporaryDirectory(prefix="farpage-compare-") as out:
        # Idle CPUs poll, so that a wake-up costs as much as on hardware.
        status = subprocess.run([ROOT / "tests/lab/vm.sh", "-i", "-m", "4096", "-t", "3000", "-o", out, "--",
                                 sys.executable, __file__, *sys.argv[1:]]).returncode
        if options.json and status == 0:
            shutil.copy(pathlib.Path(out) / "compare.json", options.json)
        return status


def main():
    options = parse_arguments()
    if os.geteuid() != 0:
        sys.exit("compare: swap devices and memory limits need root")
    if options.lab and "LAB_VM" not in os.environ:
        sys.exit(boot_lab(options))
    compare(options)


if __name__ == "__main__":
    main()
