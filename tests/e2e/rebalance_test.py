"""Slabs move from full nodes to emptier ones while programs use them."""
import json
import re
import signal
import subprocess
import unittest

from cluster import FARPAGE, EndToEnd, settled, wait_until


class Rebalance(EndToEnd):
    def setUp(self):
        super().setUp()
        self.start_coordinator()

    def start_slab_node(self, name):
        return self.start_node(name, "--slab", "2M", transports="shm", lend="64M")

    def start_program(self, replicas=1, rate="max"):
        """Until it is told to end."""
        return self.start_filled(["--transport", "shm", "--slab", "2M", "--replicas", str(replicas), "--repair-rate",
                                  rate], seed=5)

    def command(self, *more):
        return [FARPAGE, "rebalance", "--coordinator", self.url, *more]

    def rebalance(self, *more):
        return subprocess.run(self.command(*more), check=False, capture_output=True, text=True, timeout=120)

    def moved(self, process):
        return len(re.findall("slab_repaired", process.log()))

    def test_new_node_gets_its_share(self):
        for name in ("node-1", "node-2"):
            self.start_slab_node(name)
        process = self.start_program(replicas=2)
        all_slabs = settled(lambda: self.slabs_in_use("node-1") + self.slabs_in_use("node-2"))
        self.start_slab_node("node-3")
        done = self.rebalance()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^(balanced|nothing more can be moved): nodes use \d+ % to \d+ % of what they lend\n$")
        self.assertRegex(done.stderr, r"\d+ slabs are moving, \d+ more to move; nodes use 0 % to \d+ %")
        names = ("node-1", "node-2", "node-3")
        wait_until(lambda: sum(self.slabs_in_use(name) for name in names) == all_slabs, "what was left is given back")
        for name in names:
            self.assertAlmostEqual(self.slabs_in_use(name), all_slabs / 3, delta=2)
        moved = self.moved(process)
        self.assertGreater(moved, 8)
        again = self.rebalance()
        self.assertEqual((again.returncode, again.stderr), (0, ""))
        self.assertEqual(self.moved(process), moved)
        self.end_without_failure(process)

    def test_command_that_is_interrupted_is_given_again(self):
        self.start_slab_node("node-1")
        process = self.start_program(rate="8M")
        all_slabs = settled(lambda: self.slabs_in_use("node-1"))
        self.start_slab_node("node-2")
        first = self.start_process(self.command("--at-most", "2"))
        wait_until(lambda: "2 slabs are moving" in first.log(), "it has begun")
        first.kill(signal.SIGINT)
        first.finish(60)
        wait_until(lambda: json.loads(self.get("/v1/cluster"))["slabs"]["moving"] == 0, "what was marked has moved")
        self.assertLess(self.slabs_in_use("node-2"), all_slabs // 2 - 2)
        done = self.rebalance("--at-most", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        wait_until(lambda: self.slabs_in_use("node-1") + self.slabs_in_use("node-2") == all_slabs,
                   "what was left is given back")
        self.assertAlmostEqual(self.slabs_in_use("node-2"), all_slabs / 2, delta=1)
        self.end_without_failure(process)


if __name__ == "__main__":
    unittest.main()
