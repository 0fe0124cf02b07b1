"""The processes of one `farpage run` share its budget, by need."""
import subprocess
import sys
import unittest

from cluster import (EndToEnd, MIB, RANDOM_ACCESS, Sampler, child_of, far_memory_at_one_moment,
                     far_memory_of_run, far_resident_bytes, wait_until)
from resize_test import LOCKING
from verifier import scaled

# Fills memory, waits for a line, runs the command of its arguments, and checks its memory.
PARENT = """
import subprocess, sys
block = bytearray(b"7") * (int(sys.argv[1]) << 20)
print("filled", flush=True)
sys.stdin.readline()
status = subprocess.call(sys.argv[2:])
print("status", status, "right" if block.count(b"7") == len(block) else "wrong", flush=True)
"""

# Six children work on memory of their own and on a part of their parent's.
POOL = """
import multiprocessing
numbers = list(range(400000))
def work(seed):
    mine = [n * seed % 1000003 for n in numbers]
    mine.sort()
    return sum(mine[::seed])
with multiprocessing.get_context("fork").Pool(6) as pool:
    print(pool.map(work, range(1, TASKS), chunksize=1))
""".replace("TASKS", str(scaled(13, 25)))

# One process writes all pages that it shares with another one, again and again.
COPIES = """
import os, sys, time
writer, size = sys.argv[1], int(sys.argv[2])
memory = bytearray(os.urandom(4096)) * (size >> 12)
first = memory[0]
def write(value):
    for at in range(0, size, 4096):
        memory[at] = value
def holds(value):
    return all(memory[at] == value for at in range(0, size, 4096))
def child(number):
    if writer == "child":
        for _ in range(3):
            write(number)
        os._exit(0 if holds(number) else 1)
    os.read(rewritten[0], 1)  # until the parent has closed its end
    os._exit(0 if holds(first) else 1)
rewritten = os.pipe()
children = []
for number in range(3 if writer == "child" else 1):
    pid = os.fork()
    if pid == 0:
        os.close(rewritten[1])
        child(number)
    children.append(pid)
value = first
if writer == "parent":
    for value in range(100):
        write(value)
os.close(rewritten[1])
failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
print("failed", failed, "parent", "right" if holds(value) else "wrong")
"""


class GroupBudget(EndToEnd):
    def access(self, mebibytes, seconds, seed):
        return [RANDOM_ACCESS, str(mebibytes * MIB), "1", str(seconds), str(seed)]

    def two_at_once(self, **more):
        self.start_cluster()
        command = " & ".join(" ".join(self.access(24, 2, seed)) for seed in (1, 2))
        process = self.start_run(["/bin/sh", "-c", f"{command} & wait"], **more)
        status, output = process.finish()
        self.assertEqual((status, output.count(b"wrong_bytes 0\n")), (0, 2), process.log())
        workers = [stats for stats in self.all_stats() if stats["program"] == "random_access"]
        self.assertEqual(len(workers), 2, self.all_stats())
        for stats in workers:
            self.assertEqual(stats["faults"]["failed"], 0, stats)
        return workers

    def test_two_processes_share_the_budget(self):
        workers = self.two_at_once(local="32M")
        self.assertGreater(sum(stats["evictions"]["written"] for stats in workers), 16 * MIB // 4096)

    def test_each_process_has_a_budget_when_asked(self):
        workers = self.two_at_once(local=None, options=["--local-each", "32M"])
        self.assertEqual([stats["evictions"]["written"] for stats in workers], [0, 0], workers)
        self.assertEqual([stats["local_bytes"] for stats in workers], [32 * MIB] * 2, workers)

    def test_a_forking_pool_stays_within_the_budget(self):
        expected = subprocess.run([sys.executable, "-c", POOL], capture_output=True, check=True).stdout
        self.start_coordinator()
        self.start_node("node", "--slab", "8M", lend="2G", transports="shm")
        process = self.start_run([sys.executable, "-c", POOL], local="48M", options=["--slab", "8M"])
        with Sampler(lambda: far_memory_of_run(process.pid)) as far:
            status, output = process.finish()
        self.assertEqual((status, output), (0, expected), process.log())
        workers = [stats for stats in self.all_stats() if stats["evictions"]["written"] > 0]
        print("most far memory", far.most >> 20, "MiB,", len(workers), "processes")
        self.assertGreater(len(workers), 6, self.all_stats())
        self.assertGreater(far.samples, 20)
        self.assertGreater(far.most, 0)
        self.assertLessEqual(far.most, 48 * MIB * 105 // 100)

    def copies(self, writer):
        self.start_cluster()
        process = self.start_run([sys.executable, "-c", COPIES, writer, str(24 * MIB)], local="32M")
        with Sampler(lambda: far_memory_at_one_moment(process.pid), pause=0.1) as far:
            status, output = process.finish()
        self.assertEqual((status, output), (0, b"failed 0 parent right\n"), process.log())
        print("most far memory", far.most / MIB, "MiB,", far.samples, "samples")
        self.assertGreater(far.most, 24 * MIB)
        self.assertLessEqual(far.most, 32 * MIB * 105 // 100)

    def test_children_may_write_all_that_they_share(self):
        self.copies("child")

    def test_a_parent_may_write_all_that_it_shares(self):
        self.copies("parent")

    def start_parent(self, mebibytes, command):
        """A parent that has filled its memory, and has not yet started its child."""
        self.start_cluster()
        process = self.start_run([sys.executable, "-c", PARENT, str(mebibytes), *command],
                                 local="32M", stdin=subprocess.PIPE)
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())
        return process, child_of(process.pid)

    def test_an_idle_process_gives_room_to_one_that_faults(self):
        process, parent = self.start_parent(28, self.access(26, 3600, 5))
        before = far_resident_bytes([parent])
        process.send(b"\n")
        self.read_baseline(process)
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())
        child = child_of(parent)
        wait_until(lambda: far_resident_bytes([child]) >= 25 * MIB, "the child has what it needs")
        self.assertLess(far_resident_bytes([parent]), before - 16 * MIB)
        wait_until(lambda: far_resident_bytes([parent, child]) <= 32 * MIB * 105 // 100,
                   "both are within the budget")
        subprocess.run(["kill", "-USR1", str(child)], check=True)
        status, output = process.finish_with(b"")
        self.assertEqual(status, 0, process.log())
        self.assertIn(b"wrong_bytes 0\n", output)
        self.assertIn(b"status 0 right\n", output)

    def test_a_process_may_lock_what_an_idle_one_had(self):
        process, _ = self.start_parent(28, [sys.executable, "-c", LOCKING, "20"])
        process.send(b"\n")
        self.assertEqual(process.popen.stdout.readline(), b"0\n", process.log())
        status, output = process.finish_with(b"\n\n")
        self.assertEqual((status, output), (0, b"0\nstatus 0 right\n"), process.log())


if __name__ == "__main__":
    unittest.main()
