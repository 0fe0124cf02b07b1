"""Slabs move from full nodes to emptier ones while programs use them."""
import json
import os
import re
import signal
import subprocess
import unittest

from cluster import FARPAGE, MIB, EndToEnd, settled, wait_until


class Rebalance(EndToEnd):
    def setUp(self):
        super().setUp()
        self.start_coordinator()

    def start_slab_node(self, name, lend="64M"):
        return self.start_node(name, "--slab", "2M", transports="shm", lend=lend)

    def start_program(self, replicas=1, rate="max"):
        """Until it is told to end."""
        process = self.start_run(
            [os.path.join(os.environ["FARPAGE_BUILD"], "tests", "random_access"), str(48 * MIB), "2", "3600", "5"],
            local="12M", options=["--transport", "shm", "--slab", "2M", "--replicas", str(replicas),
                                  "--repair-rate", rate])
        process.popen.stdout.readline()
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())
        return process

    def command(self, *more):
        return [FARPAGE, "rebalance", "--coordinator", self.url, *more]

    def rebalance(self, *more):
        return subprocess.run(self.command(*more), check=False, capture_output=True, text=True, timeout=120)

    def used(self, name):
        node = next(node for node in json.loads(self.get("/v1/nodes"))["nodes"] if node["id"] == name)
        return node["total_slabs"] - node["free_slabs"]

    def moved(self, process):
        return len(re.findall("slab_repaired", process.log()))

    def end_without_failure(self, process):
        print(f"the longest access took {self.end_access(process)} ms")
        self.assertEqual(self.stats()["faults"]["failed"], 0)
        self.assertEqual(self.stats()["replicas_lost"], 0)

    def test_new_node_gets_its_share(self):
        for name in ("node-1", "node-2"):
            self.start_slab_node(name)
        process = self.start_program(replicas=2)
        all_slabs = settled(lambda: self.used("node-1") + self.used("node-2"))
        self.start_slab_node("node-3")
        done = self.rebalance()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^(balanced|nothing more can be moved): nodes use \d+ % to \d+ % of what they lend\n$")
        self.assertRegex(done.stderr, r"\d+ slabs are moving, \d+ more to move; nodes use 0 % to \d+ %")
        wait_until(lambda: self.used("node-1") + self.used("node-2") + self.used("node-3") == all_slabs,
                   "what was left is given back")
        for name in ("node-1", "node-2", "node-3"):
            self.assertAlmostEqual(self.used(name), all_slabs / 3, delta=2)
        moved = self.moved(process)
        self.assertGreater(moved, 8)
        again = self.rebalance()
        self.assertEqual((again.returncode, again.stderr), (0, ""))
        self.assertEqual(self.moved(process), moved)
        self.end_without_failure(process)

    def test_command_that_is_interrupted_is_given_again(self):
        self.start_slab_node("node-1")
        process = self.start_program(rate="8M")
        all_slabs = settled(lambda: self.used("node-1"))
        self.start_slab_node("node-2")
        first = self.start_process(self.command("--at-most", "2"))
        wait_until(lambda: "2 slabs are moving" in first.log(), "it has begun")
        first.kill(signal.SIGINT)
        first.finish(60)
        wait_until(lambda: json.loads(self.get("/v1/cluster"))["slabs"]["moving"] == 0, "what was marked has moved")
        self.assertLess(self.used("node-2"), all_slabs // 2 - 2)
        done = self.rebalance("--at-most", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        wait_until(lambda: self.used("node-1") + self.used("node-2") == all_slabs, "what was left is given back")
        self.assertAlmostEqual(self.used("node-2"), all_slabs / 2, delta=1)
        self.end_without_failure(process)


if __name__ == "__main__":
    unittest.main()
