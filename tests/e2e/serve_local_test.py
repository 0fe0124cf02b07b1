#!/usr/bin/env python3
"""Guests that are restored from images, of whose memory a budget stays here (`farpage serve --local`)."""
import contextlib
import json
import os
import random
import signal
import time
import unittest

from cluster import MIB, Sampler, engine_of, resident_bytes, state_of, wait_until
from engine_death_test import KILLS, expect_takeovers, upgrade
from snapshot_base import GUEST, PAGE, SnapshotTest
from verifier import scaled

SIZE = 32 * MIB
LOCAL = 8 * MIB
# The guest's threads and heap, the agent's staging area, and what a fault may have beyond the budget.
OWN_MEMORY = 12 * MIB


def sampled(guest):
    """The most anonymous memory that it was seen to have."""
    return Sampler(lambda: resident_bytes(guest.pid, "RssAnon"), pause=0.01)


class ServeLocal(SnapshotTest):
    def start_local(self, *serve_options, size=SIZE, local=LOCAL, lend=1024 * MIB, **more):
        return self.start(size=size, lend=lend, serve_options=["--local", str(local), *serve_options], **more)

    def regions_of_guests(self):
        return [region for region in json.loads(self.get("/v1/regions"))["regions"] if not region.get("image")]

    def started_guest(self, file, *more):
        """One whose agent is there, and which has touched nothing yet."""
        sessions = self.server.log().count("session_started")
        guest = self.waiting_guest(file, "--close", *more)
        wait_until(lambda: self.server.log().count("session_started") > sessions, "its agent is there")
        return guest

    def touch_within_budget(self, guest, pages, local=LOCAL):
        with sampled(guest) as peak:
            figures = self.let_touch(guest)
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)
        self.assertEqual(figures["pages"], pages, figures)
        print(f"at most {peak.most / MIB:.1f} MiB of anonymous memory, {local // MIB} MiB budget; {figures['touch_ms']:.0f} ms")
        self.assertGreater(peak.most, local // 2)
        self.assertLess(peak.most, local * 105 // 100 + OWN_MEMORY)

    def check_large_guest(self, transport):
        file = self.start_local("--transport", transport, transport=transport)
        guest = self.started_guest(file, "--rounds", "2", "--regions", "2")
        self.touch_within_budget(guest, 5 * SIZE // PAGE)
        stats = self.stats(1)
        print(stats["far"])
        self.assertGreater(stats["far"]["written"], SIZE // PAGE)
        self.assertGreater(stats["far"]["read"] + stats["far"]["prefetched"], 3 * SIZE // PAGE // 2)
        self.assertEqual(stats["far"]["lost"], 0)
        self.farpage("image", "verify", "vm")  # nothing was written to it

    def test_guest_larger_than_its_budget_over_tcp(self):
        self.check_large_guest("tcp")

    def test_guest_larger_than_its_budget_over_shm(self):
        self.check_large_guest("shm")

    def test_clean_pages_of_the_image_leave_without_being_sent(self):
        file = self.start_local("--transport", "tcp", zero_share=0, holes=0)
        guest = self.started_guest(file)
        self.touch_within_budget(guest, SIZE // PAGE)
        far = self.stats(1)["far"]
        self.assertGreater(far["dropped"], SIZE // PAGE // 2, far)
        self.assertLess(far["written"], far["dropped"] // 2, far)

    def test_pages_given_back_are_zeros(self):
        file = self.start_local()
        guest = self.started_guest(file, "--steps", str(scaled(6000, 40000)), "--threads", "3", "--regions", "3")
        figures = self.let_touch(guest)
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)
        self.assertEqual(self.stats(1)["far"]["lost"], 0)

    def test_image_in_generations(self):
        base = self.start_local(size=16 * MIB, local=4 * MIB)
        with open(base, "rb") as file:
            content = bytearray(file.read())
        diff, noise = self.path("diff.mem"), random.Random(5)
        with open(diff, "wb") as file:  # as Firecracker writes it: what has not changed is a hole
            file.truncate(16 * MIB)
            for page in noise.sample(range(16 * MIB // PAGE), 600):
                changed = noise.randbytes(PAGE)
                content[page * PAGE:(page + 1) * PAGE] = changed
                file.seek(page * PAGE)
                file.write(changed)
        whole = self.path("whole.mem")
        with open(whole, "wb") as file:
            file.write(content)
        self.push(diff, "second", "--base", "vm")
        self.server = self.serve("second", "--local", str(4 * MIB), name="second.sock")
        guest = self.started_guest(whole, "--rounds", "2")
        self.touch_within_budget(guest, 5 * 16 * MIB // PAGE, local=4 * MIB)

    def test_several_guests_have_a_budget_each(self):
        file = self.start_local(size=16 * MIB, local=4 * MIB)
        guests = [self.started_guest(file, "--rounds", "1", "--seed", str(seed)) for seed in range(3)]
        with contextlib.ExitStack() as sampling:
            peaks = [sampling.enter_context(sampled(guest)) for guest in guests]
            for guest in guests:
                guest.send(b"\n")
            for guest in guests:
                figures = self.finish_guest(guest)
                self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)
        for peak in peaks:
            self.assertLess(peak.most, 4 * MIB * 105 // 100 + OWN_MEMORY)
        self.stats(3)
        wait_until(lambda: not self.regions_of_guests(), "their regions are given back")

    def check_kills_under(self, guests, pages=None):
        for guest in guests:
            guest.send(b"\n")
        for turn in range(KILLS):
            time.sleep(0.25)  # engines that live for less than 0.2 s are given up
            os.kill(engine_of(self.server.pid), signal.SIGKILL)
            wait_until(lambda: self.server.log().count("serve: taken_over") > turn, "another one goes on")
        for guest in guests:
            figures = self.finish_guest(guest)
            self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)
            if pages is not None:
                self.assertEqual(figures["pages"], pages)
            print(f"the longest wait for a page was {figures['max_ns'] / 1e6:.0f} ms")
        expect_takeovers(self, self.server.log(), KILLS)

    def test_engines_are_killed(self):
        file = self.start_local()
        self.check_kills_under([self.started_guest(file, "--rounds", "3", "--seed", str(seed)) for seed in (1, 2)],
                               7 * SIZE // PAGE)

    def test_engines_are_killed_while_pages_are_given_back(self):
        file = self.start_local(size=16 * MIB, local=4 * MIB)
        self.check_kills_under([self.started_guest(file, "--steps", str(scaled(15000, 60000)), "--threads", "3")])

    def test_upgrade_under_a_guest(self):
        file = self.start_local()
        guest = self.started_guest(file, "--rounds", "3")
        guest.send(b"\n")
        for turn in range(3):
            upgrade(self, self.server, f"farpage-{turn}", "--serve", self.socket)
        figures = self.finish_guest(guest)
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)
        print(f"the longest wait for a page was {figures['max_ns'] / 1e6:.0f} ms")

    def test_guest_ends_with_the_holder(self):
        file = self.start_local()
        guest = self.started_guest(file, "--rounds", "1000")
        guest.send(b"\n")
        wait_until(lambda: state_of(guest.pid) in "RSD", "it runs")
        self.server.kill()
        self.assertEqual(guest.finish(60)[0], 128 + signal.SIGKILL, "without an engine it would read zeros")

    def test_loss_of_one_of_two_nodes_is_not_noticed(self):
        file = self.start_local("--replicas", "2", nodes=2, image_options=["--replicas", "2"], size=16 * MIB, local=4 * MIB)
        guest = self.started_guest(file, "--rounds", "3")
        guest.send(b"\n")
        wait_until(lambda: any(region["leases"] for region in self.regions_of_guests()), "pages leave")
        self.nodes[0].kill()
        figures = self.finish_guest(guest)
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)

    def test_wrong_page_of_the_image_is_not_given_to_the_guest(self):
        file = self.start_local(size=4 * MIB, local=2 * MIB)
        number, content = self.noise_page(file)
        self.damage(self.nodes[0], content[:64])
        self.server.kill()
        self.server = self.serve("vm", "--local", str(2 * MIB), "--fault-deadline", "300ms", name="again.sock")
        guest = self.started_guest(file)
        figures = self.let_touch(guest)
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 1), (number, figures))
        self.log_has("wrong_page")

    def test_vmm_that_cannot_have_an_agent_is_refused(self):
        file = self.start_local(size=4 * MIB, local=2 * MIB)
        for option, reason in (("--seccomp", "restricts its system calls (seccomp)"),
                               ("--no-events", "UFFD_FEATURE_EVENT_REMOVE")):
            guest = self.start_process([GUEST, self.socket, file, option, "--close"])
            self.assertEqual(guest.finish(60)[0], 128 + signal.SIGKILL, guest.log())
            self.log_has(reason)
        self.touch_within_budget(self.started_guest(file, "--rounds", "1"), 3 * 4 * MIB // PAGE, local=2 * MIB)

    def test_options_that_exclude_a_budget(self):
        self.start_cluster(transport="tcp")
        _, problem = self.farpage("serve", "--image", "vm", "--socket", self.path("vm.sock"), "--local", "4M",
                                  "--prefetch-all", status=2)
        self.assertIn("--local", problem)


if __name__ == "__main__":
    unittest.main()
