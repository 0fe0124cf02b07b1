#!/usr/bin/env python3
"""How fast replicas are made again that were lost or that a drain takes away, and what the program notices of it.

    bench/repair/repair.py build/release [--size 2G] [--local 512M] [--rounds 3] [--rate max] [--transport shm] [--drain]

A program touches random pages, half of them writes, each checked, of memory with two replicas on three nodes. In each
round a node is killed (--drain: drained, until it has left) and started again, so that its slabs are copied; then nothing
happens for as long. Printed are the rate of the copy beside that of READs and WRITEs of the same transport one after the
other (`farpage bench read`), and the program's touches a second meanwhile, beside those before. It starts all processes
on this machine and ends them.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from local_cluster import MIB, LineProgram, LocalCluster, size_of

TOUCHES = 200  # in one step
LOG = "run.log"


class Bench:
    def __init__(self, cluster, options):
        self.cluster, self.options = cluster, options
        self.nodes = {name: self.start_node(name) for name in ("node-1", "node-2", "node-3")}
        self.program = LineProgram(
            cluster, [cluster.farpage, "--log-level", "info", "run", "--coordinator", cluster.url, "--local", options.local,
                      "--replicas", "2", "--transport", options.transport, "--repair-rate", options.rate, "--",
                      os.path.join(options.build, "bench", "attached_program"), "touch", str(options.size // MIB)], LOG)

    def start_node(self, name):
        return self.cluster.start_node(name, self.options.size + 512 * MIB, self.options.transport)

    def touch(self):
        """Touches a second."""
        start = time.monotonic()
        self.program.ask(TOUCHES)
        return TOUCHES / (time.monotonic() - start)

    def touch_timed(self, steps):
        start = time.time()
        self.touch()
        steps.append((start, time.time()))

    def begin_end_of(self, name):
        """Kills the node; or begins its drain, of which the command is returned: it ends when the node has left."""
        if not self.options.drain:
            self.cluster.end(self.nodes[name])
            return None
        return self.cluster.start([self.cluster.farpage, "drain", name, "--coordinator", self.cluster.url])

    def touch_for(self, seconds):
        end = time.monotonic() + seconds
        rates = []
        while time.monotonic() < end or not rates:
            rates.append(self.touch())
        return statistics.mean(rates)

    def degraded(self):
        with urllib.request.urlopen(self.cluster.url + "/v1/cluster", timeout=10) as reply:
            return json.load(reply)["slabs"]["degraded"]

    def replace(self, name):
        """Ends it, starts it, and touches until all is whole: slabs copied, seconds of the copy, touches a second."""
        known = len(self.cluster.said(LOG))
        steps = []
        drain = self.begin_end_of(name)
        while drain and (drain.poll() is None or self.nodes[name].poll() is None):
            self.touch_timed(steps)
        self.nodes[name] = self.start_node(name)
        while "slab_repaired" not in self.cluster.said(LOG)[known:] or self.degraded() > 0:
            self.touch_timed(steps)
        lines = [line for line in self.cluster.said(LOG)[known:].splitlines()
                 if re.search(r"repair_begun|slab_repaired", line)]
        times = [datetime.datetime.fromisoformat(line.split()[0]).timestamp() for line in lines]
        begin, end = times[0], times[-1]
        touches = sum(TOUCHES * max(0, min(b, end) - max(a, begin)) / (b - a) for a, b in steps)
        return sum("slab_repaired" in line for line in lines), end - begin, touches / (end - begin)

    def raw_rate(self, operation):
        """Bytes a second."""
        output = self.cluster.run("bench", "read", "--operation", operation, "--bytes", "256K", "--depth", "4",
                                  "--iterations", "4000", "--transport", self.options.transport, "--output", "json")
        return json.loads(output)["figures"][f"{self.options.transport}_MB_per_s"] * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--size", default="2G", type=size_of)
    parser.add_argument("--local", default="512M")
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--rate", default="max")
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--drain", action="store_true")
    options = parser.parse_args()
    with LocalCluster(options.build) as cluster:
        bench = Bench(cluster, options)
        bench.touch_for(5)
        slab = 64 * MIB
        figures = []
        for round_ in range(options.rounds):
            raw = 1 / (1 / bench.raw_rate("read") + 1 / bench.raw_rate("write"))
            before = bench.touch_for(3)
            slabs, seconds, during = bench.replace(f"node-{round_ % 3 + 1}")
            after = bench.touch_for(3)
            rate = slabs * slab / seconds
            alone = (before + after) / 2
            figures.append((rate / raw, during / alone))
            print(f"{slabs:3} slabs of 64 MiB in {seconds:5.2f} s: {rate / 1e6:5.0f} MB/s, "
                  f"{rate / raw:4.2f} of {raw / 1e6:.0f} raw; touches/s {during:6.0f}, {during / alone:4.2f} of {alone:.0f}",
                  flush=True)
        for name, values in zip(("copy / raw copy", "touches during / alone"), zip(*figures)):
            print(f"{name:24} median {statistics.median(values):.2f}")


if __name__ == "__main__":
    main()
