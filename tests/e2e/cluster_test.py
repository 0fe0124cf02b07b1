"""Coordinator, node and pager of a running program agree on members, bytes and counts."""
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

from cluster import EndToEnd, MIB, child_of, wait_until

PAGE = 4096
# Fills pages with 0xAB and their number, prints their address, waits, prints the changed pages with
# their last byte, and waits again.
FILL = """
import ctypes, mmap, sys
pages = 4096
memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def page(i): return i.to_bytes(8, "little") + b"\\xab" * 4088
for i in range(pages): memory[i * 4096:(i + 1) * 4096] = page(i)
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
sys.stdin.readline()
for i in range(pages):
    found = memory[i * 4096:(i + 1) * 4096]
    if found != page(i): print(i, found[:-1] == page(i)[:-1], found[-1])
print("walked", flush=True)
sys.stdin.readline()
"""
PAGES = 4096


class Cluster(EndToEnd):
    def start_fill(self, *more):
        """Starts FILL over TCP with most of its pages remote; returns the process, its pid and the address."""
        process = self.start_run([sys.executable, "-c", FILL], local="4M",
                                 options=["--transport", "tcp", "--window", "1G", *more],
                                 stdin=subprocess.PIPE)
        address = int(process.popen.stdout.readline())
        return process, child_of(process.pid), address

    def test_node_takes_more_connections_than_its_soft_descriptor_limit(self):
        self.start_coordinator()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, before[1]))
        try:
            self.start_node("node", "--max-connections", "300", transports="tcp")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        host, _, port = json.loads(self.get("/v1/nodes/node"))["transports"][0]["address"].rpartition(":")
        held = [socket.create_connection((host, int(port))) for _ in range(250)]
        try:
            status, output, log = self.run_far([sys.executable, "-c", "print(len(b'x' * (16 << 20)))"],
                                               local="4M", options=["--transport", "tcp"])
            self.assertEqual((status, output), (0, b"16777216\n"), log)
            self.expect_real_paging("tcp")
        finally:
            for connection in held:
                connection.close()

    def region(self):
        identifier = json.loads(self.get("/v1/regions"))["regions"][0]["id"]
        return json.loads(self.get(f"/v1/regions/{identifier}"))

    def test_node_memory_holds_what_the_process_sees(self):
        _, (node,) = self.start_cluster(transport="tcp")
        process, program, address = self.start_fill("--checksums", "off")
        offset = address % (1 << 30)  # the window is aligned to 1 GiB
        slab_bytes = 64 * MIB
        leases = {lease["slab"]: lease["address"] for lease in self.region()["leases"]}
        changed = 100
        compared = 0
        with open(f"/proc/{node.pid}/mem", "r+b", buffering=0) as lent, \
                open(f"/proc/{program}/pagemap", "rb") as pagemap:
            for page in range(PAGES):
                pagemap.seek((address // PAGE + page) * 8)
                if struct.unpack("Q", pagemap.read(8))[0] >> 63:
                    continue  # resident, and perhaps newer than its remote copy
                place = offset + page * PAGE
                lent.seek(leases[place // slab_bytes] + place % slab_bytes)
                self.assertEqual(lent.read(PAGE), page.to_bytes(8, "little") + b"\xab" * 4088)
                compared += 1
                if page == changed:
                    lent.seek(-1, os.SEEK_CUR)
                    lent.write(b"\xcd")
        self.assertGreater(compared, PAGES // 2)
        output, _ = process.popen.communicate(b"\n\n", timeout=60)
        # The other direction: the program reads what is written on the node.
        self.assertEqual(output, b"%d True 205\nwalked\n" % changed, process.log())

    def remote_faults(self):
        found = re.search(r'^farpage_faults_total\{kind="remote",region=[^}]*\} (\d+)$',
                          self.get("/metrics"), re.MULTILINE)
        return int(found.group(1)) if found else None

    def settled_remote_faults(self):
        """/metrics after it has not changed for more than two heartbeats."""
        last = (None, time.monotonic())

        def settled():
            nonlocal last
            now = self.remote_faults()
            if now != last[0]:
                last = (now, time.monotonic())
            return now is not None and time.monotonic() - last[1] > 2.5
        wait_until(settled, "the counters settle")
        return last[0]

    def test_metrics_change_after_faults_and_match_the_pagers_counters(self):
        self.start_cluster(transport="tcp")
        process, program, _ = self.start_fill()
        filled = self.settled_remote_faults()
        process.send(b"\n")
        self.assertEqual(process.popen.stdout.readline(), b"walked\n")
        walked = self.settled_remote_faults()
        self.assertGreater(walked, filled)
        os.kill(program, signal.SIGKILL)  # an ordinary end would touch memory again
        self.assertEqual(process.finish()[0], 128 + signal.SIGKILL)
        self.assertEqual(self.stats()["faults"]["remote"], walked)

    def test_a_node_that_joins_late_is_found(self):
        self.start_coordinator()
        process = self.start_run(["sh", "-c", "echo done"])
        wait_until(lambda: '"id"' in self.get("/v1/regions"), "farpage run asks for memory")
        self.start_node("late")
        status, output = process.finish()
        self.assertEqual((status, output), (0, b"done\n"), process.log())

    def test_without_any_node_the_program_is_not_started_in_vain(self):
        self.start_coordinator()
        status, output, log = self.run_far(["sh", "-c", "echo done"])
        self.assertEqual((status, output), (126, b""), log)
        self.assertIn("0 usable node(s)", log)

    def test_a_token_protects_the_cluster(self):
        for name, text in (("token", "a" * 40), ("wrong", "b" * 40)):
            with open(self.path(name), "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(text + "\n")
        self.token = self.path("token")
        self.start_cluster()
        self.assertEqual(self.run_far(["sh", "-c", "exit 5"])[0], 5)
        for token in (None, self.path("wrong")):
            self.token = token
            with self.subTest(token):
                status, output, log = self.run_far(["echo", "started"])
                self.assertNotEqual(status, 0, log)
                self.assertEqual(output, b"")
                self.assertRegex(log, "(?i)token|401")


if __name__ == "__main__":
    unittest.main()
