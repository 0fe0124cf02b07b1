#!/usr/bin/env python3
"""What `farpage attach` costs a program, beside `farpage run`: the times of its faults, and how long its threads stand
while it is attached. Both sides take turns in one run; each touched page is checked.

    bench/attach/attach.py build/release [--size 128M] [--local 48M] [--rounds 10] [--attaches 100]

It starts a coordinator and a node on this machine and ends them.
"""
import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20
TOUCHES = 20_000


def size_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]


def ratio(figures, name):
    """Medians of both sides in us, and the median of the rounds' ratios."""
    attached, run = ([round_[side][name] for round_ in figures] for side in ("attached", "run"))
    return (f"{statistics.median(attached) / 1000:8.2f} us attached   {statistics.median(run) / 1000:8.2f} us under run"
            f"   ratio {statistics.median(a / b for a, b in zip(attached, run)):.2f}")


def percentile(values, percent):
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


class Program:
    """It answers a line with a JSON object."""

    def __init__(self, command, log):
        self.log = log
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=open(log, "wb"))
        assert self.process.stdout.readline() == b"ready\n", self.errors()

    def errors(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read()

    def ask(self, line):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer.get("wrong", 0) == 0, answer
        return answer


class Bench:
    def __init__(self, build, size):
        self.farpage = os.path.join(build, "farpage")
        self.program = os.path.join(build, "bench", "attached_program")
        self.folder = tempfile.mkdtemp(prefix="farpage-attach-")
        self.running = []
        coordinator = self.start([self.farpage, "coordinator", "--listen", "127.0.0.1:0", "--output", "json"])
        self.url = json.loads(coordinator.stdout.readline())["url"]
        node = self.start([self.farpage, "node", "--coordinator", self.url, "--lend", str(size * 4 + 512 * MIB), "--lazy",
                           "--transports", "shm", "--shm-socket", self.path("node.sock"), "--output", "json"])
        node.stdout.readline()

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, command):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.running.append(process)
        return process

    def start_program(self, *arguments, before=()):
        program = Program([*before, self.program, *arguments], self.path(f"{len(self.running)}.log"))
        self.running.append(program.process)
        return program

    def attach(self, pid, local):
        """Returns when it is attached: the process, and what it says."""
        with open(self.path("attach.log"), "wb") as log:
            process = subprocess.Popen([self.farpage, "attach", str(pid), "--local", local, "--coordinator", self.url],
                                       stderr=log)
        self.running.append(process)
        while True:
            with open(self.path("attach.log"), encoding="utf-8") as file:
                said = file.read()
            if "attached to" in said:
                return process, said
            assert process.poll() is None, said
            time.sleep(0.01)

    def detach(self, process, pid):
        subprocess.run([self.farpage, "detach", str(pid)], check=True, stdout=subprocess.DEVNULL)
        process.wait()
        self.running.remove(process)

    def close(self):
        for process in reversed(self.running):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)


def faults(bench, size, local, rounds):
    run = bench.start_program("touch", str(size // MIB),
                              before=[bench.farpage, "run", "--local", local, "--coordinator", bench.url, "--"])
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
    bench = Bench(options.build, options.size)
    try:
        if options.rounds:
            faults(bench, options.size, options.local, options.rounds)
        if options.attaches:
            pauses(bench, options.attaches)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
