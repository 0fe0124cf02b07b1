#!/usr/bin/env python3
"""The engine of a snapshot pager is killed while it restores guests: a successor goes on."""
import json
import os
import random
import re
import signal
import socket
import unittest

from cluster import FARPAGE, MIB, engine_of, state_of, wait_until
from engine_death_test import KILLS, Killer, expect_takeovers, upgrade
from host_pager_base import command
from snapshot_base import GUEST, PAGE, SnapshotTest
from verifier import scaled

STATE_VERSION = 2005  # snapshot::kStateVersion
STEPS = str(scaled(6000, 60000))  # of a guest


class ServeDeath(SnapshotTest):
    def engine(self):
        return engine_of(self.server.pid)

    def kill_engine(self):
        """Returns when there is another one."""
        before = self.engine()
        taken_over = self.server.log().count("taken_over")
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.server.log().count("taken_over") > taken_over, "there is another engine")

    def killing(self, seed, most=0.6):
        return Killer(self.server.pid, random.Random(seed), most)

    def kills_so_far(self):
        return self.server.log().count("engine_killed")

    def restore_while_killed(self, file, seed, options=(), at_once=2, pages=None):
        """Guests, one after the other, until enough engines were killed: the longest touch of each."""
        stalls, started = [], 0
        with self.killing(seed):
            running = []
            while self.kills_so_far() < KILLS or running:
                while self.kills_so_far() < KILLS and len(running) < at_once:
                    started += 1
                    running.append(self.start_process([GUEST, self.socket, file, "--seed", str(seed * 1000 + started), *options]))
                figures = self.finish_guest(running.pop(0))
                self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)
                if pages is not None:
                    self.assertEqual(figures["pages"], pages)
                stalls.append(figures["max_ns"])
        expect_takeovers(self, self.server.log(), KILLS)
        self.assertEqual([line for line in self.server.log().splitlines() if "refused" in line], [])
        print(f"{started} guests, none with a wrong byte; the longest wait for a page was {max(stalls) / 1e6:.0f} ms")
        return stalls

    def test_restores_go_on(self):
        file = self.start(size=64 * MIB, lend=512 * MIB)
        self.restore_while_killed(file, 1, ["--close"], pages=64 * MIB // PAGE)

    def test_pages_given_back_are_zeros(self):
        file = self.start(serve_options=["--prefetch-all"])
        self.restore_while_killed(file, 2, ["--steps", STEPS, "--threads", "3", "--regions", "2"])

    def test_pages_given_back_without_events_are_zeros(self):
        file = self.start(serve_options=["--prefetch-all"])
        self.restore_while_killed(file, 3, ["--steps", STEPS, "--threads", "3", "--no-events"])

    def test_guests_with_pages_of_two_mebibytes_go_on(self):
        self.need_huge_pages(128 * MIB)
        file = self.start(size=32 * MIB, serve_options=["--prefetch-all"])
        self.restore_while_killed(file, 5, ["--huge", "--steps", str(scaled(4000, 20000)), "--threads", "3"])

    def test_guests_that_come_while_engines_are_killed_are_served(self):
        file = self.start(size=4 * MIB, serve_options=["--recorded-set", self.path("vm.set")])
        self.restore_while_killed(file, 4, ["--send", "slow"], at_once=6, pages=1024)

    def test_waiting_guest_is_served_without_the_coordinator(self):
        file = self.start(serve_options=["--recorded-set", self.path("vm.set")])
        self.expect_right(self.guest(file, "--percent", "20"), 819)
        guests = [self.waiting_guest(file, "--regions", "3"), self.waiting_guest(file, "--no-events")]
        self.log_has("session_started session=3")
        self.coordinator.end()
        for _ in range(3):
            self.kill_engine()
        self.assertIn("taken_over sessions=2", self.server.log())
        for guest in guests:
            self.expect_right(self.let_touch(guest), 4096)

    def test_message_of_which_a_dead_engine_has_seen_the_half_is_taken(self):
        file = self.start(size=4 * MIB)
        guest = self.start_process([GUEST, self.socket, file, "--send", "stop"])
        wait_until(lambda: state_of(guest.pid) == "T", "it has sent the half")
        self.kill_engine()
        guest.kill(signal.SIGCONT)
        self.expect_right(self.finish_guest(guest), 1024)

    def test_guests_end_with_the_holder(self):
        for number, which in enumerate(["holder", "engine first", "all at once"]):
            with self.subTest(which):
                self.check_end_of_guests(which, number)

    def check_end_of_guests(self, which, number):
        if number == 0:
            self.file = self.start(size=64 * MIB)
        else:
            self.server = self.serve("vm", name=f"vm-{number}.sock")
        engine = self.engine()
        guest = self.start_process([GUEST, self.socket, self.file, "--close", "--steps", "100000000"])
        waiting = self.waiting_guest(self.file, "--close")
        self.log_has("session_started session=2")
        if which == "holder":
            self.server.kill()
        else:
            os.kill(self.server.pid, signal.SIGSTOP)  # it starts no successor
            if which == "engine first":
                os.kill(engine, signal.SIGKILL)
                wait_until(lambda: state_of(engine) in "XZ", "the engine is dead")
            self.server.kill()
        for process in (guest, waiting):
            self.assertEqual(process.finish(60)[0], 128 + signal.SIGKILL, "without an engine it would read zeros")
        wait_until(lambda: state_of(engine) in "XZ", "the engine is dead")

    def test_it_still_waits_for_its_guests_before_it_ends(self):
        file = self.start()
        guest = self.waiting_guest(file)
        self.server.kill(signal.SIGTERM)
        self.log_has("waits_for_sessions=1")
        self.kill_engine()
        self.assertFalse(os.path.exists(self.socket))
        self.expect_right(self.let_touch(guest), 4096)
        self.assertEqual(self.server.finish(60)[0], 0)

    def test_second_signal_ends_it_and_its_guests(self):
        file = self.start()
        guest = self.waiting_guest(file, "--close")
        self.log_has("session_started session=1")
        self.server.kill(signal.SIGTERM)
        self.log_has("waits_for_sessions=1")
        self.kill_engine()
        self.server.kill(signal.SIGTERM)
        self.assertEqual(self.server.finish(60)[0], 128 + signal.SIGTERM)
        self.assertEqual(guest.finish(60)[0], 128 + signal.SIGKILL)

    def upgrade(self, name, path=None):
        upgrade(self, self.server, name, "--serve", path or self.socket)

    def test_upgrades_while_guests_are_restored(self):
        file = self.start(size=64 * MIB, lend=512 * MIB)
        waiting = self.waiting_guest(file, "--close")
        stalls, running = [], []
        for turn in range(4):
            running += [self.start_process([GUEST, self.socket, file, "--seed", str(turn * 2 + i), "--close",
                                            "--steps", "20000"]) for i in range(2)]
            self.log_has(f"session_started session={turn * 2 + 3}")
            self.upgrade(f"farpage-{turn}")
        for process in running:
            figures = self.finish_guest(process)
            self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)
            stalls.append(figures["max_ns"])
        print(f"{len(stalls)} guests, none with a wrong byte; the longest wait for a page was {max(stalls) / 1e6:.0f} ms")
        self.assertEqual(self.server.log().count("serve: taken_over"), 4)
        self.assertNotIn("not_taken_over", self.server.log())
        self.kill_engine()  # the new build's holder replaces it, too
        self.expect_right(self.let_touch(waiting), 64 * MIB // PAGE)
        # A connection of `farpage upgrade` that asked the former engine may be refused: it has been closed.
        refused = re.findall(r"refused pid=(\d+)", self.server.log())
        self.assertFalse(set(map(int, refused)) & {process.pid for process in (*running, waiting)}, self.server.log())
        self.server.kill(signal.SIGTERM)
        self.assertEqual(self.server.finish()[0], 0, self.server.log())

    def ask_for_upgrade(self, binary, state_version):
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(self.socket)
            request = {"version": 10, "upgrade": {"binary": binary, "state_version": state_version}}
            asked.sendall(json.dumps(request).encode() + b"\n")
            return asked.recv(4096).decode()

    def test_upgrades_that_cannot_be(self):
        file = self.start(size=4 * MIB)
        guest = self.waiting_guest(file, "--close")
        self.log_has("session_started session=1")
        before = self.engine()
        for option, path, text in (("--serve", self.path("none"), "no farpage serve listens on"),
                                   ("--pager", self.socket, "is the socket of a farpage serve")):
            status, output, problem = command("upgrade", option, path)
            self.assertEqual((output, text in problem), ("", True), problem)
            self.assertNotEqual(status, 0)
        self.assertIn("/nowhere", self.ask_for_upgrade("/nowhere", STATE_VERSION))
        self.assertIn("unknown to that build", self.ask_for_upgrade(FARPAGE, STATE_VERSION + 1))
        self.assertEqual(self.engine(), before)
        # What cannot be executed leaves the old build in place, with another engine.
        broken = self.path("broken")
        with open(broken, "w", encoding="ascii") as file_of_text:
            file_of_text.write("no program\n")
        os.chmod(broken, 0o755)
        self.assertIn("accepted", self.ask_for_upgrade(broken, STATE_VERSION))
        wait_until(lambda: self.engine() not in (None, before), "another engine goes on")
        self.log_has("upgrade_failed")
        self.expect_right(self.let_touch(guest), 1024)

    def test_sockets_that_were_made_on_request_stay(self):
        self.start_cluster(transport="tcp")
        file = self.make_file("one.mem", 4 * MIB)
        self.push(file, "one")
        folder = self.path("sockets")
        os.mkdir(folder)
        self.start_requests(folder)
        self.socket = self.ask(folder, {"image": "one", "socket": "one.sock"})["socket"]
        self.expect_right(self.guest(file), 1024)
        self.kill_engine()
        self.expect_right(self.guest(file), 1024)
        self.socket = self.ask(folder, {"image": "one", "socket": "two.sock"})["socket"]
        self.kill_engine()
        self.expect_right(self.guest(file), 1024)
        self.upgrade("farpage-by-request", os.path.join(folder, "control.sock"))
        self.expect_right(self.guest(file), 1024)
        self.assertIn("error", self.ask(folder, {"image": "one", "socket": "two.sock"}))
        self.server.kill(signal.SIGTERM)
        self.assertEqual(self.server.finish(60)[0], 0)
        self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
