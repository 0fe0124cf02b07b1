"""`farpage resize`: smaller and larger budgets for running programs."""
import json
import random
import re
import signal
import subprocess
import sys
import unittest

from cluster import EndToEnd, FARPAGE, MIB, RANDOM_ACCESS, child_of, resident_bytes, wait_until

# Locks as many MiB as its argument says, unlocks them after one line of input, ends after another.
LOCKING = """
import ctypes, mmap, sys
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
libc.mlock.argtypes = libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
print(libc.mlock(address, size), flush=True)
sys.stdin.readline()
print(libc.munlock(address, size), flush=True)
sys.stdin.readline()
"""


def resize(pid, local):
    """Exit status, standard output, standard error."""
    done = subprocess.run([FARPAGE, "resize", str(pid), "--local", local], timeout=60,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class Resize(EndToEnd):
    def expect_resize(self, pid, local):
        status, output, problem = resize(pid, local)
        self.assertEqual((status, problem), (0, ""), output)
        return output

    def start_filled(self, size, local):
        """A program that touches far memory until SIGUSR1, and the size of its other memory."""
        self.start_cluster()
        process = self.start_run([RANDOM_ACCESS, str(size), "2", "3600", "5"], local=local)
        baseline = self.read_baseline(process)
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())
        return process, baseline

    def test_down_and_up_while_it_runs(self):
        process, baseline = self.start_filled(96 * MIB, "64M")
        program = child_of(process.pid)

        def resident():
            return resident_bytes(program) - baseline

        self.assertGreater(resident(), 48 * MIB)
        output = self.expect_resize(process.pid, "16M")
        self.assertEqual(output, f"random_access (pid {program}): 64M -> 16M\n")
        wait_until(lambda: resident() <= 16 * MIB * 105 // 100, "16 MiB are left")
        chance = random.Random(3)
        before = "16M"
        for _ in range(12):
            mebibytes = chance.randint(4, 128)
            local = f"{mebibytes}M"
            output = self.expect_resize(process.pid, local)
            self.assertEqual(output, f"random_access (pid {program}): {before} -> {local}\n")
            wait_until(lambda most=mebibytes * MIB * 105 // 100: resident() <= most, local)
            before = local
        # The program's own pid works as well.
        self.assertIn(f"{before} -> 64M", self.expect_resize(program, "64M"))
        wait_until(lambda: resident() > 40 * MIB, "the larger budget is used")
        self.expect_resize(process.pid, "8M")
        wait_until(lambda: resident() <= 8 * MIB * 105 // 100, "8 MiB are left")
        process.kill(signal.SIGUSR1)
        self.expect_right_end(process)
        stats = self.stats()
        self.assertEqual(stats["faults"]["failed"], 0, stats)
        self.assertEqual(stats["local_bytes"], 8 * MIB, stats)
        self.assertEqual(process.log().count("run: budget_changed"), 15, process.log())

    def test_every_process_of_the_run(self):
        self.start_cluster()
        # The shell has far memory, and so have the two programs that it starts; the second one starts
        # after the budget has changed.
        run = (f"{RANDOM_ACCESS} {32 * MIB} 1 0 1; read line; "
               f"{RANDOM_ACCESS} {32 * MIB} 1 0 2; true")
        process = self.start_run(["/bin/sh", "-c", run], local="64M", stdin=subprocess.PIPE)
        while not (line := process.popen.stdout.readline()).startswith(b"operations"):
            self.assertTrue(line, process.log())
        wait_until(lambda: len(json.loads(self.get("/v1/regions"))["regions"]) == 1,
                   "the first program has ended")
        output = self.expect_resize(process.pid, "4M")
        self.assertRegex(output, r"^(d?a?sh|bash|busybox) \(pid \d+\): 64M -> 4M\n")
        status, output = process.finish_with(b"\n")
        self.assertEqual(status, 0, process.log())
        self.assertIn(b"wrong_bytes 0\n", output)
        evicted = [stats["evictions"]["written"] for stats in self.all_stats()
                   if stats["program"] == "random_access"]
        self.assertEqual(len(evicted), 2, self.all_stats())
        self.assertEqual(evicted[0], 0, self.all_stats())
        self.assertGreater(evicted[1], 1000, self.all_stats())

    def test_what_cannot_be_is_refused(self):
        process, _ = self.start_filled(8 * MIB, "16M")
        for local, words in (("1000", "--local: at least 1M"), ("much", "much"), ("-5M", "--local")):
            status, output, problem = resize(process.pid, local)
            self.assertEqual((status, output), (2, ""), problem)
            self.assertIn(words, problem)
            self.assertEqual(problem.count("\n"), 1, problem)
        for pid in ("0", "-3", "many"):
            self.assertEqual(resize(pid, "16M")[0], 2)
        # The first does not exist, and no farpage run has started the other.
        for pid in (process.popen.pid + (1 << 22), 1):
            status, output, problem = resize(pid, "16M")
            self.assertEqual((status, output), (1, ""), problem)
            self.assertIn(f"no farpage run with pid {pid}", problem)
        process.end()
        self.assertEqual(resize(process.pid, "16M")[0], 1)

    def test_below_what_is_locked(self):
        self.start_cluster()
        process = self.start_run([sys.executable, "-c", LOCKING, "20"], local="32M",
                                 stdin=subprocess.PIPE)
        self.assertEqual(process.popen.stdout.readline(), b"0\n", process.log())
        status, output, problem = resize(process.pid, "16M")
        self.assertEqual((status, output), (1, ""), problem)
        found = re.search(r"\(pid (\d+)\): local: (\d+)[.0-9]*M are pinned .* at least (\d+M)", problem)
        self.assertTrue(found, problem)
        self.assertEqual(int(found[1]), child_of(process.pid))
        self.assertGreaterEqual(int(found[2]), 20)
        self.assertIn("32M -> " + found[3], self.expect_resize(process.pid, found[3]))
        process.send(b"\n")
        self.assertEqual(process.popen.stdout.readline(), b"0\n", process.log())
        self.assertIn(found[3] + " -> 16M", self.expect_resize(process.pid, "16M"))
        status, _ = process.finish_with(b"\n")
        self.assertEqual(status, 0, process.log())


if __name__ == "__main__":
    unittest.main()
