"""The short form of `./dev soak`, and that it finds what is planted."""
import json
import os
import random
import socket
import time
import unittest
import unittest.mock
import urllib.parse
import urllib.request

import histories
import soak
from cluster import EndToEnd

SEED = int(os.environ.get("FARPAGE_SOAK_SEED", "1"))
SECONDS = 8


class Soaked(EndToEnd):
    def start(self):
        cluster = soak.Soak()
        self.addCleanup(cluster.doCleanups)
        cluster.begin(SEED)
        return cluster

    def test_disturbances_cost_no_byte_and_leave_nothing_behind(self):
        cluster = self.start()
        self.assertTrue(cluster.run_rounds(range(1), SECONDS), cluster.findings)
        print(soak.table(cluster.report()))
        totals = cluster.totals
        self.assertGreaterEqual(totals["disturbances"], soak.LEAST_STEPS, totals)
        self.assertGreater(totals["recorded_operations"], 5000, totals)
        self.assertGreater(totals["evictions"], 1000, totals)

    def test_planted_leaks_are_found(self):
        cluster = self.start()
        soak.wait_until(lambda: not cluster.lent_memory() + cluster.held_by_services(), "nothing is left at first")
        request = urllib.request.Request(
            cluster.url + "/v1/regions", method="POST", headers={"Content-Type": "application/json"},
            data=json.dumps({"name": "planted", "bytes": 8 << 20, "slab_bytes": 8 << 20, "replicas": 2}).encode())
        with urllib.request.urlopen(request, timeout=10) as reply:
            region = json.load(reply)["id"]
        found = "\n".join(cluster.lent_memory())
        self.assertRegex(found, "region planted is there with 2 leases")
        self.assertRegex(found, r"node-\d: 2\d\d of 256 slabs are free")
        with urllib.request.urlopen(urllib.request.Request(f"{cluster.url}/v1/regions/{region}", method="DELETE"),
                                    timeout=10):
            pass
        coordinator = urllib.parse.urlsplit(cluster.url)
        for _ in range(2 * soak.MORE_DESCRIPTORS + 10):  # connections that stay
            self.addCleanup(socket.create_connection((coordinator.hostname, coordinator.port), 10).close)
        soak.wait_until(lambda: any("coordinator: " in line for line in cluster.held_by_services()), "they are found")
        self.assertRegex("\n".join(cluster.held_by_services()), r"coordinator: \d+ descriptors, \d+ before; new: .*socket")

    @staticmethod
    def spoiled(read_folder):
        """The same, but for one read, which returns what was overwritten before it began."""
        def read(folder):
            records = read_folder(folder)
            written = {}
            for i, (begin, end, _, value, word, kind) in enumerate(records):
                if kind == histories.WRITE:
                    written.setdefault(word, end)
                elif kind == histories.READ and written.get(word, begin) < begin:
                    records[i] = (begin, end, histories.first_value(word), value, word, kind)
                    return records
            raise AssertionError("no read after a write")
        return read

    def test_planted_history_is_found(self):
        cluster = self.start()
        program = soak.Program(cluster, "planted", "words", random.Random(1), 1, 60)
        cluster.programs = [program]
        soak.wait_until(program.is_filled, "it has its memory")
        time.sleep(2)  # of operations
        with unittest.mock.patch("histories.read_folder", self.spoiled(histories.read_folder)):
            program.end()
        self.assertRegex(program.problem, "did not behave like memory:\nword ")
        self.assertGreater(program.wrong_bytes, 0)


if __name__ == "__main__":
    unittest.main()
