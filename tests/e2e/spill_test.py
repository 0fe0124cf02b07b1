"""Pages for which no node has room go to a file of this host, and back when one has."""
import os
import random
import re
import signal
import subprocess
import sys
import unittest

from cluster import MIB, RANDOM_ACCESS, EndToEnd, wait_until
from engine_death_test import Killer
from verifier import scaled

PROGRAMS = os.path.join(os.path.dirname(__file__), "programs")
# Waits for a line, then takes memory and checks it in another order.
GROWING = """
import random, sys
print("ready", flush=True)
sys.stdin.readline()
blocks = [bytes([i % 251]) * 65536 for i in range(int(sys.argv[1]))]
print("grown", flush=True)
order = list(range(len(blocks)))
random.Random(1).shuffle(order)
print("wrong", sum(blocks[i] != bytes([i % 251]) * 65536 for i in order), flush=True)
"""


class Spill(EndToEnd):
    def start_full_cluster(self, lend="16M", transport="shm"):
        """One node, which lends little."""
        self.start_coordinator()
        return self.start_slab_node("node-1", lend, transport)

    def start_slab_node(self, name, lend, transport="shm"):
        return self.start_node(name, "--slab", "2M", transports=transport, lend=lend)

    def options(self, size="160M", transport="shm", *more):
        spill = ["--spill", f"{self.folder},size={size}"] if size else []
        return ["--transport", transport, "--slab", "2M", *spill, *more]

    def start_program(self, options=()):
        """Four times what is local and lent; until it is told to end."""
        return self.start_filled(options or self.options(), size=96 * MIB, local="8M")

    def await_spilled(self, process, slabs=1):
        """The coordinator hears of it with the region's next heartbeat."""
        wait_until(lambda: self.counter("farpage_spilled_slabs") >= slabs or process.popen.poll() is not None,
                   "slabs are in the file")
        self.assertIsNone(process.popen.poll(), process.log())

    def await_return(self, process):
        wait_until(lambda: self.counter("farpage_spilled_slabs") == 0 or process.popen.poll() is not None,
                   "all slabs are on nodes")
        self.assertIsNone(process.popen.poll(), process.log())

    def expect_nothing_left(self):
        """In the folder of the file."""
        self.assertEqual([name for name in os.listdir(self.folder) if "spill" in name], [])

    def test_a_program_of_four_times_what_is_local_and_lent(self):
        self.start_full_cluster()
        status, output, log = self.run_far([RANDOM_ACCESS, str(96 * MIB), "2", "5", "11"], local="8M",
                                           options=self.options())
        self.assertEqual(status, 0, log)
        self.assertIn(b"wrong_bytes 0\n", output)
        self.assertIn("pager: spilling", log)
        self.assertNotIn("no_room", log)
        self.expect_real_paging("shm,file")
        self.expect_nothing_left()

    def test_the_same_over_tcp_with_two_replicas(self):
        self.start_full_cluster(transport="tcp")
        self.start_slab_node("node-2", "16M", "tcp")
        process = self.start_program(options=self.options("160M", "tcp", "--replicas", "2"))
        self.await_spilled(process)
        for name in ("node-3", "node-4"):
            self.start_slab_node(name, "160M", "tcp")
        self.await_return(process)
        wait_until(lambda: self.counter("farpage_repair_degraded_slabs") == 0, "each slab has two replicas")
        self.end_access(process)
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def test_a_sort_of_which_most_is_in_the_file(self):
        memory = scaled("3M", "16M")
        self.start_full_cluster(lend=memory)
        lines = self.path("lines")
        source = random.Random(3)
        with open(lines, "w", encoding="ascii") as file:
            file.writelines(f"{source.getrandbits(400):0120x}\n" for _ in range(scaled(50_000, 300_000)))
        command = ["env", "LC_ALL=C", "sort", "-S", "120M", lines]
        plain = self.start_process(command).finish()
        status, output, log = self.run_far(command, local=memory, options=self.options("400M"))
        self.assertEqual((status, output), plain, log)
        self.assertIn("pager: spilling", log)

    def test_slabs_go_to_nodes_when_these_have_room(self):
        self.start_full_cluster()
        process = self.start_program()
        self.await_spilled(process, 20)
        self.start_slab_node("node-2", "160M")
        self.await_return(process)
        self.assertIn("pager: spill_over", process.log())
        self.end_access(process)
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def test_the_engine_is_killed_at_random_moments(self):
        self.start_full_cluster()
        process = self.start_program()
        self.await_spilled(process, 20)
        with Killer(process.pid, random.Random(9), 0.6):
            wait_until(lambda: process.log().count("taken_over") >= 4, "engines were killed")
            self.start_slab_node("node-2", "160M")
            wait_until(lambda: process.log().count("taken_over") >= 8, "engines were killed on the way back")
        self.await_return(process)
        self.end_access(process)
        log = process.log()
        self.assertNotIn("page_lost", log)
        self.assertNotIn("replica_lost", log)
        self.assertNotIn("engine_given_up", log)

    def test_a_program_that_forks(self):
        self.start_full_cluster()
        process = self.start_run([sys.executable, os.path.join(PROGRAMS, "fork_and_check.py"), "1000", str(scaled(6, 15))],
                                 local="16M", options=self.options("800M"))
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())
        status, output = process.finish()
        self.assertEqual(status, 0, process.log())
        self.assertIn(b"wrong_blocks 0 wrong_children 0", output)
        self.assertIn("pager: spilling", process.log())
        print(output)

    def test_the_coordinator_is_gone_and_the_program_grows(self):
        coordinator = self.start_coordinator()
        self.start_slab_node("node-1", "256M")
        process = self.start_growing(self.options())
        coordinator.end()
        process.send(b"\n")
        self.expect_grown(process)
        self.assertIn("pager: spilling", process.log())

    def start_growing(self, options, local="8M"):
        process = self.start_run([sys.executable, "-c", GROWING, "1000"], local=local, options=options,
                                 stdin=subprocess.PIPE)
        self.assertEqual(process.popen.stdout.readline(), b"ready\n", process.log())
        return process

    def expect_grown(self, process):
        status, output = process.finish()
        self.assertEqual(status, 0, process.log())
        self.assertEqual(output, b"grown\nwrong 0\n", process.log())

    def test_a_file_that_is_full_is_said_and_the_fault_ends(self):
        self.start_full_cluster()
        status, _, log = self.run_far([RANDOM_ACCESS, str(96 * MIB), "2", "5", "11"], local="8M",
                                      options=self.options("32M", "shm", "--fault-deadline", "1s"))
        self.assertEqual(status, 128 + signal.SIGBUS, log)
        self.assertIn("pager: spill_nearly_full used=", log)
        self.assertIn("the spill file of 32M is full", log)
        self.assertIn("pager: no_room", log)

    def test_a_disk_without_room_is_an_error_at_the_start(self):
        self.start_full_cluster()
        status, output, log = self.run_far(["echo", "started"], options=self.options("900T"))
        self.assertNotEqual(status, 0)
        self.assertEqual(output, b"")
        self.assertRegex(log, re.escape(f"--spill: {self.folder}: no room for a file of 900T"))
        status, _, log = self.run_far(["echo", "started"], options=["--spill", "/nowhere,size=1G"])
        self.assertNotEqual(status, 0)
        self.assertIn("--spill: /nowhere", log)
        status, _, log = self.run_far(["echo", "started"], options=["--spill", self.folder])
        self.assertNotEqual(status, 0)
        self.assertIn("is not FOLDER,size=SIZE", log)

    def test_without_a_file_a_fault_waits_for_a_node_if_it_may(self):
        self.start_full_cluster()
        process = self.start_growing(self.options(None, "shm", "--on-full", "wait", "--fault-deadline", "1s"))
        process.send(b"\n")
        wait_until(lambda: "pager: waits_for_room" in process.log(), "it waits")
        wait_until(lambda: "pager: cluster_nearly_full" in process.log(), "it says that the nodes are full")
        self.assertIsNone(process.popen.poll(), process.log())
        self.start_slab_node("node-2", "160M")
        self.expect_grown(process)
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def test_without_either_it_is_told_by_sigbus(self):
        self.start_full_cluster()
        status, _, log = self.run_far([RANDOM_ACCESS, str(96 * MIB), "2", "5", "11"], local="8M",
                                      options=self.options(None, "shm", "--fault-deadline", "1s"))
        self.assertEqual(status, 128 + signal.SIGBUS, log)
        self.assertIn("pager: no_room", log)

    def test_what_the_program_may_use_is_compared_with_what_there_is(self):
        self.start_full_cluster()
        _, _, log = self.run_far(["true"], local="8M", options=self.options("32M", "shm", "--window", "1G"))
        self.assertIn("farpage: the program may use 1G, and there is room for 56M: 8M here (--local), 16M on nodes",
                      log)
        for fits in (["--window", "48M"], []):
            _, _, log = self.run_far(["true"], local="8M", options=self.options("32M", "shm", *fits))
            self.assertNotIn("there is room for", log)


if __name__ == "__main__":
    unittest.main()
