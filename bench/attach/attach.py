#!/usr/bin/env python3
"""What `farpage attach` costs a program, beside `farpage run`: the times of its faults, and how long its threads stand
while it is attached. Both sides take turns in one run; each touched page is checked.

    bench/attach/attach.py build/release [--size 128M] [--local 48M] [--rounds 10] [--attaches 100]

It starts a coordinator and a node on this machine and ends them.
"""
import argparse
import math
import os
import re
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from local_cluster import MIB, LineProgram, LocalCluster, size_of

TOUCHES = 20_000


def ratio(figures, name):
    """Medians of both sides in us, and the median of the rounds' ratios."""
    attached, run = ([round_[side][name] for round_ in figures] for side in ("attached", "run"))
    return (f"{statistics.median(attached) / 1000:8.2f} us attached   {statistics.median(run) / 1000:8.2f} us under run"
            f"   ratio {statistics.median(a / b for a, b in zip(attached, run)):.2f}")


def percentile(values, percent):
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


class Bench:
    def __init__(self, cluster, size):
        self.cluster = cluster
        self.program = os.path.join(cluster.build, "bench", "attached_program")
        self.programs = 0
        cluster.start_node("node-1", size * 4 + 512 * MIB, "shm", "--lazy")

    def start_program(self, *arguments, before=()):
        self.programs += 1
        return LineProgram(self.cluster, [*before, self.program, *arguments], f"program-{self.programs}.log")

    def attach(self, pid, local):
        """Returns when it is attached: the process, and what it says."""
        process = self.cluster.start([self.cluster.farpage, "attach", str(pid), "--local", local, "--coordinator",
                                      self.cluster.url], "attach.log")
        while "attached to" not in (said := self.cluster.said("attach.log")):
            assert process.poll() is None, said
            time.sleep(0.01)
        return process, said

    def detach(self, process, pid):
        self.cluster.run("detach", str(pid))
        process.wait()
        self.cluster.running.remove(process)


def faults(bench, size, local, rounds):
    run = bench.start_program("touch", str(size // MIB),
                              before=[bench.cluster.farpage, "run", "--local", local, "--coordinator",
                                      bench.cluster.url, "--"])
    attached = bench.start_program("touch", str(size // MIB))
    bench.attach(attached.process.pid, local)
    sides = {"run": run, "attached": attached}
    for program in sides.values():  # until the pages beyond the budget have left
        program.ask(TOUCHES * 2)
    figures = []
    for round_ in range(rounds):
        order = list(sides) if round_ % 2 == 0 else list(reversed(sides))
        figures.append({side: sides[side].ask(TOUCHES) for side in order})
    counted = {side: sum(round_[side]["faults"] for round_ in figures) for side in sides}
    print(f"faults                    {counted['attached']:8,} attached   {counted['run']:,} under run, half writes")
    print("fault p50             ", ratio(figures, "p50_ns"))
    print("fault p99             ", ratio(figures, "p99_ns"))


def pauses(bench, attaches):
    """Windows in which it is attached and detached, and as long ones in which nothing happens, in turn."""
    program = bench.start_program("turn", "4")
    pid = program.process.pid
    with_attach, without, stood = [], [], []
    for _ in range(attaches):
        program.ask("")
        start = time.monotonic()
        process, said = bench.attach(pid, "64M")
        bench.detach(process, pid)
        took = time.monotonic() - start
        with_attach.append(program.ask(""))
        stood.append(float(re.search(r"stood for ([0-9.]+) ms", said)[1]))
        time.sleep(took)
        without.append(program.ask(""))
    print(f"stood, ms, {attaches} attaches    p50 {percentile(stood, 50):.1f}   p99 {percentile(stood, 99):.1f}   "
          f"longest {max(stood):.1f}")
    for name in ("turning", "stopped", "sleeping"):
        for what, windows in (("attached", with_attach), ("alone", without)):
            gaps = [window[f"{name}_ns"] / 1e6 for window in windows]
            print(f"longest gap, ms, {name:8} p50 {percentile(gaps, 50):.1f}   p99 {percentile(gaps, 99):.1f}   "
                  f"longest {max(gaps):.1f}   ({what})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--size", default="128M", type=size_of)
    parser.add_argument("--local", default="48M")
    parser.add_argument("--rounds", default=10, type=int)
    parser.add_argument("--attaches", default=100, type=int)
    options = parser.parse_args()
    with LocalCluster(options.build) as cluster:
        bench = Bench(cluster, options.size)
        if options.rounds:
            faults(bench, options.size, options.local, options.rounds)
        if options.attaches:
            pauses(bench, options.attaches)


if __name__ == "__main__":
    main()
