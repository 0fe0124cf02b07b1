"""Replicas that are lost are made again elsewhere while programs run, so that the next loss is none."""
import datetime
import json
import os
import random
import re
import unittest

from cluster import EndToEnd, replace_engine, wait_until
from verifier import FORM

# Of a node that is killed and started again.
ROUNDS = int(os.environ.get("FARPAGE_REPAIR_ROUNDS", "100" if FORM == "full" else "4"))


class Repair(EndToEnd):
    def slabs(self):
        return json.loads(self.get("/v1/cluster"))["slabs"]

    def lease_nodes(self):
        """Of the only region: the nodes of each slab's replicas."""
        (region,) = json.loads(self.get("/v1/regions"))["regions"]
        nodes = {}
        for lease in region["leases"]:
            self.assertFalse(lease["filling"], region)
            nodes.setdefault(lease["slab"], set()).add(lease["node"])
        return nodes

    def await_leases(self, process, condition, what):
        """Of the only region."""
        def holds():
            self.assertIsNone(process.popen.poll(), process.log())
            return any(condition(region) for region in json.loads(self.get("/v1/regions"))["regions"])
        wait_until(holds, what)

    def await_whole(self, process):
        """Every slab has all its replicas, as the engine and as the coordinator see it."""
        def is_whole(region):
            return (not any(lease["lost"] or lease["stale"] or lease["filling"] for lease in region["leases"])
                    and self.slabs()["degraded"] == 0
                    and region["counters"].get("farpage_repair_degraded_slabs") == 0)
        self.await_leases(process, is_whole, "every slab has its replicas again")

    def await_whole_without(self, process, gone):
        def is_elsewhere(region):
            return (all(lease["node"] != gone and not lease["filling"] for lease in region["leases"])
                    and self.slabs()["degraded"] == 0)
        self.await_leases(process, is_elsewhere, f"no slab is on {gone}")

    def start_cluster_of(self, nodes, *coordinator, transport="tcp"):
        self.start_coordinator(*coordinator)
        return {name: self.start_slab_node(name, transport) for name in (f"node-{i + 1}" for i in range(nodes))}

    def start_slab_node(self, name, transport="tcp"):
        return self.start_node(name, "--slab", "2M", transports=transport, lend="128M")

    def start_program(self, transport="tcp", rate="max", replicas=2):
        """Until it is told to end."""
        return self.start_filled(["--transport", transport, "--replicas", str(replicas), "--slab", "2M",
                                  "--operation-timeout", "200ms", "--fault-deadline", "5s", "--repair-rate", rate])

    def each_replica_is_killed_in_turn(self, transport):
        """Three nodes, two replicas: each kill alone is survived, all together are not without repair."""
        nodes = self.start_cluster_of(3, transport=transport)
        process = self.start_program(transport)
        random.seed(7)
        for _ in range(ROUNDS):
            name = random.choice(sorted(nodes))
            nodes[name].end()
            nodes[name] = self.start_slab_node(name, transport)
            self.await_whole(process)
        longest = self.end_access(process)
        print(f"the longest access took {longest} ms")
        if FORM == "full":
            self.assertLess(longest, 1000)
        self.assertEqual(self.stats()["faults"]["failed"], 0)
        self.assertIn("slab_repaired", process.log())

    def test_each_replica_is_killed_in_turn_over_tcp(self):
        self.each_replica_is_killed_in_turn("tcp")

    def test_each_replica_is_killed_in_turn_over_shm(self):
        self.each_replica_is_killed_in_turn("shm")

    def test_a_node_that_stays_away_is_replaced(self):
        nodes = self.start_cluster_of(3)
        process = self.start_program()
        nodes["node-1"].end()
        wait_until(lambda: self.slabs()["degraded"] > 0, "the coordinator misses it")
        self.await_whole_without(process, "node-1")
        nodes["node-2"].end()
        print(f"the longest access took {self.end_access(process)} ms")
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def test_two_of_three_replicas_die_at_once_and_twice(self):
        nodes = self.start_cluster_of(5)
        process = self.start_program(replicas=3)
        for gone in (("node-1", "node-2"), ("node-3", "node-4")):
            for name in gone:
                nodes[name].end()
            for name in gone:
                nodes[name] = self.start_slab_node(name)
            self.await_whole(process)
            self.assertTrue(all(len(held) == 3 for held in self.lease_nodes().values()))
        print(f"the longest access took {self.end_access(process)} ms")
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def test_rate_is_not_exceeded(self):
        nodes = self.start_cluster_of(3)
        process = self.start_program(rate="8M")
        nodes["node-1"].end()
        nodes["node-1"] = self.start_slab_node("node-1")
        self.await_whole(process)
        lines = [line.split() for line in process.log().splitlines() if re.search("repair_begun|slab_repaired", line)]
        begin, end = (datetime.datetime.fromisoformat(lines[index][0]).timestamp() for index in (0, -1))
        copied = 2 * sum("slab_repaired" in words for words in lines)
        print(f"{copied} MiB in {end - begin:.1f} s")
        self.assertGreater(copied, 16)
        self.assertGreater(end - begin, (copied - 2) / 8)
        self.end_access(process)

    def test_too_few_nodes_are_told_and_waited_for(self):
        nodes = self.start_cluster_of(2)
        process = self.start_program()
        nodes["node-1"].end()
        wait_until(lambda: "repair_waits" in process.log(), "it says that no node has room")
        self.assertGreater(self.slabs()["degraded"], 0)
        self.start_slab_node("node-3")
        self.await_whole_without(process, "node-1")
        self.assertTrue(all(held == {"node-2", "node-3"} for held in self.lease_nodes().values()))
        print(f"the longest access took {self.end_access(process)} ms")

    def test_engine_is_killed_meanwhile(self):
        nodes = self.start_cluster_of(3)
        process = self.start_program(rate="20M")
        nodes["node-2"].end()
        nodes["node-2"] = self.start_slab_node("node-2")
        wait_until(lambda: self.slabs()["repairing"] > 0, "a replica is filling")
        replace_engine(process.pid)
        self.await_whole(process)
        nodes["node-1"].end()
        print(f"the longest access took {self.end_access(process)} ms")

    def test_coordinator_is_killed_meanwhile(self):
        store = ["--store", "sqlite:" + self.path("coordinator.db")]
        coordinator = self.start_coordinator(*store)
        address = self.url.removeprefix("http://")
        nodes = {f"node-{i}": self.start_slab_node(f"node-{i}") for i in (1, 2, 3)}
        process = self.start_program(rate="20M")
        nodes["node-2"].end()
        nodes["node-2"] = self.start_slab_node("node-2")
        wait_until(lambda: self.slabs()["repairing"] > 0, "a replica is filling")
        coordinator.end()
        self.start_coordinator(*store, listen=address)
        self.await_whole(process)
        nodes["node-1"].end()
        print(f"the longest access took {self.end_access(process)} ms")

    def test_off_repairs_nothing(self):
        nodes = self.start_cluster_of(3)
        process = self.start_program(rate="off")
        nodes["node-1"].end()
        nodes["node-1"] = self.start_slab_node("node-1")
        wait_until(lambda: "replica_lost" in process.log(), "the pager gives replicas up")
        print(f"the longest access took {self.end_access(process)} ms")
        self.assertNotIn("repair", process.log())


if __name__ == "__main__":
    unittest.main()
