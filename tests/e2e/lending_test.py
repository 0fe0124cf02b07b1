"""A memory node lends more, and less, while programs use it."""
import re
import subprocess
import unittest

from cluster import FARPAGE, MIB, EndToEnd, settled, wait_until


class Lending(EndToEnd):
    def setUp(self):
        super().setUp()
        self.start_coordinator("--store", "sqlite:" + self.path("coordinator.db"))

    def start_slab_node(self, name, lend="64M", transports="shm"):
        return self.start_node(name, "--slab", "2M", transports=transports, lend=lend)

    def start_program(self, transport="shm"):
        """Until it is told to end; it needs 48 MiB beyond its budget, on each replica."""
        return self.start_filled(["--transport", transport, "--slab", "2M", "--repair-rate", "max"], seed=5)

    def lend(self, node, size, *more):
        return subprocess.run([FARPAGE, "lend", node, size, *more, "--coordinator", self.url], check=False,
                              capture_output=True, text=True, timeout=120)

    def slabs(self, name):
        """All, and those in use."""
        node = self.node_info(name)
        return node["total_slabs"], node["total_slabs"] - node["free_slabs"]

    def slab_memory(self, service):
        """Bytes of slabs that the process has mapped."""
        with open(f"/proc/{service.pid}/maps", encoding="utf-8") as maps:
            lines = [line for line in maps if "farpage-slab" in line]
        return sum(int(end, 16) - int(start, 16)
                   for start, end in (line.split()[0].split("-") for line in lines))

    def test_node_lends_more_and_less_while_a_program_runs(self):
        nodes = {name: self.start_slab_node(name) for name in ("node-1", "node-2")}
        process = self.start_program()
        self.assertEqual(self.slab_memory(nodes["node-1"]), 64 * MIB)
        done = self.lend("node-1", "128M")
        self.assertEqual((done.returncode, done.stdout), (0, "node-1 lends 128M\n"), done.stderr)
        self.assertEqual(self.slab_memory(nodes["node-1"]), 128 * MIB)
        done = self.lend("node-2", "4M")
        self.assertEqual((done.returncode, done.stdout), (0, "node-2 lends 4M\n"), done.stderr)
        self.assertRegex(done.stderr, r"node-2: lends \d+M, on its way to 4M")
        self.assertEqual(self.slab_memory(nodes["node-2"]), 4 * MIB)
        total, used = self.slabs("node-2")
        self.assertEqual(total, 2)
        self.assertLessEqual(used, 2)
        self.assertIn("slab_repaired", process.log(), "slabs have moved")
        self.end_without_failure(process)

    def test_free_memory_goes_without_a_move(self):
        self.start_slab_node("node-1", lend="128M")
        process = self.start_program(transport="tcp,shm")
        _, used = settled(lambda: self.slabs("node-1"))
        done = self.lend("node-1", f"{2 * used}M")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.slabs("node-1"), (used, used))
        self.assertNotIn("slab_repaired", process.log())
        self.end_without_failure(process)

    def test_program_that_waits_for_room_gets_the_new_memory(self):
        self.start_slab_node("node-1", lend="24M")
        process = self.start_filling(["--transport", "shm", "--slab", "2M", "--fault-deadline", "60s"], seed=5)
        wait_until(lambda: "lease_refused" in process.log(), "there is no room")
        self.assertEqual(self.lend("node-1", "96M").returncode, 0)
        self.expect_filled(process)
        self.end_without_failure(process)

    def test_what_cannot_be_is_refused_in_one_line(self):
        self.start_slab_node("node-1", lend="128M")
        process = self.start_program()
        _, used = settled(lambda: self.slabs("node-1"))
        done = self.lend("node-1", "4M")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, rf"^farpage: {used - 2} slabs of node 'node-1' would have to move, and other "
                                      rf"nodes have room for 0 of them: start another node, or lend {2 * used}M or more\n$")
        self.assertEqual(self.slabs("node-1"), (64, used))
        done = self.lend("node-1", "200G")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(re.search(r"node-1 lends 128M and no more: .*a node has at most", done.stderr), done.stderr)
        self.assertEqual(self.slabs("node-1"), (64, used))
        self.assertRegex(self.lend("node-9", "4M").stderr, "no node 'node-9'")
        self.assertEqual(self.lend("node-1", "much").returncode, 2)
        self.end_without_failure(process)

    def test_coordinator_that_is_killed_meanwhile_goes_on(self):
        nodes = {name: self.start_slab_node(name, transports="tcp") for name in ("node-1", "node-2")}
        process = self.start_program(transport="tcp")
        waiting = self.start_process([FARPAGE, "lend", "node-1", "2M", "--coordinator", self.url, "--timeout", "60s"])
        wait_until(lambda: "lend_bytes" in self.node_info("node-1"), "it is on its way")
        coordinator = self.coordinator
        coordinator.end()
        self.start_coordinator("--store", "sqlite:" + self.path("coordinator.db"),
                               listen=self.url.removeprefix("http://"))
        waiting.end()
        wait_until(lambda: self.slabs("node-1")[0] == 1 and "lend_bytes" not in self.node_info("node-1"),
                   "it has come there")
        self.assertEqual(self.slab_memory(nodes["node-1"]), 2 * MIB)
        self.end_without_failure(process)

    def start_coordinator(self, *more, **other):
        self.coordinator = super().start_coordinator(*more, **other)
        return self.coordinator

    def test_restarted_node_lends_what_its_option_says(self):
        node = self.start_slab_node("node-1")
        self.assertEqual(self.lend("node-1", "8M").returncode, 0)
        self.assertEqual(self.slabs("node-1")[0], 4)
        node.end()
        self.start_slab_node("node-1")
        self.assertEqual(self.slabs("node-1")[0], 32)


if __name__ == "__main__":
    unittest.main()
