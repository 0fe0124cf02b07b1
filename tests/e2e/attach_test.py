"""`farpage attach` and `farpage detach`: far memory for programs that run already, and check themselves."""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from attached_base import AttachedMemory
from cluster import BUILD, FARPAGE, PATIENCE, engine_of, far_memory_while_stopped, state_of, wait_until

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
ATTACHED_MEMORY = os.path.join(BUILD, "tests", "attached_memory")
STATIC = os.path.join(BUILD, "tests", "attached_memory_static")

# Dictionaries and lists that are changed and checked until standard input ends.
PYTHON = """
import gc, select, sys
keys = int(sys.argv[1])
texts = {key: f"{key}-0 " * 20 for key in range(keys)}
print("ready", flush=True)
rounds = wrong = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for key in range(keys):
        wrong += texts[key] != f"{key}-{rounds} " * 20
        texts[key] = f"{key}-{rounds + 1} " * 20
    rounds += 1
    gc.collect()
print("maps", rounds, wrong)
sys.exit(wrong > 0)
"""

# Executes a program that is killed at what an agent needs: ioctl(2), those of sockets, userfaultfd(2).
RESTRICTED = """
import ctypes, os, struct, sys
killed = [16, 41, 42, 44, 45, 46, 47, 323]
rules = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # the number of the call
rules += [struct.pack("HBBI", 0x15, len(killed) - at, 0, number) for at, number in enumerate(killed)]
rules += [struct.pack("HBBI", 0x06, 0, 0, result) for result in (0x7fff0000, 0x80000000)]  # allowed, killed
code = ctypes.create_string_buffer(b"".join(rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"""


def memory_map(pid):
    """What /proc/PID/maps says."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        return file.read()


class Attach(AttachedMemory):
    def start_memory(self, *jobs, mebibytes=64, program=ATTACHED_MEMORY):
        return self.start_program([program, str(mebibytes), *jobs])

    # ---- the ways to use memory ----

    def test_touches_over_shm(self):
        self.attach_twice(self.start_memory("touch"))

    def test_touches_over_tcp(self):
        self.start_cluster(transport="tcp")
        self.attach_twice(self.start_memory("touch"))

    def test_an_embedded_cluster(self):
        program = self.start_memory("touch")
        attached = self.attach(program.pid)
        self.page()
        self.detach(attached, program.pid)
        self.expect_paging(least=0)
        self.expect_right(program)

    def test_discards(self):
        self.attach_twice(self.start_memory("touch", "discard"))

    def test_lazy_frees(self):
        self.attach_twice(self.start_memory("touch", "free"), least=20)

    def test_mappings_come_and_go(self):
        self.attach_twice(self.start_memory("touch", "map"))

    def test_mappings_move(self):
        self.attach_twice(self.start_memory("touch", "move"))

    def test_two_threads_move_mappings(self):
        self.attach_twice(self.start_memory("touch", "move", "move2"))

    def test_threads_grow_blocks_to_where_those_of_others_have_been(self):
        self.attach_twice(self.start_memory("touch", "grow", "grow2", "grow3"))

    def test_protections_change(self):
        self.attach_twice(self.start_memory("touch", "protect"))

    def test_devices_read_into_far_memory(self):
        os.chdir(os.path.dirname(BUILD))  # O_DIRECT needs a file system that has it
        self.addCleanup(os.chdir, "/")
        self.addCleanup(os.remove, os.path.join(os.path.dirname(BUILD), "direct.bin"))
        self.attach_twice(self.start_memory("touch", "direct"))

    def test_forks(self):
        self.attach_twice(self.start_memory("touch", "fork"), local="48M", least=100)

    def test_all_at_once(self):
        self.attach_twice(self.start_memory("touch", "discard", "free", "map", "move", "move2", "protect"),
                          local="32M", least=100)

    def test_heaps_locks_and_huge_pages(self):
        self.attach_twice(self.start_memory("touch", "heap", "stay", "lock", "collapse"), local="24M", least=500)

    def test_a_static_program(self):
        self.attach_twice(self.start_memory("touch", "discard", "map", "move", program=STATIC))

    # ---- other programs ----

    def test_python(self):
        self.attach_twice(self.start_program([sys.executable, "-c", PYTHON, "150000"]))

    def test_go(self):
        go = self.find("go")
        program = self.path("go_maps")
        subprocess.run([go, "build", "-o", program, os.path.join(PROGRAMS, "go_maps.go")], check=True,
                       timeout=PATIENCE, env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod",
                                              "GOCACHE": self.path("cache"), "HOME": self.folder})
        self.attach_twice(self.start_program([program, "100000"]))

    def java(self, collector):
        java, javac = self.find("java"), self.find("javac")
        subprocess.run([javac, "-d", self.folder, os.path.join(PROGRAMS, "Maps.java")], check=True, timeout=PATIENCE)
        self.attach_twice(self.start_program([java, f"-XX:+Use{collector}", "-Xmx96m", "-cp", self.folder, "Maps",
                                              "60000"]))

    def test_java_with_g1(self):
        self.java("G1GC")

    def test_java_with_the_parallel_collector(self):
        self.java("ParallelGC")

    # ---- beginnings and ends ----

    def test_detaching_leaves_the_program_as_it_was(self):
        program = self.start_memory("touch")
        before = memory_map(program.pid)
        attached = self.attach(program.pid)
        self.page()
        self.detach(attached, program.pid)
        self.assertEqual(memory_map(program.pid), before)
        self.expect_right(program)

    def test_its_budget_is_kept(self):
        program = self.start_memory("touch", "discard", mebibytes=40)
        attached = self.attach(program.pid)
        self.expect_budget(attached, lambda: far_memory_while_stopped(program.pid))
        self.expect_right(program)
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_paging()

    def filters(self, pid):
        """How many filters of system calls each thread has."""
        found = {}
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as file:
                found[int(thread)] = next(int(line.split()[1]) for line in file if line.startswith("Seccomp_filters:"))
        return found

    def test_a_program_that_restricts_its_system_calls(self):
        restricted = [sys.executable, "-c", RESTRICTED]
        killed = subprocess.run([*restricted, sys.executable, "-c", "import socket; socket.socket()"], timeout=PATIENCE,
                                check=False)
        self.assertEqual(killed.returncode, -signal.SIGSYS)
        self.start_cluster()
        program = self.start_program([*restricted, ATTACHED_MEMORY, "40", "touch", "discard", "move"])
        before = self.filters(program.pid)
        self.assertEqual(set(before.values()), {1})
        attached = self.attach(program.pid, "16M", "--allow-seccomp")
        self.await_paging(1000)
        self.detach(attached, program.pid)
        self.expect_paging()
        self.assertEqual(self.filters(program.pid), before, "they are as they were")
        self.expect_right(program)

    def test_ctrl_c_detaches(self):
        program = self.start_memory("touch")
        attached = self.attach(program.pid)
        self.page()
        attached.kill(signal.SIGINT)
        status, _ = attached.finish(PATIENCE)
        self.assertEqual(status, 0, attached.log())
        self.assertIn("all of its memory is here", attached.log())
        self.expect_right(program)

    def test_it_goes_to_the_background(self):
        program = self.start_memory("touch")
        log = self.path("background.log")
        command = [FARPAGE, "attach", str(program.pid), "--local", "16M", "--lend", "256M", "--background", log]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("attached to", done.stderr)
        again = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(again.returncode, 1, again.stderr)
        self.assertIn("far memory", again.stderr)
        self.page()
        ended = subprocess.run([FARPAGE, "detach", str(program.pid)], capture_output=True, text=True,
                               timeout=PATIENCE, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.expect_right(program)
        with open(log, encoding="utf-8") as file:
            wait_until(lambda: "is detached" in file.read(), "the end is told in the file")

    def test_it_detaches_after_a_time(self):
        program = self.start_memory("touch")
        attached = self.attach(program.pid, "16M", "--detach-after", "1s")
        status, _ = attached.finish(PATIENCE)
        self.assertEqual(status, 0, attached.log())
        self.expect_right(program)

    def test_the_program_is_killed(self):
        program = self.start_memory("touch")
        attached = self.attach(program.pid)
        self.page()
        program.end()
        status, _ = attached.finish(PATIENCE)
        self.assertEqual(status, 0, attached.log())

    def test_the_program_executes_another(self):
        program = self.start_program(["/bin/bash", "-c", "x=$(head -c 8000000 /dev/zero | tr '\\0' x); echo ready; "
                                      "read; echo done; exec sleep 1000"])
        attached = self.attach(program.pid)
        program.send(b"\n")
        status, _ = attached.finish(PATIENCE)
        self.assertEqual(status, 0, attached.log())
        self.assertIn("has executed another program", attached.log())
        self.assertEqual(state_of(program.pid), "S")

    def test_the_engine_is_killed(self):
        program = self.start_memory("touch")
        attached = self.attach(program.pid)
        for kills in range(1, 6):
            time.sleep(0.3)
            os.kill(engine_of(attached.pid), signal.SIGKILL)
            wait_until(lambda kills=kills: len(re.findall("taken_over", attached.log())) == kills, "a take-over")
        self.page()
        self.detach(attached, program.pid, kills=5)
        self.expect_right(program)

    def test_the_pager_is_killed(self):
        """What is remote could not come back: the program must not read zeros."""
        program = self.start_memory("touch")
        attached = self.attach(program.pid)
        self.page()
        attached.end()
        wait_until(lambda: state_of(program.pid) in "ZX", "the program is killed")

    # ---- refusals ----

    def refused(self, pid, *options):
        done = subprocess.run([FARPAGE, "attach", str(pid), "--local", "16M", "--lend", "64M", *options],
                              capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stderr

    def test_it_says_why_it_cannot_attach(self):
        self.assertIn("there is no process 4194301", self.refused(4194301))
        program = self.start_memory("touch")
        attached = self.attach(program.pid)
        self.assertIn("far memory", self.refused(program.pid))
        self.detach(attached, program.pid)
        program.kill(signal.SIGSTOP)
        wait_until(lambda: state_of(program.pid) == "T", "it is stopped")
        self.assertIn("kill -CONT", self.refused(program.pid))
        program.kill(signal.SIGCONT)
        self.expect_right(program)

    def test_nothing_is_attached(self):
        program = self.start_memory("touch")
        done = subprocess.run([FARPAGE, "detach", str(program.pid)], capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no farpage attach is attached to process", done.stderr)
        self.expect_right(program)


if __name__ == "__main__":
    unittest.main()
