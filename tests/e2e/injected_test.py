"""`farpage run` of programs into which nothing can be preloaded: an agent is injected at their start."""
import os
import shutil
import signal
import struct
import subprocess
import time
import unittest

from attached_base import AttachedMemory
from cluster import BUILD, FARPAGE, MIB, engine_of, far_memory_at_one_moment, state_of, wait_until

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
STATIC = os.path.join(BUILD, "tests", "attached_memory_static")
DYNAMIC = os.path.join(BUILD, "tests", "attached_memory")
RANDOM_ACCESS = os.path.join(BUILD, "tests", "random_access")
NOBODY = ["setpriv", "--reuid", "65534", "--clear-groups"]

# Fills an array, waits until its mappings are seen, and checks and changes each element three times.
PHP = r"""
for ($i = 0; $i < 40000; $i++) $items["key-$i"] = [0, str_repeat(md5("$i-0"), 20)];
sleep(1);
for ($round = 0; $round < 3; $round++)
  for ($i = 0; $i < 40000; $i++) {
    if ($items["key-$i"] !== [$round, str_repeat(md5("$i-$round"), 20)]) exit("key-$i is wrong\n");
    $items["key-$i"] = [$round + 1, str_repeat(md5("$i-" . $round + 1), 20)];
  }
echo count($items), " are right\n";
"""


class Injected(AttachedMemory):
    def run_jobs(self, program, *jobs, **more):
        """Jobs of attached_memory, at a quarter of their memory."""
        return self.run_a_while([program, "64", *jobs], **more)

    def run_a_while(self, command, options=(), kills=0):
        """Two seconds of a program that works until its standard input ends. Returns what farpage said."""
        process = self.start_run(command, local="16M", options=["--lend", "512M", *options], stdin=subprocess.PIPE)
        self.assertEqual(process.popen.stdout.readline(), b"ready\n", process.log())
        for kill in range(kills):
            time.sleep(0.4)
            os.kill(engine_of(process.pid), signal.SIGKILL)
            wait_until(lambda n=kill + 1: process.log().count("taken_over") == n, "another engine goes on")
        time.sleep(2)
        self.expect_right(process)
        return process.log()

    def test_a_static_program(self):
        log = self.run_jobs(STATIC, "touch", "discard", "map", "move")
        self.assertIn("is statically linked, so nothing is preloaded: an agent is injected (--inject)", log)
        self.expect_paging()

    def test_a_static_program_of_a_cluster(self):
        self.start_cluster(transport="tcp")
        self.run_jobs(STATIC, "touch")
        self.expect_paging()

    def test_a_dynamic_program_that_asks_for_it(self):
        log = self.run_jobs(DYNAMIC, "touch", options=["--inject"])
        self.assertNotIn("is injected", log)
        self.expect_paging()

    def test_its_budget_is_kept(self):
        process = self.start_run([DYNAMIC, "64", "touch", "discard"], local="16M", options=["--lend", "512M", "--inject"],
                                 stdin=subprocess.PIPE)
        self.assertEqual(process.popen.stdout.readline(), b"ready\n", process.log())
        self.expect_budget(process, lambda: far_memory_at_one_moment(process.pid))
        self.expect_right(process)
        self.expect_paging()

    def test_the_engine_is_killed(self):
        self.run_jobs(STATIC, "touch", kills=3)

    def test_go_without_cgo(self):
        go, program = self.find("go"), self.path("go_maps")
        subprocess.run([go, "build", "-o", program, os.path.join(PROGRAMS, "go_maps.go")], check=True, timeout=120,
                       env={**os.environ, "CGO_ENABLED": "0", "GO111MODULE": "off", "GOFLAGS": "",
                            "GOCACHE": os.path.join(BUILD, "tests", "go-cache"), "HOME": self.folder})
        self.assertIn("is statically linked", self.run_a_while([program, "100000"]))
        self.expect_paging()

    def test_php(self):
        status, output, log = self.run_far([self.find("php"), "-d", "memory_limit=-1", "-r", PHP], local="16M",
                                           options=["--inject", "--lend", "512M"])
        self.assertEqual((status, output), (0, b"40000 are right\n"), log)
        self.expect_paging()

    def test_programs_with_a_sanitizer(self):
        for name, numbers in (("address", 4_000_000), ("thread", 1_000_000)):  # their shadow memory is far, too
            source = os.path.join(self.folder, "sums.cc")
            with open(source, "w", encoding="ascii") as file:
                file.write("#include <cstdint>\n#include <cstdio>\n#include <unistd.h>\n#include <vector>\nint main() {\n"
                           "  std::vector<uint64_t> all;\n"
                           f"  for (uint64_t i = 0; i < {numbers}; ++i) all.push_back(i * 2654435761u);\n"
                           "  sleep(1);\n"  # its mappings are seen
                           "  uint64_t sum = 0;\n  for (int r = 0; r < 3; ++r) for (auto x : all) sum += x;\n"
                           "  printf(\"%lu\\n\", sum);\n}\n")
            program = self.path(f"sums_{name}")
            subprocess.run(["g++", "-O1", f"-fsanitize={name}", source, "-o", program], check=True, timeout=120)
            plain = subprocess.run([program], capture_output=True, timeout=120, check=True)
            status, output, log = self.run_far([program], local="24M", options=["--lend", "512M"])
            self.assertEqual((status, output), (0, plain.stdout), log)
            self.assertIn(f"is built with {name.capitalize()}Sanitizer, so nothing is preloaded", log)
            self.expect_paging()

    def test_a_runtime_that_ld_preload_names(self):
        library = self.path("libasan.so.8")  # recognised by its name
        shutil.copy(os.path.join(BUILD, "tests", "modules", "farpage_test_module.so"), library)
        status, _, log = self.run_far(["/bin/true"], options=["--lend", "64M"], environment={"LD_PRELOAD": library})
        self.assertEqual(status, 0, log)
        self.assertIn(f"runs with {library}, which LD_PRELOAD names, so nothing is preloaded", log)

    def test_a_script_that_env_looks_up(self):
        """The agent is in the interpreter: env(1) would execute it, and leave the agent behind."""
        script = self.path("fill")
        with open(script, "w", encoding="ascii") as file:
            file.write("#!/usr/bin/env python3\nimport sys, time\nblocks = [bytes([n]) * 65536 for n in range(200)]\n"
                       "blocks += [bytes([n]) * 65536 for n in range(200)]\ntime.sleep(1)\n"
                       "for _ in range(5):\n    total = sum(block[9] for block in blocks)\nprint(sys.argv[1], total)\n")
        os.chmod(script, 0o755)
        status, output, log = self.run_far([script, "word"], local="8M", options=["--inject", "--lend", "256M"])
        self.assertEqual((status, output), (0, b"word 39800\n"), log)
        self.assertNotIn("local_only", log)
        self.expect_paging(100)

    def test_a_program_that_the_kernel_ends_at_its_start(self):
        """Its first segment is in the kernel's half: exec fails when the former program is gone already."""
        with open(STATIC, "rb") as file:
            program = bytearray(file.read())
        headers, = struct.unpack_from("<Q", program, 32)
        for number in range(struct.unpack_from("<H", program, 56)[0]):
            at = headers + 56 * number
            if struct.unpack_from("<I", program, at)[0] == 1:  # PT_LOAD
                struct.pack_into("<Q", program, at + 16, 0xffff800000000000)
                break
        with open(self.path("broken"), "wb") as file:
            file.write(program)
        os.chmod(self.path("broken"), 0o755)
        plain = subprocess.run([self.path("broken")], check=False, timeout=60).returncode
        self.assertLess(plain, 0)
        status, _, log = self.run_far([self.path("broken")], options=["--lend", "64M"])
        self.assertEqual(status, 128 - plain, log)

    def test_statuses_are_those_of_the_program(self):
        for script, expected in (("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM)):
            status, _, log = self.run_far(["/bin/sh", "-c", script], options=["--inject", "--lend", "64M"])
            self.assertEqual(status, expected, log)

    def test_signals_reach_it(self):
        process = self.start_run(["/bin/sh", "-c", "trap 'exit 9' USR1; echo ready; while :; do sleep 0.05; done"],
                                 options=["--inject", "--lend", "64M"])
        self.assertEqual(process.popen.stdout.readline(), b"ready\n", process.log())
        process.kill(signal.SIGUSR1)
        status, _ = process.finish()
        self.assertEqual(status, 9, process.log())

    def test_signals_reach_a_child_that_outlives_it(self):
        script = ("import os, time\nblock = bytearray(32 << 20)\ntime.sleep(1)\nchild = os.fork()\n"
                  "if child:\n    print(child, flush=True)\n    os._exit(7)\ntime.sleep(600)\n")
        process = self.start_run(["python3", "-c", script], options=["--inject", "--lend", "128M"])
        child = int(process.popen.stdout.readline())
        try:
            wait_until(lambda: f"child_attached pid={child} " in process.log(), "the child has an agent")
        except AssertionError as missing:
            with open(f"/proc/{child}/stack", encoding="ascii") as stack:
                raise AssertionError(f"{missing}\n{state_of(child)} {stack.read()}\n{process.log()}") from None
        self.assertIsNone(process.popen.poll(), process.log())
        process.kill(signal.SIGTERM)
        status, _ = process.finish()
        self.assertEqual(status, 7, process.log())
        self.assertIn(state_of(child), "ZX")

    def test_another_program_that_it_executes_has_local_memory(self):
        status, output, log = self.run_far(["/bin/sh", "-c", "echo one; exec sh -c 'echo two; sleep 2.5'"],
                                           options=["--inject", "--lend", "64M"])
        self.assertEqual((status, output), (0, b"one\ntwo\n"), log)
        self.assertIn("run: local_only", log)

    def test_without_the_rights_it_does_not_begin(self):
        """As another user, who may not map the memory of a process: status 126 and one line."""
        os.chmod(self.folder, 0o777)
        done = subprocess.run([*NOBODY, FARPAGE, "run", "--inject", "--lend", "64M", "--", "/bin/touch",
                               self.path("touched")], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "XDG_RUNTIME_DIR": ""})
        self.assertEqual(done.returncode, 126, done.stderr)
        self.assertIn("run as root", done.stderr.splitlines()[-1])
        self.assertFalse(os.path.exists(self.path("touched")))

    def test_what_cannot_be_executed_is_said(self):
        script = self.path("script")
        with open(script, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\n")
        os.chmod(script, 0o644)
        status, _, log = self.run_far([script], options=["--inject", "--lend", "64M"])
        self.assertEqual(status, 126, log)
        for option in (["--allocator", "none"], ["--fork", "share"], ["--window", "1G"]):
            status, _, log = self.run_far(["/bin/true"], options=["--inject", *option])
            self.assertEqual(status, 2, log)
            self.assertIn(option[0], log)

    def test_a_program_that_fills_its_memory_at_once(self):
        """What came to be before the first look at its mappings is found, and leaves."""
        process = self.start_run([RANDOM_ACCESS, str(96 * MIB), "2", "3", "5"], local="24M",
                                 options=["--inject", "--lend", "512M"])
        self.expect_right_end(process)
        self.expect_paging()


if __name__ == "__main__":
    unittest.main()
