"""The heap of a program is in far memory, whatever its allocator."""
import os
import shutil
import subprocess
import unittest

from cluster import BUILD, FARPAGE, EndToEnd, MIB
from verifier import scaled

PROGRAM = os.path.join(BUILD, "tests", "heap_churn")
STEPS = str(scaled(2500, 12_000))
LIBRARIES = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4",
             "mimalloc": "libmimalloc.so.2"}


class Allocators(EndToEnd):
    def check(self, program, served_by, environment=None, options=()):
        self.start_cluster()
        size = scaled(16, 64)
        process = self.start_run([program, str(size * MIB), STEPS], local=f"{size // 4}M", environment=environment,
                                 options=options)
        status, output = process.finish()
        self.assertEqual(status, 0, process.log())
        self.assertIn(served_by, output.decode())
        self.expect_real_paging()

    def require(self, name):
        cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
        if LIBRARIES[name] not in cache.stdout:
            self.skipTest(f"{LIBRARIES[name]} is not installed")
        return next(line.split()[-1] for line in cache.stdout.splitlines() if LIBRARIES[name] in line)

    def preloaded(self, name):
        self.require(name)
        self.check(PROGRAM, name, {"LD_PRELOAD": LIBRARIES[name]})

    def named(self, name):
        self.require(name)
        self.check(PROGRAM, name, options=["--allocator", name])

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

    def test_jemalloc_that_the_option_names(self):
        self.named("jemalloc")

    def test_tcmalloc_that_the_option_names(self):
        self.named("tcmalloc")

    def test_mimalloc_that_the_option_names(self):
        self.named("mimalloc")

    def test_a_library_that_the_option_names_by_its_path(self):
        library = self.path("own.so")
        shutil.copy(self.require("jemalloc"), library)
        self.check(PROGRAM, library, options=["--allocator", library])

    def test_no_allocator_where_the_option_says_so(self):
        status, output, log = self.run_far([PROGRAM, str(16 * MIB), STEPS], options=["--allocator", "none"])
        self.assertEqual(status, 0, log)
        self.assertIn("/libc.so", output.decode())

    def test_the_option_yields_to_what_the_program_or_the_user_has(self):
        self.require("mimalloc")
        self.require("jemalloc")
        linked = f"{PROGRAM}_mimalloc"
        for program, environment in ((linked, None), (PROGRAM, {"LD_PRELOAD": LIBRARIES["mimalloc"]})):
            status, output, log = self.run_far([program, str(16 * MIB), STEPS], options=["--allocator", "jemalloc"],
                                               environment=environment)
            self.assertEqual(status, 0, log)
            self.assertIn("mimalloc", output.decode())

    def test_a_wrong_choice_is_refused_in_one_line(self):
        for choice, expected, remedy in (("ptmalloc", 2, "one of auto, "), ("/bin/true", 2, "defines malloc"),
                                         ("/no/such.so", 1, "No such file")):
            with self.subTest(choice):
                status, output, log = self.run_far(["true"], options=["--allocator", choice])
                self.assertEqual((status, output, log.count("\n")), (expected, b"", 1), log)
                self.assertIn(f"--allocator={choice}", log)
                self.assertIn(remedy, log)

    def test_a_missing_library_is_refused_with_the_package(self):
        """In a mount namespace in which the libraries are empty files."""
        empty = self.path("empty")
        with open(empty, "w", encoding="ascii"):
            pass
        hide = " && ".join(f"mount --bind {empty} {os.path.realpath(self.require(name))}" for name in LIBRARIES)

        def run(choice):
            command = [FARPAGE, "run", "--allocator", choice, "--lend", "64M", "--", "sh", "-c", "echo ran"]
            return subprocess.run(["unshare", "-m", "sh", "-c", f"{hide} && exec \"$@\"", "sh", *command],
                                  capture_output=True, text=True, timeout=60, check=False)

        if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no privilege for a mount namespace")
        done = run("jemalloc")
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn("libjemalloc.so.2 is not installed: apt-get install libjemalloc2", done.stderr)
        done = run("auto")
        self.assertEqual((done.returncode, done.stdout), (0, "ran\n"), done.stderr)
        self.assertEqual(done.stderr.count("no_allocator"), 1, done.stderr)

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
