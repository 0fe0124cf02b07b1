"""Processes and machines that stop for longer than any time limit: no page is lost.

How long is told by the coordinator itself: a region that nobody keeps alive, created when the pause
begins, is taken back when the region's time to live has passed.
"""
import json
import os
import signal
import unittest
import urllib.error
import urllib.request

from cluster import EndToEnd, wait_until
from network import Network, why_impossible

TIME_TO_LIVE = ["--region-ttl", "2s"]


class PauseTest(EndToEnd):
    """Shared by the tests here."""

    def create_marker(self):
        request = urllib.request.Request(self.url + "/v1/regions", method="POST",
                                         data=json.dumps({"name": "marker"}).encode(),
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.load(reply)["id"]

    def names_of_regions(self):
        return [region["name"] for region in json.loads(self.get("/v1/regions"))["regions"]]

    def pass_time_to_live(self):
        """Twice, so that what arrived just before the first pause has expired, too."""
        for _ in range(2):
            marker = self.create_marker()
            wait_until(lambda: marker not in self.get("/v1/regions"), "a silent region expires")

    @staticmethod
    def stop_group(process):
        os.killpg(process.pid, signal.SIGSTOP)

    @staticmethod
    def go_on(process):
        os.killpg(process.pid, signal.SIGCONT)

    def expect_no_loss(self, process):
        self.expect_right_end(process)
        self.assertNotIn("replica_lost", process.log())
        self.assertNotIn("page_lost", process.log())
        self.assertNotIn("region_recreated", process.log())


class Pauses(PauseTest):
    def run_stopped(self, transport):
        self.start_coordinator(*TIME_TO_LIVE)
        self.start_node("node-1", transports=transport)
        process = self.start_access(6, transport)
        for _ in range(2):
            self.stop_group(process)
            self.pass_time_to_live()
            self.go_on(process)
        self.expect_no_loss(process)
        self.expect_real_paging(transport)

    def test_stopped_run_keeps_its_pages_over_shm(self):
        self.run_stopped("shm")

    def test_stopped_run_keeps_its_pages_over_tcp(self):
        self.run_stopped("tcp")

    def test_stopped_run_keeps_both_replicas(self):
        self.start_coordinator(*TIME_TO_LIVE)
        for name in ("node-1", "node-2"):
            self.start_node(name, transports="tcp")
        process = self.start_access(6, "tcp", replicas=2)
        for _ in range(2):
            self.stop_group(process)
            self.pass_time_to_live()
            self.go_on(process)
        self.expect_no_loss(process)
        self.assertEqual(self.stats()["replicas_lost"], 0)

    def test_coordinator_that_was_stopped_takes_nothing_back(self):
        coordinator = self.start_coordinator(*TIME_TO_LIVE)
        self.start_node("node-1")
        process = self.start_access(10, "tcp")
        coordinator.kill(signal.SIGSTOP)
        # The pager asks each second and waits 2 s each time: longer than the limit.
        wait_until(lambda: "coordinator_silent" in process.log(), "the pager notices")
        coordinator.kill(signal.SIGCONT)
        wait_until(lambda: "coordinator_back" in process.log(), "it is back")
        self.pass_time_to_live()
        self.assertEqual(len(self.names_of_regions()), 1)
        self.expect_no_loss(process)

    def test_killed_run_gives_its_slabs_back(self):
        self.start_coordinator(*TIME_TO_LIVE)
        self.start_node("node-1")
        process = self.start_access(60, "tcp")
        self.assertEqual(len(self.names_of_regions()), 1)
        process.end()
        wait_until(lambda: not self.names_of_regions(), "its region is taken back")
        wait_until(lambda: '"slabs_leased":0' in self.get("/v1/cluster").replace(" ", "")
                   or self.free_slabs() == self.total_slabs(), "its slabs are free")

    def free_slabs(self):
        return sum(node["free_slabs"] for node in json.loads(self.get("/v1/nodes"))["nodes"])

    def total_slabs(self):
        return sum(node["total_slabs"] for node in json.loads(self.get("/v1/nodes"))["nodes"])


@unittest.skipIf(why_impossible(), why_impossible())
class PausesOfHosts(PauseTest):
    """Borrower, lender and coordinator on separate hosts."""

    def setUp(self):
        super().setUp()
        self.network = Network(self)
        self.borrower, self.lender, self.control = (
            self.network.add_host(name) for name in ("borrower", "lender", "control"))
        self.enter = self.control.enter
        self.start_coordinator("--insecure", *TIME_TO_LIVE, listen=f"{self.control.address}:0")
        self.enter = self.lender.enter
        self.node = self.start_node(
            "node-1", "--insecure", "--listen-agent", f"{self.lender.address}:0", "--tcp-listen",
            f"{self.lender.address}:0", "--session-grace", self.grace())
        self.enter = self.borrower.enter

    def grace(self):
        return "1s" if "gone" in self.id() else "10m"

    def get(self, path, base=None):
        """As seen from the coordinator's host."""
        return self.control.run("curl", "-sf", (base or self.url) + path)

    def create_marker(self):
        return json.loads(self.control.run(
            "curl", "-sf", "-X", "POST", "-H", "Content-Type: application/json", "-d",
            '{"name": "marker"}', self.url + "/v1/regions"))["id"]

    def peers(self):
        status = json.loads(self.get("/v1/nodes/node-1"))
        return sum(count for name, count in status["counters"].items() if "node_peers" in name)

    def test_cut_between_pager_and_coordinator_costs_nothing(self):
        process = self.start_access(12, "tcp")
        self.network.cut_between(self.borrower, self.control)
        wait_until(lambda: "coordinator_silent" in process.log(), "the pager notices")
        self.pass_time_to_live()
        self.assertGreater(self.network.heal(), 0)
        wait_until(lambda: "coordinator_back" in process.log(), "it is back")
        self.expect_no_loss(process)
        self.expect_real_paging("tcp")

    def test_suspended_host_finds_its_pages_again(self):
        process = self.start_access(6, "tcp", deadline=2)
        self.network.cut(self.borrower)  # with READs in flight
        self.stop_group(process)
        wait_until(lambda: self.peers() == 0, "the node gives its connections up")
        self.pass_time_to_live()
        self.assertGreater(self.network.heal(), 0)
        self.go_on(process)
        self.expect_no_loss(process)
        self.expect_real_paging("tcp")

    def test_host_that_is_gone_gives_its_slabs_back(self):
        process = self.start_access(600, "tcp")
        self.network.cut(self.borrower)
        process.end()
        wait_until(lambda: not self.names_of_regions(), "its region is taken back")
        wait_until(lambda: json.loads(self.get("/v1/nodes/node-1"))["free_slabs"] == 8,
                   "its slabs are free")


if __name__ == "__main__":
    unittest.main()
