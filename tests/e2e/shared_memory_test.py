#!/usr/bin/env python3
"""Memory that several processes share, and hand over to `farpage share` (docs/vm.md).

The VMM and its devices are tests/e2e/programs/shared_memory.c: they write pages in turn, and check
each byte of each page against a model.
"""
import json
import os
import signal
import stat
import subprocess
import unittest

from cluster import BUILD, MIB, EndToEnd, Process, Service, connect_as_nobody, engine_of, state_of, wait_until
from verifier import scaled

PROGRAM = os.path.join(BUILD, "tests", "shared_memory")
PAGE = 4096


@unittest.skipIf(os.geteuid() != 0, "a userfaultfd for faults of the kernel needs root")
class SharedMemory(EndToEnd):
    def share(self, *more, local=8 * MIB, transport="shm"):
        self.socket = self.path("vm.sock")
        self.stats_path = self.path("stats.json")
        self.pager = self._owned(Service(
            ["share", "--socket", self.socket, "--local", str(local), "--coordinator", self.url, "--transport", transport,
             "--stats-file", self.stats_path, *more], self._log("share")))

    def start(self, *more, nodes=1, **options):
        transport = options.get("transport", "shm")
        self.cluster = self.start_cluster(nodes=nodes, transport=transport, lend="256M")
        self.share(*more, **options)

    def guest(self, processes=1, pages=8192, rounds=20000, seed=1, options=()):
        arguments = [PROGRAM, self.socket, str(processes), str(pages), str(rounds), str(seed), *options]
        return self._owned(Process(arguments, self._log("guest"), stdin=subprocess.PIPE))

    def expect_right(self, process, checks):
        status, output = process.finish(200)
        self.assertEqual(status, 0, process.log() + self.pager.log())
        figures = json.loads(output.splitlines()[-1])
        self.assertEqual(figures["wrong"], 0, figures)
        self.assertGreaterEqual(figures["checks"], checks, figures)
        return figures

    def expect_pager_ended(self):
        status, _ = self.pager.finish(60)
        self.assertEqual(status, 0, self.pager.log())
        self.assertFalse(os.path.exists(self.socket))

    def expect_far(self, transport):
        self.expect_pager_ended()
        stats = self.stats()
        self.assertGreater(stats["faults"]["remote"] + stats["prefetched_pages"], 1000, stats)
        self.assertGreater(stats["evictions"]["written"], 1000, stats)
        self.assertEqual(stats["faults"]["failed"], 0, stats)
        self.assertEqual(stats["transports"], transport, stats)

    def say(self, process, line):
        self.assertEqual(process.popen.stdout.readline(), line, process.log() + self.pager.log())

    def test_one_process_has_more_memory_than_stays_here(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport):
                self.start(transport=transport)
                self.expect_right(self.guest(), 2 * 20000 + 8192)
                self.expect_far(transport)

    def test_two_processes_see_every_byte(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport):
                self.start("--processes", "2", transport=transport)
                self.expect_right(self.guest(processes=2, options=["--walk"]), 4 * 20000 + 5 * 8192)
                self.expect_far(transport)

    def test_several_memories_in_many_regions(self):
        self.start("--processes", "3")
        self.expect_right(self.guest(processes=3, options=["--memories", "3", "--regions", "9", "--walk"]), 6 * 20000)
        self.expect_far("shm")

    def test_what_was_written_before_the_hand_over_is_far_memory_too(self):
        self.start("--processes", "2")
        self.expect_right(self.guest(processes=2, rounds=2000, options=["--prefill", "--walk"]), 4 * 2000 + 5 * 8192)
        self.expect_far("shm")

    def test_processes_may_come_later_and_end_earlier(self):
        self.start()
        self.expect_right(self.guest(processes=4, options=["--late", "--exit-early", "2"]), 6 * 20000)
        self.expect_far("shm")
        self.assertEqual(self.pager.log().count("process_joined"), 4, self.pager.log())

    def test_process_that_unmaps_the_memory_does_not_hold_it_here(self):
        self.start("--processes", "2")
        self.expect_right(self.guest(processes=2, options=["--unmap", "1", "--walk"]), 2 * 20000 + 2 * 8192)
        self.expect_far("shm")

    def test_process_maps_the_memory_anew_and_hands_it_over_again(self):
        self.start("--processes", "2")
        self.expect_right(self.guest(processes=2, options=["--again", "1", "--regions", "3"]), 4 * 20000)
        self.expect_far("shm")
        self.assertEqual(self.pager.log().count("process_joined"), 3, self.pager.log())

    def test_without_a_memory_node_it_is_told_so(self):
        self.start(nodes=0)
        status, output = self.guest(pages=64).finish(60)
        self.assertEqual(status, 2)
        self.assertIn("error", json.loads(output))

    def test_two_machines_have_one_pager(self):
        self.start("--stay", local=4 * MIB)
        guests = [self.guest(pages=4096, seed=seed, options=["--regions", str(seed)]) for seed in (1, 2)]
        for guest in guests:
            self.expect_right(guest, 2 * 20000)
        wait_until(lambda: self.pager.log().count("process_ended") == 2, "both have ended")
        self.expect_right(self.guest(pages=4096, seed=3), 2 * 20000)
        self.pager.kill(signal.SIGTERM)
        self.expect_pager_ended()
        self.assertEqual(len(self.all_stats()), 3)

    def test_local_memory_is_bounded(self):
        self.start(local=8 * MIB)
        guest = self.guest(options=["--pause"])
        self.say(guest, b"ready\n")
        guest.send(b"\n")
        self.say(guest, b"worked\n")
        memory = next(path for path in (f"/proc/{guest.pid}/fd/{fd}" for fd in os.listdir(f"/proc/{guest.pid}/fd"))
                      if os.readlink(path).startswith("/memfd:guest"))
        wait_until(lambda: os.stat(memory).st_blocks * 512 <= 8.4 * MIB, "what is more has left")
        guest.send(b"\n")
        self.expect_right(guest, 2 * 20000)

    def expect_refused(self, what, field, text):
        process = self.start_process([PROGRAM, self.socket, "1", "64", "10", "1", "--send", what])
        status, output = process.finish(60)
        self.assertEqual(status, 0, process.log())
        error = json.loads(output)["error"]
        self.assertEqual(error["field"], field, error)
        self.assertIn(text, error["text"])

    def test_what_is_wrong_is_named_and_others_are_served(self):
        self.start(local=2 * MIB)
        region = '{"base_host_virt_addr":%d,"size":%d,"offset":%d}'
        cases = [
            ("no-descriptors", "", "SCM_RIGHTS"), ("no-memfd", "", "SCM_RIGHTS"), ("no-userfaultfd", "", "no userfaultfd"),
            ("many-descriptors", "", "at most 8 memfds"), ("twice", "", "sent twice"),
            ("other-file", "", "neither a memfd"), ("read-only", "", "reading and writing"), ("sealed", "", "F_SEAL_WRITE"),
            ("api", "", "UFFDIO_API was not called"), ("events", "", "without UFFD_FEATURE_EVENT_*"),
            ("features", "", "MINOR_SHMEM"), ("unregistered", "", "UFFDIO_REGISTER"), ("modes", "", "UFFDIO_REGISTER"),
            ("dofork", "", "MADV_DONTFORK"), ("second-mapping", "", "is in no region"),
            ("long", "", "more than 65536 bytes"), ("trailing", "", "send one line"), ("torn", "", "closed the socket"),
            ("text:", "", "JSON"), ("text:{}", "regions", "array"), ("text:[]", "regions", "none was sent"),
            ("text:[[[[[[[[[[[[[[[[[[[[", "", "deeper"), ("text:[7]", "regions[0]", "object"),
            ("text:[" + region % (4097, 4096, 0) + "]", "regions[0].base_host_virt_addr", "whole 4 KiB pages"),
            ("text:[" + region % (4096, 1 << 63, 0) + "]", "regions[0].size", ""),
            ("text:[" + region % (1 << 20, 4096, 1 << 40) + "]", "regions[0].size", "ends behind"),
            ("text:[" + region % (1 << 20, 4096, 0) + "," + region % (1 << 21, 4096, 0) + "]", "regions[1]", "overlaps"),
            ("text:[" + region % (1 << 20, 4096, 0) + "]", "", "is in no region"),
            ('text:[{"size":4096,"offset":0}]', "regions[0].base_host_virt_addr", ""),
            ('text:[{"base_host_virt_addr":4096,"size":4096,"offset":0,"memory":1}]', "regions[0].memory", "only 1 memfds"),
            ('text:[{"base_host_virt_addr":4096,"size":4096,"offset":0,"page_size":2097152}]', "regions", "huge pages")]
        for case in cases:
            with self.subTest(case[0]):
                self.expect_refused(*case)
        self.expect_right(self.guest(pages=2048), 2 * 20000)
        self.assertEqual(self.pager.log().count("share: refused"), len(cases))

    def test_process_of_another_user_is_refused(self):
        self.start(local=2 * MIB)
        self.assertEqual(stat.S_IMODE(os.stat(self.socket).st_mode), 0o600)
        os.chmod(self.folder, 0o755)
        with self.assertRaises(PermissionError):
            connect_as_nobody(self.socket)
        os.chmod(self.socket, 0o666)
        error = json.loads(connect_as_nobody(self.socket))["error"]
        self.assertEqual(error["text"], "user 65534 is not the one of this farpage share")
        self.assertIn(f"share: refused pid={os.getpid()} ", self.pager.log())
        self.expect_right(self.guest(pages=2048), 2 * 20000)

    def test_message_in_parts_is_taken(self):
        self.start(local=2 * MIB)
        self.expect_right(self.guest(pages=2048, options=["--send", "slow"]), 2 * 20000)

    def test_process_that_misses_others_is_told_so(self):
        self.start("--processes", "2")
        process = self.guest(pages=64)
        wait_until(lambda: "share: waiting" in self.pager.log(), "it waits for the other one")
        self.pager.kill(signal.SIGTERM)
        status, output = process.finish(60)
        self.assertEqual(status, 2)
        self.assertIn("farpage share ends", json.loads(output)["error"]["text"])
        self.expect_pager_ended()

    def test_told_to_end_it_brings_all_memory_back(self):
        self.start("--processes", "2")
        guest = self.guest(processes=2, rounds=200000)
        wait_until(lambda: "process_joined" in self.pager.log(), "they are served")
        wait_until(lambda: self.far_pages() > 1000, "much of it is away")
        self.pager.kill(signal.SIGTERM)
        self.expect_pager_ended()
        self.assertIsNone(guest.popen.poll(), "they work on")
        self.expect_right(guest, 4 * 200000)
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def far_pages(self):
        regions = json.loads(self.get("/v1/regions"))["regions"]
        return sum(region["counters"].get("farpage_remote_bytes", 0) for region in regions) // PAGE

    def test_killed_engine_is_replaced(self):
        self.start("--processes", "2")
        rounds = scaled(75_000, 300_000)
        guest = self.guest(processes=2, rounds=rounds, options=["--lifeline", "--walk"])
        wait_until(lambda: "process_joined" in self.pager.log(), "they are served")
        for kill in range(1, scaled(4, 6)):
            wait_until(lambda: engine_of(self.pager.pid) is not None, "there is an engine")
            os.kill(engine_of(self.pager.pid), signal.SIGKILL)
            wait_until(lambda n=kill: self.pager.log().count("share: taken_over") == n, "another one goes on")
        self.assertIsNone(guest.popen.poll(), "the engines were killed while they work")
        self.expect_right(guest, 4 * rounds)
        self.expect_pager_ended()

    def test_killed_pager_kills_those_that_asked_for_it(self):
        self.start("--processes", "2")
        guest = self.guest(processes=2, rounds=10 ** 9, options=["--lifeline"])
        wait_until(lambda: "process_joined" in self.pager.log(), "they are served")
        self.pager.kill()
        status, _ = guest.finish(60)
        self.assertEqual(status, 128 + signal.SIGKILL)

    def test_what_cannot_be_brought_back_is_not_left_alone(self):
        self.start("--fault-deadline", "1s")
        guest = self.guest(options=["--pause"])
        self.say(guest, b"ready\n")
        guest.send(b"\n")
        self.say(guest, b"worked\n")
        self.cluster[1][0].end()
        self.pager.kill(signal.SIGTERM)
        wait_until(lambda: "not_released" in self.pager.log(), "some pages are lost")
        self.assertNotIn(state_of(guest.pid), "XZ")
        self.pager.kill(signal.SIGTERM)
        self.assertEqual(guest.popen.wait(60), -signal.SIGKILL)
        self.assertEqual(self.pager.finish(60)[0], 1, self.pager.log())

    def test_lost_page_is_a_bus_error_and_a_replica_prevents_it(self):
        for replicas, expected in ((2, 0), (1, 128 + signal.SIGBUS)):
            with self.subTest(replicas):
                self.start("--replicas", str(replicas), "--fault-deadline", "2s", nodes=replicas, transport="tcp")
                guest = self.guest(rounds=100000, options=["--pause"])
                self.say(guest, b"ready\n")
                guest.send(b"\n")
                wait_until(lambda: self.far_pages() > 1000, "much of it is away")
                self.cluster[1][0].end()
                if expected == 0:
                    self.say(guest, b"worked\n")
                    guest.send(b"\n")
                    self.expect_right(guest, 2 * 100000)
                else:
                    self.assertEqual(guest.finish(120)[0], expected, guest.log())
                self.expect_pager_ended()


if __name__ == "__main__":
    unittest.main()
