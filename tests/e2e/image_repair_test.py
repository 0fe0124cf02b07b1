#!/usr/bin/env python3
"""Images whose nodes die, drain, or are to lend less: their slabs are copied, and readers go on."""
import json
import os
import signal
import unittest
import urllib.request

from cluster import FARPAGE, MIB, Process, engine_of, wait_until
from snapshot_base import PAGE, SnapshotTest

SIZE = 16 * MIB


class ImageRepair(SnapshotTest):
    def start_image(self, nodes, replicas, *serve_options, **more):
        self.coordinator = self.start_coordinator("--node-ttl", "1s", *more.pop("coordinator", ()))
        rate = more.pop("rate", "max")
        self.nodes = [self.start_slab_node(f"node-{i + 1}", rate=rate) for i in range(nodes)]
        self.file = self.make_file("guest.mem", SIZE, zero_share=0, holes=0, **more)
        self.push(self.file, "vm", "--slab", "2M", "--replicas", str(replicas))
        self.server = self.serve("vm", "--transport", "tcp", *serve_options, cache=4 * MIB)

    def start_slab_node(self, name, rate="max"):
        return self.start_node(name, "--slab", "2M", "--repair-rate", rate, transports="tcp", lend="64M", leave="60s")

    def nodes_of_image(self):
        region = json.loads(self.get("/v1/regions/" + self.images()["vm"]["region"]))
        leases = [lease for lease in region["leases"] if not lease.get("lost") and not lease.get("filling")]
        return [lease["node"] for lease in leases]

    def is_whole_without(self, node, replicas):
        nodes = self.nodes_of_image()
        cluster = json.loads(self.get("/v1/cluster"))
        slabs = SIZE // (2 * MIB) + 1  # and the map
        return node not in nodes and len(nodes) == slabs * replicas and cluster["slabs"]["degraded"] == 0

    def expect_all_right(self, replicas):
        output, _ = self.farpage("image", "verify", "vm")
        self.assertEqual(output.count(" 0 bad, map right"), replicas, output)

    def test_replica_of_a_dead_node_is_made_again(self):
        self.start_image(3, 2)
        waiting = self.waiting_guest(self.file)
        self.expect_right(self.guest(self.file, "--percent", "20"), 819)
        self.nodes[0].kill(signal.SIGKILL)
        self.nodes[0].finish()
        wait_until(lambda: self.is_whole_without("node-1", 2), "the image has two replicas again", 60)
        self.expect_all_right(2)
        # The second loss, of whoever had the other replica.
        self.log_has("leases_refreshed image=vm")
        self.nodes[1].kill(signal.SIGKILL)
        self.nodes[1].finish()
        self.expect_right(self.let_touch(waiting), 4096)
        self.expect_right(self.guest(self.file), 4096)
        self.assertEqual(self.stats(3)["faults"]["lost"], 0)

    def drain(self, node):
        return self._owned(Process([FARPAGE, "drain", node, "--coordinator", self.url], self._log("drain")))

    def expect_drained(self, drain):
        status, output = drain.finish(120)
        self.assertEqual(status, 0, drain.log())
        self.assertIn("is empty and has left the cluster", output.decode())

    def test_drained_node_leaves_while_guests_read_from_it(self):
        """With one replica: there is no other one to go on with."""
        self.start_image(1, 1)
        waiting = self.waiting_guest(self.file)
        self.nodes.append(self.start_slab_node("node-2"))
        drain = self.drain("node-1")
        while drain.popen.poll() is None:
            self.expect_right(self.guest(self.file, "--percent", "10", "--threads", "2"), 409)
        self.expect_drained(drain)
        self.assertEqual(self.nodes[0].popen.wait(60), 0, "the node's process ends by itself")
        self.assertEqual(set(self.nodes_of_image()), {"node-2"})
        self.expect_right(self.let_touch(waiting), 4096)
        self.expect_all_right(1)
        self.assertEqual(self.stats()["faults"]["lost"], 0)

    def test_guest_with_a_budget_goes_on_when_its_image_has_moved(self):
        self.start_image(1, 1, "--local", "4M", "--slab", "2M")
        guest = self.waiting_guest(self.file, "--close", "--rounds", "2")
        self.log_has("session_started")
        self.nodes.append(self.start_slab_node("node-2"))
        self.expect_drained(self.drain("node-1"))
        figures = self.let_touch(guest)
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)
        self.assertEqual(self.stats(1)["far"]["lost"], 0)

    def test_successor_of_the_snapshot_pager_knows_the_new_places(self):
        self.start_image(1, 1)
        waiting = self.waiting_guest(self.file)
        self.nodes.append(self.start_slab_node("node-2"))
        self.expect_drained(self.drain("node-1"))
        os.kill(engine_of(self.server.pid), signal.SIGKILL)
        self.log_has("taken_over")
        self.expect_right(self.let_touch(waiting), 4096)

    def test_images_move_from_a_node_that_lends_less(self):
        self.start_image(1, 1)
        self.nodes.append(self.start_slab_node("node-2"))
        used = self.slabs_in_use("node-1")
        self.farpage("lend", "node-1", "8M")
        wait_until(lambda: self.slabs_in_use("node-1") <= 4, "the node has given slabs back", 60)
        self.assertEqual(sorted(self.nodes_of_image()), ["node-1"] * 4 + ["node-2"] * (used - 4))
        self.expect_all_right(1)
        self.expect_right(self.guest(self.file), 4096)

    def test_copying_goes_on_when_coordinator_and_node_are_away(self):
        store = "sqlite:" + self.path("coordinator.db")
        self.start_image(4, 3, coordinator=["--store", store])
        self.nodes.append(self.start_slab_node("node-5"))
        self.nodes[0].kill(signal.SIGKILL)
        wait_until(lambda: any("repair_begun" in node.log() for node in self.nodes[1:]), "a node copies")
        copying = next(i for i in range(1, 5) if "repair_begun" in self.nodes[i].log())
        listen = self.url.removeprefix("http://")
        self.coordinator.kill(signal.SIGKILL)
        self.coordinator.finish()
        self.coordinator = self.start_coordinator("--node-ttl", "1s", "--store", store, listen=listen)
        self.nodes[copying].kill(signal.SIGSTOP)
        self.addCleanup(self.nodes[copying].kill, signal.SIGCONT)
        others = [node for i, node in enumerate(self.nodes) if i != copying]
        wait_until(lambda: any("image_repaired" in node.log() for node in others), "another one goes on", 60)
        self.nodes[copying].kill(signal.SIGCONT)
        wait_until(lambda: self.is_whole_without("node-1", 3), "the image has three replicas again", 60)
        self.expect_all_right(3)

    def test_page_with_wrong_bytes_is_copied_from_the_other_replica(self):
        self.start_image(2, 2)
        with open(self.file, "rb") as memory:
            pages = [memory.read(PAGE) for _ in range(1025)]
        # Each replica has one that the other lacks, close together and far apart.
        for node, page in ((0, 0), (1, 7), (0, 600), (1, 1024)):
            self.damage(self.nodes[node], pages[page])
        self.nodes.append(self.start_slab_node("node-3"))
        self.expect_drained(self.drain("node-1"))
        self.nodes[1].end()
        self.expect_right(self.guest(self.file), 4096)

    def test_replica_that_another_copier_has_given_up_is_made_again(self):
        self.start_image(3, 2)
        region = json.loads(self.get("/v1/regions/" + self.images()["vm"]["region"]))
        kept, given_up = (lease for lease in region["leases"] if lease["slab"] == 0)
        live = [{"node": kept["node"], "generation": kept["generation"]}]
        filling = self.post(f"/v1/regions/{region['id']}/repairs", {"slab": 0, "live": live, "avoid": []})["filling"]
        self.post(f"/v1/regions/{region['id']}/repairs/complete",
                  {"slab": 0, "node": filling["node"], "generation": filling["generation"], "abandoned": True})
        self.assertEqual(json.loads(self.get("/v1/cluster"))["slabs"]["degraded"], 1)
        wait_until(lambda: json.loads(self.get("/v1/cluster"))["slabs"]["degraded"] == 0, "it is whole again", 60)
        leases = json.loads(self.get("/v1/regions/" + region["id"]))["leases"]
        self.assertNotIn((given_up["node"], given_up["generation"]),
                         [(lease["node"], lease["generation"]) for lease in leases])
        self.expect_all_right(2)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, method="POST", headers={"Content-Type": "application/json"},
                                         data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as reply:
            answer = reply.read()
        return json.loads(answer) if answer else None

    def test_of_two_nodes_that_copy_one_image_one_goes_on(self):
        self.start_image(2, 1, rate="4M")
        self.nodes += [self.start_slab_node(name, rate="4M") for name in ("node-3", "node-4")]
        drain = self.drain("node-1")
        agents = {node["id"]: node["agent_url"] for node in json.loads(self.get("/v1/nodes"))["nodes"]}
        for name in ("node-3", "node-4"):
            urllib.request.urlopen(urllib.request.Request(f"{agents[name]}/v1/images/vm/repair", method="POST"),
                                   timeout=10).close()
        self.expect_drained(drain)
        self.expect_all_right(1)
        self.expect_right(self.guest(self.file), 4096)


if __name__ == "__main__":
    unittest.main()
