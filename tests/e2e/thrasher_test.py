"""The order of disturbances: that of the seed, and one loss at a time."""
import itertools
import threading
import time
import unittest
import unittest.mock
from unittest import TestCase

import thrasher
from cluster import wait_until
from thrasher import CONTROL, RISK, Disturbance, Thrasher, plan


class FakeCluster:
    """A cluster that is whole when it is told to be."""

    def __init__(self):
        self.lacks = ""

    def not_whole(self):
        return self.lacks


class Recorded(Disturbance):
    """Notes that it was done and undone."""

    def __init__(self, lane, blind=False, seconds=0.0):  # pylint: disable=super-init-not-called
        self.lane, self.blind, self.seconds = lane, blind, seconds
        self.done, self.undone = threading.Event(), threading.Event()

    def do(self, cluster):
        self.done.set()

    def undo(self, cluster):
        self.undone.set()


def first(steps, count=200):
    return [f"{pause} {disturbance}" for pause, disturbance in itertools.islice(steps, count)]


class Thrashing(TestCase):
    def start(self, risk=(), control=(), cluster=None):
        plans = {RISK: ((0, step) for step in risk), CONTROL: ((0, step) for step in control)}
        with unittest.mock.patch("thrasher.plan", lambda seed, lane, replicas: plans[lane]):
            started = Thrasher(cluster or FakeCluster(), "seed", 2, lambda line: None)
        self.addCleanup(unittest.mock.patch.stopall)
        unittest.mock.patch("thrasher.QUIET", 0.3).start()
        unittest.mock.patch("thrasher.RUNNING", 0.02).start()
        return started

    def test_the_seed_decides_what_is_done(self):
        for lane in (RISK, CONTROL):
            self.assertEqual(first(plan("1/2", lane, 2)), first(plan("1/2", lane, 2)))
            self.assertNotEqual(first(plan("1/2", lane, 2)), first(plan("1/3", lane, 2)))

    def test_every_kind_comes_and_none_that_one_replica_cannot_bear(self):
        kinds = {kind for kind in thrasher.all_kinds() if kind is not Recorded}
        seen = {replicas: {type(step) for lane in (RISK, CONTROL)
                           for _, step in itertools.islice(plan("1", lane, replicas), 2000)} - {Recorded}
                for replicas in (1, 2)}
        self.assertEqual(seen[2], kinds)
        self.assertEqual(kinds - seen[1], {thrasher.NodeKilled})

    def test_a_risk_waits_until_every_slab_is_whole(self):
        cluster, risk, control = FakeCluster(), Recorded(RISK), Recorded(CONTROL)
        cluster.lacks = "one slab"
        with self.start([risk], [control], cluster):
            wait_until(control.undone.is_set, "what risks nothing does not wait")
            self.assertFalse(risk.done.wait(0.5))
            cluster.lacks = ""
            begin = time.monotonic()
            wait_until(risk.undone.is_set, "it is done")
            self.assertGreaterEqual(time.monotonic() - begin, 0.2)

    def test_a_risk_waits_for_what_hides_losses(self):
        risk, blind = Recorded(RISK), Recorded(CONTROL, blind=True, seconds=1)
        def later():
            blind.done.wait()
            yield risk
        with self.start(later(), [blind]) as started:
            wait_until(lambda: len(started.steps) == 2, "both are done")
        times = {step.disturbance: step for step in started.steps}
        self.assertGreaterEqual(times[risk].begin, times[blind].end)

    def test_the_end_undoes_what_was_begun(self):
        risk = Recorded(RISK, seconds=3600)
        with self.start([risk]):
            wait_until(risk.done.is_set, "it is done")
            self.assertFalse(risk.undone.is_set())
        self.assertTrue(risk.undone.is_set())

    def test_slabs_that_stay_without_replicas_are_a_finding(self):
        cluster = FakeCluster()
        cluster.lacks = "one slab"
        with unittest.mock.patch("thrasher.WHOLE", 0.2):
            with self.start([Recorded(RISK)], [], cluster) as started:
                wait_until(lambda: started.findings, "it is found")
        self.assertRegex(started.findings[0], "after 0.2 s not every slab has its replicas: one slab")
        self.assertEqual(started.steps, [])

    def test_a_disturbance_that_fails_is_a_finding(self):
        broken = Recorded(CONTROL)
        broken.do = unittest.mock.Mock(side_effect=OSError("no such host"))
        with self.start([], [broken]) as started:
            wait_until(lambda: started.findings, "it is found")
        self.assertEqual(started.findings, ["lane control: OSError: no such host"])
        self.assertTrue(broken.undone.is_set())


if __name__ == "__main__":
    unittest.main()
