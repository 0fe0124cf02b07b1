"""The heap of a program is in far memory, whatever its allocator."""
import os
import shutil
import subprocess
import unittest

from cluster import BUILD, EndToEnd, MIB

PROGRAM = os.path.join(BUILD, "tests", "heap_churn")
LIBRARIES = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4",
             "mimalloc": "libmimalloc.so.2"}


class Allocators(EndToEnd):
    def check(self, program, served_by, environment=None):
        self.start_cluster()
        process = self.start_run([program, str(64 * MIB)], local="16M", environment=environment)
        status, output = process.finish()
        self.assertEqual(status, 0, process.log())
        self.assertIn(served_by, output.decode())
        self.expect_real_paging()

    def preloaded(self, name):
        cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
        if LIBRARIES[name] not in cache.stdout:
            self.skipTest(f"{LIBRARIES[name]} is not installed")
        self.check(PROGRAM, name, {"LD_PRELOAD": LIBRARIES[name]})

    def linked(self, name):
        program = f"{PROGRAM}_{name}"
        if not os.path.exists(program):
            self.skipTest(f"{LIBRARIES[name]} was not installed when this was built")
        self.check(program, name)

    def test_the_default_is_mimalloc(self):
        self.check(PROGRAM, "mimalloc")

    def test_jemalloc_that_the_user_preloads(self):
        self.preloaded("jemalloc")

    def test_tcmalloc_that_the_user_preloads(self):
        self.preloaded("tcmalloc")

    def test_mimalloc_that_the_user_preloads(self):
        self.preloaded("mimalloc")

    def test_a_program_linked_to_jemalloc(self):
        self.linked("jemalloc")

    def test_a_program_linked_to_tcmalloc(self):
        self.linked("tcmalloc")

    def test_a_program_linked_to_mimalloc(self):
        self.linked("mimalloc")

    def test_a_pair_of_malloc_and_free_costs_no_system_call(self):
        """Three times as many pairs make no more calls: the shim is not on malloc's path."""
        strace = shutil.which("strace")
        if strace is None:
            self.skipTest("no strace")

        def calls(count):
            trace = self.path("trace")
            command = [strace, "-f", "-o", trace, PROGRAM, "pairs", str(count)]
            status, _, log = self.run_far(command, local="128M", options=["--lend", "256M"])
            self.assertEqual(status, 0, log)
            with open(trace, encoding="utf-8") as file:
                lines = file.read().splitlines()
            program = lines[0].split()[0]  # not the agent thread
            return sum(line.split()[0] == program for line in lines)

        few, many = calls(100_000), calls(300_000)
        print(f"system calls of the program: {few} and {many}", flush=True)
        # mimalloc returns pages after a time: a few such calls may fall into the longer run.
        self.assertLess(many - few, 200)


if __name__ == "__main__":
    unittest.main()
