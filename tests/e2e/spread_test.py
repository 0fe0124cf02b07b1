"""Replicas are in different zones, so that the loss of a whole zone is none."""
import json
import subprocess
import unittest

from cluster import FARPAGE, MIB, EndToEnd, wait_until


class Spread(EndToEnd):
    def start_slab_node(self, name, *more):
        return self.start_node(name, "--slab", "2M", *more, transports="tcp", lend="96M")

    def start_program(self, *more):
        """Until it is told to end; its 48 MiB are twice in the cluster."""
        return self.start_filled(["--transport", "tcp", "--slab", "2M", "--replicas", "2", "--operation-timeout",
                                  "200ms", "--fault-deadline", "5s", "--repair-rate", "max", *more], seed=7)

    def zones(self):
        """Of each slab of the only region: where its live replicas are."""
        zone_of = {node["id"]: node["labels"]["zone"] for node in json.loads(self.get("/v1/nodes"))["nodes"]}
        (region,) = json.loads(self.get("/v1/regions"))["regions"]
        zones = {}
        for lease in region["leases"]:
            if not lease["lost"] and not lease["stale"]:
                zones.setdefault(lease["slab"], []).append(zone_of[lease["node"]])
        return region, zones

    def status(self):
        return subprocess.run([FARPAGE, "status", "--coordinator", self.url], check=True, capture_output=True,
                              text=True, timeout=60).stdout

    def test_loss_of_a_zone_is_none(self):
        self.start_coordinator("--spread-by", "zone", "--node-ttl", "2s")
        nodes = {name: self.start_slab_node(name, "--label", f"zone={name[0]}", "--label", f"rack={name[1]}")
                 for name in ("a1", "a2", "b1", "b2")}
        self.assertRegex(self.status(), r"a1 .* rack=1,zone=a\n")
        process = self.start_program()
        region, zones = self.zones()
        self.assertEqual(region["spread_by"], "zone")
        self.assertGreater(len(zones), 20)
        for slab in zones.values():
            self.assertEqual(sorted(slab), ["a", "b"])
        for name in ("a1", "a2"):
            nodes[name].end()
        wait_until(lambda: "no node in another zone" in process.log(), "no other zone has room")
        self.start_slab_node("c1", "--label", "zone=c")

        def is_whole():
            region, zones = self.zones()
            return (all(sorted(slab) == ["b", "c"] for slab in zones.values())
                    and not any(lease["filling"] for lease in region["leases"]))
        wait_until(is_whole, "the lost replicas are in the third zone")
        print(f"the longest access took {self.end_access(process)} ms")
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def test_who_has_priority_gets_the_last_slabs(self):
        self.start_coordinator("--keep-free", "batch=70%")
        self.start_slab_node("node-1")
        batch = self.start_filled(["--transport", "tcp", "--slab", "2M", "--borrower", "batch", "--spill",
                                   f"{self.folder},size=160M"])
        self.assertIn("borrower 'batch' must leave 67.2M free (--keep-free): ", batch.log())
        self.assertIn("pager: spilling", batch.log())
        other = self.start_filled(["--transport", "tcp", "--slab", "2M"])
        self.assertNotIn("lease_refused", other.log())
        for process in (batch, other):
            self.end_access(process)

    def test_program_asks_for_its_own_label_and_is_told_what_has_room(self):
        self.start_coordinator()
        for name in ("a1", "a2"):
            self.start_slab_node(name, "--label", "zone=a", "--label", f"rack={name[1]}")
        process = self.start_program("--spread-by", "rack")
        print(f"the longest access took {self.end_access(process)} ms")
        refused = self.create_region({"name": "x", "bytes": 2 * MIB, "replicas": 2, "slab_bytes": 2 * MIB,
                                      "spread_by": "zone"})
        self.assertEqual(refused["status"], 507)
        self.assertIn("each in another zone, do not fit; free slabs of that size: zone=a: 96", refused["detail"])

    def create_region(self, body):
        done = subprocess.run(["curl", "-sS", "-H", "Content-Type: application/json", "-d", json.dumps(body),
                               self.url + "/v1/regions"], check=True, capture_output=True, timeout=30)
        return json.loads(done.stdout)


if __name__ == "__main__":
    unittest.main()
