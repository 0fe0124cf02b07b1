#!/usr/bin/env python3
"""What restoring guests from an image costs, beside the floors: a bare handler (bare_handler.cc), READs, WRITEs and
UFFDIO_COPY as they are. Every figure is a ratio inside one run; rounds of both sides take turns.

    bench/restore/restore.py build/release [--size 256M] [--transport tcp] [--rounds 5]

It starts a coordinator and a node on this machine and ends them. Each guest checks every byte.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from local_cluster import MIB, LocalCluster, size_of

PAGE = 4096


class Bench:
    def __init__(self, cluster, size, transport):
        self.cluster, self.size, self.transport = cluster, size, transport
        self.guest_program = os.path.join(cluster.build, "tests", "restored_guest")
        self.bare_program = os.path.join(cluster.build, "bench", "bare_handler")
        self.sockets = 0
        cluster.start_node("node-1", size * 3 + 256 * MIB, transport)
        self.file = cluster.path("guest.mem")
        with open(self.file, "wb") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))

    def push(self, name):
        self.cluster.run("image", "push", self.file, "--name", name, "--coordinator", self.cluster.url, "--transport",
                         self.transport)

    def serve(self, *more):
        self.sockets += 1
        self.socket = self.cluster.path(f"{self.sockets}.sock")
        self.log = f"{self.sockets}.log"
        process = self.cluster.start(
            [self.cluster.farpage, "serve", "--image", "vm", "--socket", self.socket, "--coordinator", self.cluster.url,
             "--cache", str(self.size + 64 * MIB), "--transport", self.transport, "--output", "json", "--stats-file",
             self.socket + ".json", *more], self.log)
        process.stdout.readline()
        return process

    def bare(self):
        self.sockets += 1
        self.socket = self.cluster.path(f"{self.sockets}.sock")
        process = self.cluster.start([self.bare_program, self.socket, self.file])
        process.stdout.readline()
        return process

    def guests(self, count=1, *more):
        """Guests at once, each with one thread: their figures."""
        started = [subprocess.Popen([self.guest_program, self.socket, self.file, "--threads", "1",
                                     "--seed", str(i + 1), *more], stdout=subprocess.PIPE) for i in range(count)]
        figures = [json.loads(guest.communicate()[0]) for guest in started]
        for figure in figures:
            assert figure["wrong"] == 0 and figure["sigbus"] == 0, figure
        return figures

    def replay_rate(self, threads):
        """MiB/s with the pages in the cache."""
        server = self.serve("--prefetch-all", "--replay-threads", str(threads))
        rates = []
        for session in range(1, 4):
            guest = self.cluster.start([self.guest_program, self.socket, self.file, "--wait"])
            guest.stdout.readline()
            pages, ms = self.replayed(session)
            rates.append(pages * PAGE / MIB / (ms / 1000))
            self.cluster.end(guest)
        self.cluster.end(server)
        return statistics.median(rates[1:])

    def figures_of(self, sessions):
        """What the server says when so many guests have ended."""
        while True:
            try:
                with open(self.socket + ".json", encoding="utf-8") as file:
                    figures = json.load(file)
                if figures["sessions"]["ended"] >= sessions:
                    return figures
            except FileNotFoundError:
                pass
            time.sleep(0.02)

    def replayed(self, session=1):
        """Pages and ms, when the first pages of a session have been placed ahead."""
        while True:
            found = re.search(rf"replayed session={session} pages=(\d+) in_ms=(\d+)", self.cluster.said(self.log))
            if found:
                return int(found[1]), max(int(found[2]), 1)
            time.sleep(0.02)

    def touch_its_set(self, *options, ahead=False):
        """A guest touches a quarter of the image, of which the cache has nothing: ms, and faults that waited. `ahead`: it
        begins when the set was replayed, which is counted."""
        server = self.serve(*options)
        command = [self.guest_program, self.socket, self.file, "--threads", "1", "--percent", "25", "--seed", "7"]
        guest = self.cluster.start([*command, *(["--wait"] if ahead else [])])
        replay_ms = 0
        if ahead:
            guest.stdout.readline()
            replay_ms = self.replayed()[1]
        figure = json.loads(guest.communicate(b"\n")[0])
        assert figure["wrong"] == 0 and figure["sigbus"] == 0, figure
        faults = self.figures_of(1)["faults"]
        self.cluster.end(guest)
        self.cluster.end(server)
        return figure["touch_ms"] + replay_ms, sum(faults[kind] for kind in ("read", "joined", "cached"))

    def recorded_set(self):
        """Of guests that touch a quarter of the image."""
        path = self.cluster.path("recorded.set")
        server = self.serve("--recorded-set", path)
        self.guests(1, "--percent", "25")
        self.figures_of(1)
        self.cluster.end(server)
        return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--size", default="256M", type=size_of)
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--rounds", default=5, type=int)
    options = parser.parse_args()
    median = statistics.median
    with LocalCluster(options.build) as cluster:
        bench = Bench(cluster, options.size, options.transport)
        pushes = []
        for number in range(3):
            start = time.monotonic()
            bench.push(f"push-{number}")
            pushes.append(options.size / 1e6 / (time.monotonic() - start))
            cluster.run("image", "remove", f"push-{number}", "--coordinator", cluster.url)
        bench.push("vm")
        write = json.loads(cluster.run("bench", "evict", "--transport", options.transport, "--output", "json"))
        raw_write = write["figures"]["raw_write_MB_per_s"]
        print(f"push                      {median(pushes):8.0f} MB/s   raw WRITE {raw_write:.0f} MB/s   "
              f"ratio {median(pushes) / raw_write:.2f}")

        p50 = {"ours": [], "bare": []}
        p99 = {"ours": [], "bare": []}
        rates = {"ours": [], "bare": []}
        server = bench.serve()
        ours = bench.socket
        bench.guests()  # fills the cache
        handler = bench.bare()
        sockets = {"ours": ours, "bare": bench.socket}
        for _ in range(options.rounds):
            for side, socket in sockets.items():
                bench.socket = socket
                figure = bench.guests()[0]
                p50[side].append(figure["p50_ns"])
                p99[side].append(figure["p99_ns"])
                figures = bench.guests(8, "--percent", "25")
                rates[side].append(sum(f["pages"] for f in figures) / max(f["touch_ms"] for f in figures) * 1000)
        print(f"fault, page in the cache  {median(p50['ours']) / 1000:8.2f} us p50   bare handler "
              f"{median(p50['bare']) / 1000:.2f} us   ratio {median(p50['ours']) / median(p50['bare']):.2f}   "
              f"p99 {median(p99['ours']) / 1000:.1f} / {median(p99['bare']) / 1000:.1f} us")
        print(f"8 guests at once          {median(rates['ours']):8.0f} faults/s   bare handlers "
              f"{median(rates['bare']):.0f}   ratio {median(rates['ours']) / median(rates['bare']):.2f}")
        cluster.end(server)
        cluster.end(handler)

        cold, floors, above = [], [], []
        for _ in range(options.rounds):
            server = bench.serve()
            cold.append(bench.guests(1, "--percent", "25")[0]["p50_ns"] / 1000)
            cluster.end(server)
            ladder = json.loads(cluster.run("bench", "ladder", "-n", "2000", "--output", "json"))
            floors.append(ladder["figures"][f"{options.transport}_floor_us"])
            above.append(cold[-1] / floors[-1])
        read = json.loads(cluster.run("bench", "read", "--transport", options.transport, "--output", "json"))
        read_us = next(row["t_typical"] for row in read["rows"] if row["bytes"] == PAGE)
        floor = median(p50["bare"]) / 1000 + read_us
        print(f"fault, cold               {median(cold):8.2f} us p50   bare handler + READ {floor:.2f} us   "
              f"ratio {median(cold) / floor:.2f}   local fault + READ {median(floors):.2f} us   "
              f"ratio {median(above):.2f} ({min(above):.2f} to {max(above):.2f})")

        recorded = bench.recorded_set()
        for name, ahead in (("at once", False), ("after its replay", True)):
            pairs = [(bench.touch_its_set(), bench.touch_its_set("--recorded-set", recorded, ahead=ahead))
                     for _ in range(options.rounds)]
            ms = [median(pair[side][0] for pair in pairs) for side in (0, 1)]
            faults = [median(pair[side][1] for pair in pairs) for side in (0, 1)]
            times = [known[0] / plain[0] for plain, known in pairs]
            print(f"set touched {name:16} {ms[1]:6.0f} ms   cold {ms[0]:.0f} ms   ratio {median(times):.2f} "
                  f"({min(times):.2f} to {max(times):.2f})   faults {faults[1]:.0f} / {faults[0]:.0f}")

        raw = float(subprocess.run([bench.bare_program, "--copy", bench.file, "3"], capture_output=True, text=True,
                                   check=True).stdout)
        for threads in (1, 2):
            rate = bench.replay_rate(threads)
            print(f"replay, {threads} thread(s)       {rate:8.0f} MiB/s   UFFDIO_COPY of one thread {raw:.0f} MiB/s   "
                  f"ratio {rate / raw:.2f}")


if __name__ == "__main__":
    main()
