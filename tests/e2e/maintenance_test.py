"""Memory nodes are taken out of service, and put back, while programs use them."""
import re
import signal
import subprocess
import time
import unittest

from cluster import FARPAGE, EndToEnd, wait_until


class Maintenance(EndToEnd):
    def setUp(self):
        super().setUp()
        self.store = "sqlite:" + self.path("coordinator.db")
        self.coordinator = self.start_coordinator("--store", self.store)
        self.nodes = {name: self.start_slab_node(name) for name in ("node-1", "node-2", "node-3")}

    def start_slab_node(self, name, leave="1s"):
        return self.start_node(name, "--slab", "2M", transports="shm", lend="128M", leave=leave)

    def start_program(self, seconds, replicas=1):
        return self.start_filled(["--transport", "shm", "--slab", "2M", "--replicas", str(replicas), "--repair-rate",
                                  "max"], seconds=seconds, seed=5)

    def operate(self, *command, **more):
        return subprocess.run([FARPAGE, *command, "--coordinator", self.url], check=False, capture_output=True,
                              text=True, timeout=60, **more)

    def expect_right_end_without_failure(self, process):
        self.expect_right_end(process)
        self.assertEqual(self.stats()["faults"]["failed"], 0)
        self.assertEqual(self.stats()["replicas_lost"], 0)

    def test_drained_node_leaves_when_its_slabs_have_moved(self):
        process = self.start_program(10)
        self.assertGreater(self.slabs_in_use("node-2"), 0)
        done = self.operate("drain", "node-2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("node-2 is empty and has left the cluster", done.stdout)
        self.assertRegex(done.stderr, r"node-2: [1-9]\d* slabs to move \(\d+M\)")
        self.assertTrue(done.stderr.rstrip().endswith("node-2: 0 slabs to move (0)"), done.stderr)
        self.assertIsNone(self.node_info("node-2"))
        self.assertIsNone(process.popen.poll(), "the program goes on")
        self.assertEqual(self.nodes["node-2"].popen.wait(60), 0, "the node's process ends by itself")
        self.expect_right_end_without_failure(process)

    def test_node_that_is_told_to_end_moves_its_slabs_first(self):
        self.nodes["node-4"] = self.start_slab_node("node-4", leave="60s")
        process = self.start_program(12, replicas=2)
        wait_until(lambda: self.slabs_in_use("node-4") > 0, "the new node lends")
        self.nodes["node-4"].kill(signal.SIGTERM)
        self.assertEqual(self.nodes["node-4"].popen.wait(60), 0, self.nodes["node-4"].log())
        self.assertIsNone(process.popen.poll(), "the program goes on")
        self.expect_right_end_without_failure(process)

    def test_drain_without_room_ends_with_what_is_left(self):
        process = self.start_program(15)
        for name in ("node-1", "node-3"):
            self.assertEqual(self.operate("cordon", name).returncode, 0)
        lent = self.slabs_in_use("node-2")
        done = self.operate("drain", "node-2", "--timeout", "2s")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"node-2 still lends {lent} slabs: it goes on draining", done.stderr)
        self.assertEqual(self.node_info("node-2")["state"], "draining")
        for name in ("node-1", "node-3"):
            self.assertEqual(self.operate("uncordon", name).returncode, 0)
        wait_until(lambda: self.slabs_in_use("node-2") == 0, "there is room again")
        self.expect_right_end_without_failure(process)

    def test_drain_goes_on_while_the_coordinator_starts_again(self):
        process = self.start_program(12)
        for name in ("node-1", "node-3"):
            self.assertEqual(self.operate("cordon", name).returncode, 0)
        drain = subprocess.Popen([FARPAGE, "drain", "node-2", "--coordinator", self.url], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.addCleanup(drain.kill)
        self.assertIn("slabs to move", drain.stderr.readline())
        self.coordinator.end()
        time.sleep(1)
        self.start_coordinator("--store", self.store, listen=self.url.rsplit("/", 1)[1])
        for name in ("node-1", "node-3"):
            self.assertEqual(self.operate("uncordon", name).returncode, 0)
        stdout, stderr = drain.communicate(timeout=60)
        self.assertEqual(drain.returncode, 0, stderr)
        self.assertIn("(trying again)", stderr)
        self.assertIn("node-2 is empty and has left the cluster", stdout)
        self.expect_right_end_without_failure(process)

    def test_cordoned_node_keeps_what_it_lends_and_gets_nothing_new(self):
        process = self.start_program(6)
        lent = self.slabs_in_use("node-1")
        done = self.operate("cordon", "node-1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.node_info("node-1")["state"], "cordoned")
        other = self.start_program(2)
        self.assertEqual(self.slabs_in_use("node-1"), lent)
        self.expect_right_end(other)
        self.expect_right_end(process)
        self.nodes["node-1"].end()
        self.nodes["node-1"] = self.start_slab_node("node-1")
        self.assertEqual(self.node_info("node-1")["state"], "cordoned", "a restart does not end it")
        self.assertEqual(self.operate("uncordon", "node-1").returncode, 0)
        self.assertEqual(self.node_info("node-1")["state"], "alive")

    def test_unknown_node_is_named(self):
        for command in ("drain", "cordon", "uncordon"):
            done = self.operate(command, "node-9")
            self.assertEqual(done.returncode, 1)
            self.assertTrue(re.search("no node 'node-9'", done.stderr), done.stderr)


if __name__ == "__main__":
    unittest.main()
