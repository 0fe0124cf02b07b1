"""Nodes that lend room of a disk: slabs are there while no memory has room for them."""
import json
import os
import subprocess
import unittest

from cluster import FARPAGE, MIB, RANDOM_ACCESS, EndToEnd, wait_until


class SpillNode(EndToEnd):
    def start_small_cluster(self):
        """Memory that is too little, and a disk."""
        self.start_coordinator()
        self.start_memory("memory-1", "16M")
        self.start_disk("disk-1")

    def start_memory(self, name, lend, transports="tcp"):
        return self.start_node(name, "--slab", "2M", transports=transports, lend=lend)

    def disk_arguments(self, name, size="160M", *more, slab="2M"):
        return ["node", "--coordinator", self.url, "--name", name, "--spill", f"{self.folder},size={size}",
                "--slab", slab, "--heartbeat", "200ms", "--leave-timeout", "1s", *more]

    def start_disk(self, name):
        return self.start_service(self.disk_arguments(name), name)

    def options(self, *more):
        return ["--slab", "2M", "--fault-deadline", "60s", *more]

    def start_program(self, *more):
        """Four times what is local and lent; until it is told to end."""
        return self.start_filled(self.options(*more), size=96 * MIB, local="8M")

    def slabs(self):
        return json.loads(self.get("/v1/cluster"))["slabs"]

    def await_spilled(self, process, slabs=20):
        wait_until(lambda: self.slabs()["spilled"] >= slabs or process.popen.poll() is not None, "slabs are on disks")
        self.assertIsNone(process.popen.poll(), process.log())

    def await_return(self, process):
        def is_over():
            slabs = self.slabs()
            return slabs["spilled"] == slabs["degraded"] == slabs["moving"] == 0
        wait_until(lambda: is_over() or process.popen.poll() is not None, "all slabs are in memory")
        self.assertIsNone(process.popen.poll(), process.log())

    def expect_refused(self, arguments, *texts):
        done = subprocess.run([FARPAGE, *arguments], capture_output=True, text=True, timeout=60, check=False)
        self.assertNotEqual(done.returncode, 0)
        for text in texts:
            self.assertIn(text, done.stderr)

    def test_a_program_of_four_times_what_is_local_and_lent(self):
        self.start_small_cluster()
        status, output, log = self.run_far([RANDOM_ACCESS, str(96 * MIB), "2", "5", "11"], local="8M",
                                           options=self.options())
        self.assertEqual(status, 0, log)
        self.assertIn(b"wrong_bytes 0\n", output)
        self.assertNotIn("no_room", log)
        self.expect_real_paging("tcp")
        status = subprocess.run([FARPAGE, "status", "--coordinator", self.url], capture_output=True, text=True,
                                timeout=60, check=True).stdout
        self.assertRegex(status, r"disk-1 .* disk\n")
        self.assertRegex(status, r"memory-1 .* memory\n")

    def test_slabs_move_to_memory_that_comes(self):
        self.start_small_cluster()
        process = self.start_program()
        self.await_spilled(process)
        cluster = json.loads(self.get("/v1/cluster"))
        self.assertEqual(cluster["bytes"]["total"], 16 * MIB, "a disk is no memory")
        self.assertEqual(cluster["bytes"]["spill"], 160 * MIB)
        self.start_memory("memory-2", "160M")
        self.await_return(process)
        wait_until(lambda: self.slabs_in_use("disk-1") == 0, "the disk has all slabs back")
        self.end_without_failure(process)

    def test_two_replicas_on_two_disks_and_back(self):
        self.start_small_cluster()
        self.start_disk("disk-2")
        process = self.start_program("--replicas", "2")
        self.await_spilled(process, 60)
        for name in ("memory-2", "memory-3"):
            self.start_memory(name, "160M", "shm,tcp")
        self.await_return(process)
        self.end_without_failure(process)

    def test_a_disk_that_is_lost_is_repaired_from_the_other(self):
        self.start_coordinator()
        lost = self.start_disk("disk-1")
        self.start_disk("disk-2")
        process = self.start_program("--replicas", "2")
        lost.end()
        self.start_disk("disk-3")
        wait_until(lambda: self.slabs_in_use("disk-3") >= 40 and self.slabs()["degraded"] == 0,
                   "each slab has two replicas")
        self.end_access(process)
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def test_a_disk_is_drained_and_lends_less_and_more(self):
        self.start_small_cluster()
        process = self.start_program()
        self.await_spilled(process)
        where = ["--coordinator", self.url]
        subprocess.run([FARPAGE, "lend", "disk-1", "320M", *where], timeout=120, check=True)
        self.start_disk("disk-2")
        subprocess.run([FARPAGE, "lend", "disk-1", "40M", *where], timeout=120, check=True)
        self.assertEqual(self.node_info("disk-1")["total_slabs"], 20)
        self.start_memory("memory-2", "160M")
        subprocess.run([FARPAGE, "drain", "disk-1", *where], timeout=120, check=True)
        self.await_return(process)
        self.end_without_failure(process)

    def test_what_cannot_be_is_said_at_the_start(self):
        self.start_coordinator()
        self.expect_refused(self.disk_arguments("disk", "60T", slab="1G"),
                            f"--spill: {self.folder}: no room for a file of 60T")
        self.expect_refused(self.disk_arguments("disk", "16M", "--lend", "16M"), "--lend", "--spread-by host")
        self.expect_refused(self.disk_arguments("disk", "16M", "--transports", "shm,tcp"), "over tcp alone")
        if os.path.isdir("/dev/shm"):
            self.expect_refused(["node", "--coordinator", self.url, "--spill", "/dev/shm,size=64M"],
                                "--spill: /dev/shm: is memory (tmpfs)")


if __name__ == "__main__":
    unittest.main()
