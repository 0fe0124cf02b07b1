"""A copy of the coordinator's store takes the place of one that is gone."""
import json
import os
import stat
import subprocess
import unittest

from cluster import FARPAGE, EndToEnd, settled, wait_until


class Backup(EndToEnd):
    def setUp(self):
        super().setUp()
        self.store = ["--store", "sqlite:" + self.path("coordinator.db")]

    def back_up(self, *more, store=None):
        return subprocess.run([FARPAGE, "coordinator", *(store or self.store), "--backup", self.path("copy.db"), *more],
                              check=False, capture_output=True, text=True, timeout=60)

    def restore(self):
        for name in os.listdir(self.folder):
            if name.startswith("coordinator.db"):
                os.remove(self.path(name))
        os.rename(self.path("copy.db"), self.path("coordinator.db"))

    def held(self):
        return json.loads(self.get("/v1/cluster"))["leases"]["held"]

    def test_coordinator_goes_on_with_a_copy_that_was_made_while_it_ran(self):
        self.token = self.path("token")
        with open(self.token, "w", encoding="utf-8") as file:
            file.write("0123456789abcdef0123456789abcdef\n")
        os.chmod(self.token, 0o600)
        coordinator = self.start_coordinator(*self.store)
        address = self.url.removeprefix("http://")
        for name in ("node-1", "node-2"):
            self.start_node(name, "--slab", "2M", transports="tcp", lend="128M")
        process = self.start_filled(["--transport", "tcp", "--slab", "2M"], seed=3)
        held = settled(self.held)
        wrong = self.back_up("--listen", address)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("are --listen and --token-file its own?", wrong.stderr)
        self.assertFalse(os.path.exists(self.path("copy.db")))
        done = self.back_up("--listen", address, "--token-file", self.token)
        self.assertEqual(done.returncode, 0, done.stderr)
        itself = subprocess.run([FARPAGE, "coordinator", *self.store, "--backup", self.path("coordinator.db")],
                                check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual(itself.returncode, 2)
        self.assertIn("is the store itself", itself.stderr)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("copy.db")).st_mode), 0o600)
        coordinator.end()
        self.restore()
        self.start_coordinator(*self.store, listen=address)
        self.assertEqual(self.held(), held)
        wait_until(lambda: self.heartbeats_are_fresh(), "nodes and program have found it")
        self.assertNotIn("region_recreated", process.log())
        print(f"the longest access took {self.end_access(process)} ms")
        wait_until(lambda: self.held() == 0, "the program has given its slabs back")

    def heartbeats_are_fresh(self):
        nodes = json.loads(self.get("/v1/nodes"))["nodes"]
        regions = json.loads(self.get("/v1/regions"))["regions"]
        return (all(node["state"] == "alive" and node["counters"] for node in nodes)
                and all(region["counters"] for region in regions))

    def test_copy_of_a_stopped_coordinator(self):
        coordinator = self.start_coordinator(*self.store)
        self.start_node("node-1")
        coordinator.end()
        done = self.back_up()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"copy\.db: \d+ bytes of sqlite:")
        self.restore()
        self.start_coordinator(*self.store, listen=self.url.removeprefix("http://"))
        self.assertEqual([node["id"] for node in json.loads(self.get("/v1/nodes"))["nodes"]], ["node-1"])

    def test_restored_file_is_a_new_store(self):
        coordinator = self.start_coordinator(*self.store)
        self.start_node("node-1")
        coordinator.end()
        self.assertEqual(self.back_up().returncode, 0)
        command = [FARPAGE, "coordinator", "--restore", self.path("copy.db"), "--store"]
        there = subprocess.run([*command, self.store[1]], check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual(there.returncode, 1)
        self.assertIn("coordinator.db exists: move ", there.stderr)
        self.store = ["--store", "sqlite:" + self.path("new.db")]
        done = subprocess.run([*command, self.store[1]], check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(": 1 nodes, 0 regions, 0 leases of ", done.stdout)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("new.db")).st_mode), 0o600)
        self.start_coordinator(*self.store, listen=self.url.removeprefix("http://"))
        self.assertEqual([node["id"] for node in json.loads(self.get("/v1/nodes"))["nodes"]], ["node-1"])

    def test_what_has_no_file_is_not_copied(self):
        memory = self.back_up(store=["--store", "memory"])
        self.assertEqual(memory.returncode, 2)
        self.assertIn("--backup: only --store sqlite:PATH and etcd:URL", memory.stderr)
        absent = self.back_up()
        self.assertEqual(absent.returncode, 1)
        self.assertIn("coordinator.db", absent.stderr)
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
