"""Failures around a running program: it continues, or gets SIGBUS within the deadline. Never wrong bytes."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

from cluster import FARPAGE, EndToEnd, state_of, wait_until

# A family of three generations, in which all walk through their memory forever.
FAMILY = """
import os
pages = bytearray(b"x" * (48 << 20))
for _ in range(3):
    if os.fork() != 0:
        break
print(os.getpid(), flush=True)
while True:
    for at in range(0, len(pages), 4096):
        pages[at] = at >> 12 & 255
"""

SIGBUS_STATUS = 128 + signal.SIGBUS
DEADLINE = 2  # seconds
OPERATION = 1  # seconds that one READ may take: the deadline is checked after it
END = 10  # seconds in which a program that gets SIGBUS ends, on a busy machine


class Failures(EndToEnd):
    def only_node_killed(self, transport):
        _, (node,) = self.start_cluster(transport=transport)
        process = self.start_access(60, transport, deadline=DEADLINE)
        node.end()
        killed = time.monotonic()
        status, _ = process.finish()
        self.assertEqual(status, SIGBUS_STATUS, process.log())
        # The fault that fails first may begin a moment after the kill, and the program needs CPU time to end.
        self.assertLess(time.monotonic() - killed, DEADLINE + OPERATION + END)
        lost = re.findall(r"page_lost address=0x[0-9a-f]+ page=\d+ nodes=node-1 after_ms=(\d+)", process.log())
        self.assertTrue(lost, process.log())
        self.assertLess(max(map(int, lost)), (DEADLINE + OPERATION + 1) * 1000, process.log())

    def test_only_node_killed_over_shm(self):
        self.only_node_killed("shm")

    def test_only_node_killed_over_tcp(self):
        self.only_node_killed("tcp")

    def one_of_two_replicas_killed(self, transport):
        _, nodes = self.start_cluster(nodes=2, transport=transport)
        process = self.start_access(5, transport, replicas=2)
        nodes[0].end()
        self.expect_right_end(process)
        self.assertGreater(self.stats()["replicas_lost"], 0)

    def test_one_of_two_replicas_killed_over_shm(self):
        self.one_of_two_replicas_killed("shm")

    def test_one_of_two_replicas_killed_over_tcp(self):
        self.one_of_two_replicas_killed("tcp")

    def test_killed_coordinator_is_not_missed_and_its_successor_is_found(self):
        store = ["--store", "sqlite:" + self.path("coordinator.db")]
        coordinator = self.start_coordinator(*store)
        self.start_node("node-1")
        process = self.start_access(8, "tcp")
        regions = self.get("/v1/regions")
        address = self.url.removeprefix("http://")
        coordinator.end()
        wait_until(lambda: "coordinator_silent" in process.log(), "the pager notices")
        self.start_coordinator(*store, listen=address)
        wait_until(lambda: "coordinator_back" in process.log(), "the pager finds it again")
        self.assertIsNone(process.popen.poll())
        region = regions.split('"id":"')[1].split('"')[0]
        self.assertIn(f'"id":"{region}"', self.get("/v1/regions"))
        wait_until(lambda: '"state":"alive"' in self.get("/v1/nodes"), "the node finds it again")
        self.expect_right_end(process)
        self.assertNotIn("region_recreated", process.log())
        wait_until(lambda: region not in self.get("/v1/regions"), "the region is given back")

    def test_coordinator_killed_for_good(self):
        coordinator = self.start_coordinator()
        self.start_node("node-1")
        process = self.start_access(4, "tcp")
        coordinator.end()
        self.expect_right_end(process)

    def read_pids(self, process, count):
        output = process.popen.stdout.fileno()
        os.set_blocking(output, False)
        text = bytearray()

        def are_all_there():
            try:
                text.extend(os.read(output, 4096))
            except BlockingIOError:
                pass
            return text.count(b"\n") == count or process.popen.poll() is not None

        wait_until(are_all_there, "the processes tell their numbers")
        self.assertEqual(text.count(b"\n"), count, process.log())
        return [int(line) for line in text.split()]

    def test_killed_run_leaves_no_process_that_waits(self):
        self.start_coordinator()
        self.start_node("node-1", "--slab", "2M", transports="tcp")
        process = self.start_run([sys.executable, "-c", FAMILY], local="16M",
                                 options=["--slab", "2M", "--transport", "tcp"])
        family = self.read_pids(process, 4)
        for pid in family:
            self.addCleanup(lambda pid=pid: state_of(pid) in "ZX" or os.kill(pid, signal.SIGKILL))
        wait_until(lambda: json.loads(self.get("/v1/cluster"))["leases"]["held"] >= 4, "their pages leave")
        self.assertTrue(all(state_of(pid) not in "ZX" for pid in family), process.log())
        process.kill()
        for pid in family:
            wait_until(lambda: state_of(pid) in "ZX", f"process {pid} ends", 10)

    def test_sockets_of_killed_embedded_nodes_are_removed(self):
        environment = {"XDG_RUNTIME_DIR": self.folder}
        directory = "/run/farpage" if os.geteuid() == 0 else os.path.join(self.folder, "farpage")
        os.makedirs(directory, 0o700, exist_ok=True)
        no_process = 1 << 23  # above the largest pid
        deserted, used = (os.path.join(directory, f"local-{no_process}-{name}.sock") for name in ("1", os.getpid()))
        for path in (deserted, used):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.addCleanup(server.close)
            self.addCleanup(lambda path=path: os.path.exists(path) and os.unlink(path))
            server.bind(path)
            server.listen()
            if path == deserted:
                server.close()
        done = subprocess.run([FARPAGE, "run", "--lend", "64M", "--local", "8M", "--", "true"], check=False,
                              capture_output=True, timeout=60, env={**os.environ, **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(os.path.exists(deserted))
        self.assertTrue(os.path.exists(used), "another process listens there")

    def test_a_restarted_node_never_gives_its_empty_memory(self):
        _, (node,) = self.start_cluster(transport="tcp")
        process = self.start_access(60, "tcp")
        node.end()
        self.start_node("node-1", transports="tcp")
        status, output = process.finish()
        self.assertEqual(status, SIGBUS_STATUS, f"{output}\n{process.log()}")

    def test_a_restarted_replica_is_not_read(self):
        _, nodes = self.start_cluster(nodes=2, transport="tcp")
        process = self.start_access(6, "tcp", replicas=2)
        nodes[0].end()
        self.start_node("node-1", transports="tcp")
        self.expect_right_end(process)


if __name__ == "__main__":
    unittest.main()
