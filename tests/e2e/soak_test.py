"""The short form of `./dev soak`."""
import os
import unittest

from cluster import EndToEnd
from soak import Soak

SEED = int(os.environ.get("FARPAGE_SOAK_SEED", "1"))


class Soaked(EndToEnd):
    def test_kills_stops_and_restarts_cost_no_byte(self):
        soak = Soak()
        self.addCleanup(soak.doCleanups)
        soak.begin(SEED)
        self.assertTrue(soak.run_for(0.6, round_seconds=7))
        totals = soak.totals
        self.assertGreater(totals["rounds"], 2, totals)
        self.assertGreater(totals["node_kills"] + totals["node_stops"], 3, totals)
        self.assertGreater(totals["coordinator_kills"], 0, totals)
        self.assertGreater(totals["evictions"], 10_000, totals)


if __name__ == "__main__":
    unittest.main()
