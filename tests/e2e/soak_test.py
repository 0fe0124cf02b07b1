"""The short form of `./dev soak`."""
import os
import unittest

import soak
from cluster import EndToEnd

SEED = int(os.environ.get("FARPAGE_SOAK_SEED", "1"))
ROUNDS = 3


class Soaked(EndToEnd):
    def test_kills_stops_and_restarts_cost_no_byte(self):
        cluster = soak.Soak()
        self.addCleanup(cluster.doCleanups)
        cluster.begin(SEED)
        self.assertTrue(cluster.run_rounds(range(ROUNDS), seconds=8))
        totals = cluster.totals
        disturbances = sum(totals[kind] for kind in
                           ("node_kills", "node_stops", "coordinator_kills"))
        self.assertGreaterEqual(disturbances, ROUNDS, totals)
        self.assertGreater(totals["budgets_changed"], 0, totals)
        self.assertGreater(totals["evictions"], 10_000, totals)


if __name__ == "__main__":
    unittest.main()
