"""Borrower and lender on separate hosts, with faults of the network between them."""
import re
import signal
import time
import unittest

from cluster import EndToEnd, MIB, RANDOM_ACCESS, wait_until
from network import Network, why_impossible

SIGBUS_STATUS = 128 + signal.SIGBUS
DEADLINE = 2  # seconds
OPERATION = 1  # seconds that one READ may take: the deadline is checked after it
# Until `farpage run` has ended, too: it calls the coordinator twice, for at most 2 s each, and this
# machine may be busy.
END = 10

PATIENT = ["--fault-deadline", "60s", "--operation-timeout", "10s"]
# 24 MiB of text, which every turn changes.
TEXTS = """
texts = [bytearray((b"text %d " % i * 2000)[:16384]) for i in range(1536)]
for turn in range(3):
    for i, text in enumerate(texts):
        for at in range(100, 16384, 4096):
            text[at] = (i + turn + at) % 256
for i, text in enumerate(texts):
    right = bytearray((b"text %d " % i * 2000)[:16384])
    for at in range(100, 16384, 4096):
        right[at] = (i + 2 + at) % 256
    assert text == right
print("right")
"""


@unittest.skipIf(why_impossible(), why_impossible())
class TwoHosts(EndToEnd):
    def setUp(self):
        super().setUp()
        self.network = Network(self)
        self.borrower = self.network.add_host("borrower")
        self.lender = self.network.add_host("lender")
        self.enter = self.lender.enter
        self.start_coordinator("--insecure", listen=f"{self.lender.address}:0")

    def start_node_on(self, host, name, **more):
        self.enter = host.enter
        node = self.start_node(name, "--insecure", "--listen-agent", f"{host.address}:0",
                               "--tcp-listen", f"{host.address}:0", **more)
        self.enter = self.borrower.enter
        return node

    def expect_sigbus(self, process, since, reason):
        status, _ = process.finish()
        self.assertEqual(status, SIGBUS_STATUS, process.log())
        self.assertLess(time.monotonic() - since, DEADLINE + OPERATION + END)
        self.assertRegex(process.log(), reason)
        failed_after = [int(ms) for ms in re.findall(r"page_lost .* after_ms=(\d+)", process.log())]
        self.assertLess(max(failed_after, default=0), (DEADLINE + OPERATION + 1) * 1000)

    def test_auto_takes_tcp_to_another_host_and_shm_on_the_same(self):
        self.start_node_on(self.lender, "node-1")
        for host, transport in ((self.borrower, "tcp"), (self.lender, "shm")):
            with self.subTest(transport):
                self.enter = host.enter
                self.expect_right_end(self.start_access(1, "auto"))
                self.expect_real_paging(transport)

    def test_shm_alone_says_that_it_does_not_reach_another_host(self):
        self.start_node_on(self.lender, "node-1")
        process = self.start_run([RANDOM_ACCESS, str(48 * MIB), "2", "1"], local="12M",
                                 options=["--transport", "shm", "--fault-deadline", f"{DEADLINE}s"])
        self.expect_sigbus(process, time.monotonic(), "connect_failed .*another host.*boot_id")

    def test_what_compresses_crosses_a_slow_link_packed(self):
        node = self.start_node_on(self.lender, "node-1")
        self.network.slow(self.lender, 200_000_000)
        process = self.start_run([self.find("python3"), "-c", TEXTS], local="8M",
                                 options=["--transport", "tcp", "--compressed", "30%", *PATIENT])
        status, output = process.finish()
        self.assertEqual((status, output), (0, b"right\n"), process.log()[-3000:])
        written, saved = (int(re.search(rf'farpage_node_{name}_bytes_total{{transport="tcp"}} (\d+)',
                                        self.metrics_of(node)).group(1)) for name in ("written", "saved"))
        print("written", written, "saved", saved)
        self.assertGreaterEqual(written, self.stats()["evictions"]["written"] * 4096)
        self.assertGreater(saved, written // 2)

    def metrics_of(self, node):
        return self.lender.run("curl", "-sS", f"{node.ready['agent']}/metrics")

    def test_a_lost_packet_in_a_hundred_costs_no_byte(self):
        self.start_node_on(self.lender, "node-1")
        self.network.lose_percent(1)
        process = self.start_access(5, "tcp", deadline=20)
        self.expect_right_end(process)
        self.assertGreater(self.network.heal(), 20)
        self.expect_real_paging("tcp")

    def test_a_link_cut_for_3_s_is_waited_for(self):
        self.start_node_on(self.lender, "node-1")
        process = self.start_access(6, "tcp", deadline=10)
        self.network.cut(self.lender)
        time.sleep(3)
        self.assertGreater(self.network.heal(), 0)
        self.expect_right_end(process)
        self.assertIn("channel_broken", process.log())
        self.expect_real_paging("tcp")

    def test_a_link_cut_for_good_ends_in_sigbus_within_the_deadline(self):
        self.start_node_on(self.lender, "node-1")
        process = self.start_access(60, "tcp", deadline=DEADLINE)
        self.network.cut(self.lender)
        self.expect_sigbus(process, time.monotonic(),
                           r"page_lost address=0x[0-9a-f]+ page=\d+ nodes=node-1 ")

    def test_a_second_replica_outlives_a_link_cut_for_good(self):
        third = self.network.add_host("third")
        self.start_node_on(self.lender, "node-1")
        self.start_node_on(third, "node-2")
        process = self.start_access(6, "tcp", replicas=2, deadline=10)
        self.network.cut(third)
        self.expect_right_end(process)
        self.assertGreater(self.network.heal(), 0)
        self.assertGreater(self.stats()["replicas_lost"], 0)
        self.expect_real_paging("tcp")

    def test_a_node_stopped_for_2_s_is_waited_for(self):
        node = self.start_node_on(self.lender, "node-1")
        process = self.start_access(5, "tcp", deadline=10)
        node.kill(signal.SIGSTOP)
        time.sleep(2)
        node.kill(signal.SIGCONT)
        self.expect_right_end(process)
        self.assertIn("channel_broken", process.log())
        self.expect_real_paging("tcp")

    def start_needing_two_slabs(self, deadline):
        """Uses more than the only free slab; returns when the second one was refused."""
        self.start_node_on(self.lender, "node-1", lend="64M")
        process = self.start_run([RANDOM_ACCESS, str(96 * MIB), "2", "2", "5"], local="12M",
                                 options=["--fault-deadline", f"{deadline}s"])
        wait_until(lambda: "lease_refused" in process.log(), "the cluster is full")
        return process

    def test_a_program_that_needs_more_goes_on_when_another_node_joins(self):
        third = self.network.add_host("third")
        process = self.start_needing_two_slabs(deadline=20)
        time.sleep(0.5)
        self.start_node_on(third, "node-2")
        self.expect_right_end(process)
        self.expect_real_paging("tcp")

    def test_a_program_that_needs_more_than_there_is_ends_in_sigbus(self):
        process = self.start_needing_two_slabs(deadline=DEADLINE)
        self.expect_sigbus(process, time.monotonic(), "no_room")


if __name__ == "__main__":
    unittest.main()
