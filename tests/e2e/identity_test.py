"""A node that restarts, another machine with its name, and a copy of its disk are told apart."""
import json
import os
import shutil
import subprocess
import unittest

from cluster import FARPAGE, EndToEnd


class Identity(EndToEnd):
    def setUp(self):
        super().setUp()
        self.start_coordinator()

    def start_known_node(self, name, state, **more):
        return self.start_node(name, "--slab", "2M", "--state-dir", self.path(state), lend="8M", transports="tcp", **more)

    def refused(self, name, state):
        """What a node says that does not start."""
        done = subprocess.run(
            [FARPAGE, "node", "--coordinator", self.url, "--name", name, "--lend", "8M", "--slab", "2M", "--lazy",
             "--transports", "tcp", "--state-dir", self.path(state)], check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def borrow(self):
        """All of the only node, by a program that does not end."""
        body = json.dumps({"name": "borrower", "bytes": 4 << 20, "slab_bytes": 2 << 20})
        done = subprocess.run(["curl", "-sSf", "-H", "Content-Type: application/json", "-d", body,
                               self.url + "/v1/regions"], check=True, capture_output=True, timeout=30)
        return json.loads(done.stdout)["id"]

    def test_restart_keeps_name_and_identity(self):
        node = self.start_known_node("node-1", "state")
        before = self.node_info("node-1")
        self.borrow()
        node.end()
        self.start_known_node("node-1", "state")
        after = self.node_info("node-1")
        self.assertEqual(after["identity"], before["identity"])
        self.assertNotEqual(after["incarnation"], before["incarnation"])
        self.assertEqual(after["free_slabs"], 4, "its memory is new")

    def test_another_machine_takes_a_name_when_its_leases_are_given_up(self):
        node = self.start_known_node("node-1", "state")
        region = self.borrow()
        self.assertIn("already running", self.refused("node-1", "other"))
        node.end()
        said = self.refused("node-1", "other")
        self.assertIn("another machine had the name 'node-1'", said)
        self.assertIn("2 slabs that it lent are not given up", said)
        subprocess.run(["curl", "-sSf", "-X", "DELETE", f"{self.url}/v1/regions/{region}"], check=True, timeout=30)
        first = self.node_info("node-1")["identity"]
        self.start_known_node("node-1", "other")
        self.assertNotEqual(self.node_info("node-1")["identity"], first)

    def test_copy_of_a_disk_is_refused_while_the_first_one_runs(self):
        node = self.start_known_node("node-1", "state")
        shutil.copytree(self.path("state"), self.path("copy"))
        os.rename(self.path("copy/node-1.id"), self.path("copy/node-2.id"))
        shutil.copy(self.path("copy/node-2.id"), self.path("copy/node-1.id"))
        for name in ("node-1", "node-2"):
            said = self.refused(name, "copy")
            self.assertIn("one disk is a copy of the other", said)
            self.assertIn(node.ready["agent"], said)
            self.assertEqual(said.count("http://127.0.0.1:"), 2, said)
        os.remove(self.path("copy/node-2.id"))
        self.start_known_node("node-2", "copy")
        self.assertNotEqual(self.node_info("node-2")["identity"], self.node_info("node-1")["identity"])

    def test_one_host_does_not_use_an_identity_twice(self):
        self.start_known_node("node-1", "state")
        done = subprocess.run([FARPAGE, "node", "--coordinator", self.url, "--name", "node-1", "--state-dir",
                               self.path("state"), "--lend", "8M", "--slab", "2M"],
                              check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("node-1.id is used by a running node of this host", done.stderr)


if __name__ == "__main__":
    unittest.main()
