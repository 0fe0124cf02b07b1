#!/usr/bin/env python3
"""Today's figures: measured, kept as JSON, and shown on one page.

  ./dev bench record [NAME...]   measure all, or these, and write bench/results/NAME.json. programs takes hours,
                                 all others some 25 minutes; nothing else should run on the machine meanwhile
  ./dev bench report [--check]   write docs/performance.md from bench/results/; --check: only say whether
                                 the page is what the results give
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

import performance_page

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
FARPAGE = "build/release/farpage"  # relative to ROOT: no path of this machine enters the reports

# Benchmarks whose JSON from `farpage bench` already has machine, commit and command.
BENCHMARKS = {
    "ladder": ["ladder", "--iterations", "3000"],
    "fault-shm": ["fault", "--transport", "shm", "--access", "mixed"],
    "fault-tcp": ["fault", "--transport", "tcp", "--access", "mixed"],
    "scan-shm": ["scan", "--transport", "shm"],
    "scan-tcp": ["scan", "--transport", "tcp"],
    "evict-shm": ["evict", "--transport", "shm"],
    "evict-tcp": ["evict", "--transport", "tcp"],
    "connect-tcp": ["connect", "--transport", "tcp"],
    "control": ["control"],
}
# Scripts of `./dev bench` that write their results to a file.
SCRIPTS = {
    "compare": ["compare", "--shares", "50", "--writes", "50", "--threads", "1", "--rounds", "3", "--json"],
    "programs": ["programs", "--json"],
}
# The remote fault over verbs, in the lab VM.
LAB = ["bench/lab_fault.sh", "3"]
NAMES = [*BENCHMARKS, *SCRIPTS, "lab"]


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"],
                            capture_output=True, text=True, check=False).stdout.strip()
    return {"processor": models[0], "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30, "commit": commit,
            "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%MZ}"}


def run_benchmark(words):
    done = subprocess.run([FARPAGE, "bench", *words, "--output", "json"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                          check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def run_script(words):
    """The file remains: `./dev bench programs --from` shows that of a run that was interrupted."""
    file = f"build/{words[0]}.json"  # relative to ROOT, as FARPAGE
    done = subprocess.run(["./dev", "bench", *words, file], cwd=ROOT, check=False)
    return json.loads((ROOT / file).read_text()) if done.returncode == 0 else None


def run_lab():
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(LAB, cwd=ROOT, stdout=sys.stderr, env={**os.environ, "LAB_BENCH_OUT": directory},
                              check=False)
        return json.loads((pathlib.Path(directory) / "lab_fault.json").read_text()) if done.returncode == 0 else None


def record(names):
    unknown = set(names) - set(NAMES)
    if unknown:
        sys.exit(f"record: no benchmark {', '.join(sorted(unknown))} ({', '.join(NAMES)})")
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for name in NAMES:
        if names and name not in names:
            continue
        print(f"record: {name}", file=sys.stderr, flush=True)
        about = machine()
        if name in BENCHMARKS:
            command, result = ["./dev", "bench", *BENCHMARKS[name]], run_benchmark(BENCHMARKS[name])
        elif name in SCRIPTS:
            command, result = ["./dev", "bench", *SCRIPTS[name][:-1]], run_script(SCRIPTS[name])
        else:
            command, result = LAB, run_lab()
        if result is None:
            failed.append(name)
            continue
        result = {"name": name, "command": " ".join(command), "machine": about, "report": result}
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if failed:
        sys.exit(f"record: failed: {', '.join(failed)}")


def report(check):
    results = {}
    for file in sorted(RESULTS.glob("*.json")):
        result = json.loads(file.read_text())
        results[result["name"]] = result
    text = performance_page.page(results)
    if not check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit("docs/performance.md is not what bench/results/ gives: run ./dev bench report")


def main():
    parser = argparse.ArgumentParser(description=__doc__, prog="./dev bench",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("names", nargs="*", metavar="NAME")
    commands.add_parser("report").add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.command == "record":
        record(options.names)
    else:
        report(options.check)


if __name__ == "__main__":
    main()
