#!/usr/bin/env python3
"""Real programs with part of their memory local: farpage beside kernel swap.

  ./dev bench programs                    sort, sqlite3, redis-server, a graph walk in Python, k-means and a
                                          scan in place in numpy
  ./dev bench programs redis --shares 50

Each program runs plainly first: that is what all others are compared with, in run time (redis: in
requests per second) and in output, which must be the same. A share is a part of the plain run's peak of
resident memory. The table shows medians of the rounds, as slowdowns against the plain run; "killed": the kernel
ran out of memory under that limit, three times in a row. Needs root.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from systems import BUILD, Killed, chosen, systems_here, unless_killed

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 600
SQL = """
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price INTEGER, note BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150000)
INSERT INTO item SELECT i, 'name-' || (i * 7919 % 300000), i * 31 % 1009, hex(i * 2654435761) || printf('%0300d', i)
  FROM n;
CREATE INDEX by_name ON item(name);
SELECT count(*), sum(price), sum(length(note)), max(name) FROM item;
SELECT count(*) FROM item a JOIN item b ON b.name = 'name-' || a.id WHERE a.price < 100;
UPDATE item SET note = note || 'x' WHERE price % 5 = 0;
SELECT count(*), sum(length(note)) FROM item;
"""


class Command:
    """A program that runs to its end; its rate is the reciprocal of its run time."""

    def __init__(self, name, words):
        self.name, self.words = name, words

    def run(self, before, how):
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            begin = time.monotonic()
            status, peak = finish(subprocess.Popen([*before, *self.words], stdout=output, stderr=errors, **how))
            seconds = time.monotonic() - begin
            output.seek(0)
            errors.seek(0)
            if status != 0:
                raise RuntimeError(f"{self.name}: status {status}: {errors.read()[-2000:].decode()}")
            return {"run": 1 / seconds}, digest(output), peak


class Redis:
    """redis-server under GETs of 1 KiB values with a Zipf distribution."""
    name = "redis"
    keys, value_bytes, seconds = 100_000, 1024, 4

    def __init__(self, folder):
        self.socket = os.path.join(folder, "redis.socket")
        self.server = os.path.join(folder, "redis-server")
        # One binary with several names; the package of this name starts no service.
        os.symlink(program("redis-check-rdb"), self.server)

    def run(self, before, how):
        server = subprocess.Popen([*before, self.server, "--port", "0", "--unixsocket", self.socket,
                                   "--save", "", "--appendonly", "no"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how)
        try:
            self.wait_for_socket(server)
            done = subprocess.run([BUILD / "redis_zipf", self.socket, str(self.keys), str(self.value_bytes),
                                   str(self.seconds)], capture_output=True, text=True, timeout=PATIENCE)
        finally:
            os.kill(server.pid, signal.SIGTERM)  # Popen.terminate() would reap a server that has ended
            _, peak = finish(server)
        if done.returncode != 0:
            raise RuntimeError(f"redis_zipf: status {done.returncode}: {done.stdout}{done.stderr}")
        found = json.loads(done.stdout)
        return {"GET": found["gets_per_s"], "SET": found["sets_per_s"]}, found["wrong"], peak

    def wait_for_socket(self, server):
        for _ in range(1000):
            with socket.socket(socket.AF_UNIX) as connection:
                if connection.connect_ex(self.socket) == 0:
                    return
            if os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(0.02)
        raise RuntimeError("redis-server does not listen")


def measure(options, programs):
    samples = []
    systems = chosen(systems_here(), options.systems)

    def take(each, name, share, result):
        rates, output, peak = result
        samples.append({"program": each.name, "system": name, "share": share, "peak_bytes": peak, "rates": rates})
        return output, peak

    for number in range(options.rounds):
        for each in programs:
            expected, peak = take(each, "plain", 100, each.run([], {}))
            for system in systems:
                with system.running(peak):
                    for share in options.shares:
                        print(f"programs: round {number + 1} of {options.rounds}, {each.name}, {system.name}, "
                              f"{share} % of {peak >> 20} MiB", file=sys.stderr)
                        with system.confine(peak * share // 100) as (before, how):
                            result = unless_killed(system, lambda: each.run(before, how))
                            output, _ = take(each, system.name, share, result or (None, None, 0))
                        if output not in (expected, None):
                            raise RuntimeError(f"{each.name} in {system.name}: the output differs")
    return samples


def table(options, samples):
    def median(what, **wanted):
        rates = [sample["rates"][what] for sample in samples if sample["rates"] is not None
                 and all(sample[key] == value for key, value in wanted.items())]
        return statistics.median(rates) if rates else None

    def slowdown(plain, rate):
        return f"{'killed':>11}" if rate is None else f"{plain / rate:10.2f}x"

    lines = [f"{'':24}" + "".join(f"{share:>9} %" for share in options.shares) + "   of the peak local"]
    for name in dict.fromkeys(sample["program"] for sample in samples):
        mine = [sample for sample in samples if sample["program"] == name]
        peak = statistics.median(sample["peak_bytes"] for sample in mine if sample["system"] == "plain")
        for what in mine[0]["rates"]:
            plain = median(what, program=name, system="plain")
            score = f"{1 / plain:.2f} s" if what == "run" else f"{plain:,.0f} {what}/s"
            lines.append(f"{name}: plain {score}, peak {int(peak) >> 20} MiB")
            for system in dict.fromkeys(sample["system"] for sample in mine if sample["system"] != "plain"):
                lines.append(f"  {system:22}" + "".join(
                    slowdown(plain, median(what, program=name, system=system, share=share))
                    for share in options.shares))
    return "\n".join(lines)


def digest(file):
    """Resident memory of our child before its exec counts for its peak, so this process holds no outputs."""
    digested = hashlib.sha256()
    while part := file.read(1 << 20):
        digested.update(part)
    return digested.hexdigest()


def finish(process):
    """Its status, and the peak resident memory of it and of the children that it waited for."""
    late = threading.Event()

    def give_up():
        late.set()
        process.kill()

    watch = threading.Timer(PATIENCE, give_up)
    watch.start()
    _, status, usage = os.wait4(process.pid, 0)
    watch.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if late.is_set():
        raise RuntimeError(f"{' '.join(map(str, process.args))}: not done after {PATIENCE} s")
    if process.returncode == -signal.SIGKILL:
        raise Killed(" ".join(map(str, process.args)))
    return process.returncode, usage.ru_maxrss << 10


def program(name):
    return shutil.which(name, path="/usr/bin:/bin") or sys.exit(f"{name} is not installed: ./dev setup programs")


def make_programs(folder):
    lines = os.path.join(folder, "lines")
    source = random.Random(1)
    with open(lines, "wb") as file:
        for _ in range(160_000):
            file.write(source.randbytes(200).hex().encode() + b"\n")
    return [Command("sort", [program("sort"), "-S", "1G", "--parallel=1", lines]),
            Command("sqlite", [program("sqlite3"), ":memory:", SQL]),
            Command("graph", [program("python3"), os.path.join(HERE, "graph_walk.py"), "150000", "1000000"]),
            Command("kmeans", [program("python3"), os.path.join(HERE, "kmeans.py"), "400000"]),
            Command("scan", [program("python3"), os.path.join(HERE, "scan_in_place.py"), "24000000"]),
            Redis(folder)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, prog="./dev bench programs",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM",
                        help="sort, sqlite, graph, kmeans, scan, redis (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--shares", type=int, nargs="+", default=[100, 75, 50, 25], metavar="PERCENT",
                        help="of the plain run's peak that stay local (%(default)s)")
    parser.add_argument("--systems", nargs="+", metavar="NAME",
                        help="those whose name contains one of these (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write every single result there")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("programs: swap devices and memory limits need root")
    with tempfile.TemporaryDirectory(prefix="farpage-programs-") as folder:
        programs = make_programs(folder)
        unknown = set(options.programs) - {each.name for each in programs}
        if unknown:
            parser.error(f"no program {', '.join(sorted(unknown))} (sort, sqlite, graph, kmeans, scan, redis)")
        samples = measure(options, [each for each in programs if each.name in (options.programs or [each.name])])
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump({"benchmark": "programs", "command": sys.argv, "rounds": options.rounds,
                       "samples": samples}, file, indent=2)
    print(table(options, samples))


if __name__ == "__main__":
    main()
