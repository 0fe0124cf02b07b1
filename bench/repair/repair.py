#!/usr/bin/env python3
"""How fast lost replicas are made again, and what the program notices of it.

    bench/repair/repair.py build/release [--size 2G] [--local 512M] [--rounds 3] [--rate max] [--transport shm]

A program touches random pages, half of them writes, each checked, of memory with two replicas on three nodes. In each
round a node is killed and started again, so that its slabs are copied; then nothing happens for as long. Printed are the
rate of the copy beside that of READs and WRITEs of the same transport one after the other (`farpage bench read`), and
the program's touches a second meanwhile, beside those before. It starts all processes on this machine and ends them.
"""
import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.request

MIB = 1 << 20
TOUCHES = 200  # in one step


def size_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]


class Bench:
    def __init__(self, options):
        self.options = options
        self.farpage = os.path.join(options.build, "farpage")
        self.folder = tempfile.mkdtemp(prefix="farpage-repair-")
        self.running = []
        coordinator = self.start([self.farpage, "coordinator", "--listen", "127.0.0.1:0", "--output", "json"])
        self.url = json.loads(coordinator.stdout.readline())["url"]
        self.nodes = {name: self.start_node(name) for name in ("node-1", "node-2", "node-3")}
        self.program = self.start_program()

    def start(self, command, **more):
        process = subprocess.Popen(command, stdout=subprocess.PIPE,
                                   **{"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more})
        self.running.append(process)
        return process

    def start_node(self, name):
        node = self.start([self.farpage, "node", "--coordinator", self.url, "--name", name, "--lend",
                           str(self.options.size + 512 * MIB), "--transports", self.options.transport, "--shm-socket",
                           os.path.join(self.folder, name + ".sock"), "--output", "json"])
        node.stdout.readline()
        return node

    def start_program(self):
        self.log = os.path.join(self.folder, "run.log")
        with open(self.log, "wb") as log:
            program = self.start(
                [self.farpage, "--log-level", "info", "run", "--coordinator", self.url, "--local", self.options.local, "--replicas", "2",
                 "--transport", self.options.transport, "--repair-rate", self.options.rate, "--",
                 os.path.join(self.options.build, "bench", "attached_program"), "touch", str(self.options.size // MIB)],
                stdin=subprocess.PIPE, stderr=log)
        assert program.stdout.readline() == b"ready\n", self.said()
        return program

    def said(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read()

    def touch(self):
        """Touches a second, and the end."""
        start = time.monotonic()
        self.program.stdin.write(f"{TOUCHES}\n".encode())
        self.program.stdin.flush()
        answer = json.loads(self.program.stdout.readline())
        assert answer["wrong"] == 0, answer
        return TOUCHES / (time.monotonic() - start)

    def touch_for(self, seconds):
        end = time.monotonic() + seconds
        rates = []
        while time.monotonic() < end or not rates:
            rates.append(self.touch())
        return statistics.mean(rates)

    def degraded(self):
        with urllib.request.urlopen(self.url + "/v1/cluster", timeout=10) as reply:
            return json.load(reply)["slabs"]["degraded"]

    def restart(self, name):
        """Kills it, starts it, and touches until all is whole: slabs copied, seconds of the copy, touches a second."""
        known = len(self.said())
        self.nodes[name].kill()
        self.nodes[name].wait()
        self.nodes[name] = self.start_node(name)
        steps = []
        while "slab_repaired" not in self.said()[known:] or self.degraded() > 0:
            start = time.time()
            self.touch()
            steps.append((start, time.time()))
        lines = [line for line in self.said()[known:].splitlines()
                 if re.search(r"repair_begun|slab_repaired", line)]
        times = [datetime.datetime.fromisoformat(line.split()[0]).timestamp() for line in lines]
        begin, end = times[0], times[-1]
        touches = sum(TOUCHES * max(0, min(b, end) - max(a, begin)) / (b - a) for a, b in steps)
        return sum("slab_repaired" in line for line in lines), end - begin, touches / (end - begin)

    def raw_rate(self, operation):
        """Bytes a second."""
        output = subprocess.run(
            [self.farpage, "bench", "read", "--operation", operation, "--bytes", "256K", "--depth", "4", "--iterations",
             "4000", "--transport", self.options.transport, "--output", "json"],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        return json.loads(output)["figures"][f"{self.options.transport}_MB_per_s"] * 1e6

    def close(self):
        for process in reversed(self.running):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--size", default="2G", type=size_of)
    parser.add_argument("--local", default="512M")
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--rate", default="max")
    parser.add_argument("--transport", default="shm")
    options = parser.parse_args()
    bench = Bench(options)
    try:
        bench.touch_for(5)
        slab = 64 * MIB
        figures = []
        for round_ in range(options.rounds):
            raw = 1 / (1 / bench.raw_rate("read") + 1 / bench.raw_rate("write"))
            before = bench.touch_for(3)
            slabs, seconds, during = bench.restart(f"node-{round_ % 3 + 1}")
            after = bench.touch_for(3)
            rate = slabs * slab / seconds
            alone = (before + after) / 2
            figures.append((rate / raw, during / alone))
            print(f"{slabs:3} slabs of 64 MiB in {seconds:5.2f} s: {rate / 1e6:5.0f} MB/s, "
                  f"{rate / raw:4.2f} of {raw / 1e6:.0f} raw; touches/s {during:6.0f}, {during / alone:4.2f} of {alone:.0f}",
                  flush=True)
        for name, values in zip(("copy / raw copy", "touches during / alone"), zip(*figures)):
            print(f"{name:24} median {statistics.median(values):.2f}")
    finally:
        bench.close()


if __name__ == "__main__":
    main()
