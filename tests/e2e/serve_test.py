#!/usr/bin/env python3
"""`farpage serve` on its host: who may connect, and how much memory its cache takes."""
import os
import socket
import stat
import unittest

from cluster import FARPAGE, MIB, PATIENCE, Sampler, Service, connect_as_nobody, engine_of, resident_bytes
from snapshot_base import GUEST, PAGE, SnapshotTest

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
# A userfaultfd for faults of the kernel takes this right.
MAY_PAGE = ["--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"]


class Serve(SnapshotTest):
    def guest_of_nobody(self, file):
        os.chmod(self.folder, 0o755)
        return self.finish_guest(self.start_process([*AS_NOBODY, *MAY_PAGE, GUEST, self.socket, file]))

    @unittest.skipIf(os.geteuid() != 0, "other users need root")
    def test_vmm_of_another_user_is_refused(self):
        file = self.start(size=4 * MIB)
        self.assertEqual(stat.S_IMODE(os.stat(self.socket).st_mode), 0o600)
        os.chmod(self.folder, 0o755)
        with self.assertRaises(PermissionError):
            connect_as_nobody(self.socket)
        os.chmod(self.socket, 0o666)
        self.assertEqual(connect_as_nobody(self.socket), b"", "it is closed")
        self.log_has(f'refused socket={self.socket} pid={os.getpid()} reason="')
        self.assertIn(f"a process of user {NOBODY}: see --allow-uid", self.server.log())
        self.expect_right(self.guest(file), 1024)
        sessions = self.stats(1)["sessions"]
        self.assertEqual((sessions["refused"], sessions["started"]), (1, 1))

    @unittest.skipIf(os.geteuid() != 0, "other users need root")
    def test_vmm_of_an_allowed_user_is_served(self):
        file = self.start(size=4 * MIB, serve_options=["--allow-uid", str(NOBODY)])
        found = os.stat(self.socket)
        self.assertEqual((found.st_uid, stat.S_IMODE(found.st_mode)), (NOBODY, 0o600))
        self.expect_right(self.guest_of_nobody(file), 1024)
        self.expect_right(self.guest(file), 1024)
        self.assertEqual(self.stats(2)["sessions"]["refused"], 0)

    @unittest.skipIf(os.geteuid() != 0, "other users need root")
    def test_other_users_are_for_root_to_allow(self):
        """Who is not root could not kill their VMMs."""
        self.start_cluster(transport="tcp")
        self.push(self.make_file("guest.mem", 4 * MIB))
        folder = self.path("nobody")
        os.chmod(self.folder, 0o755)
        os.mkdir(folder)
        os.chown(folder, NOBODY, -1)
        serve = ["serve", "--image", "vm", "--coordinator", self.url, "--socket"]
        at = os.path.join(folder, "refused.sock")
        refused = self.start_process([*AS_NOBODY, FARPAGE, *serve, at, "--allow-uid", "1"])
        self.assertEqual(refused.finish(60)[0], 1, refused.log())
        self.assertIn(f"giving {at} to user 1: Operation not permitted", refused.log())
        self.assertFalse(os.path.exists(at))
        at = os.path.join(folder, "vm.sock")
        self.server = self._owned(Service([*serve, at], self._log("serve"), AS_NOBODY))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(at)
            self.assertEqual(connection.recv(1), b"", "it is closed")
        self.log_has(f"a process of user 0, which user {NOBODY} may not kill: run farpage serve as root")

    def grown(self, name, file, cache, count):
        """How much more memory the engine had while guests touched all of theirs at once, and its figures."""
        self.server = self.serve("vm", name=name, cache=cache)
        engine = engine_of(self.server.pid)
        before = resident_bytes(engine)
        guests = [self.waiting_guest(file, "--seed", str(seed + 1), "--threads", "1") for seed in range(count)]
        with Sampler(lambda: resident_bytes(engine)) as most:
            for guest in guests:
                guest.send(b"\n")
            for guest in guests:
                self.expect_right(self.finish_guest(guest), os.path.getsize(file) // PAGE)
        print(f"{cache // MIB} MiB of cache: {(most.most - before) / MIB:.1f} MiB more")
        return most.most - before, self.stats(count)

    def test_cache_smaller_than_its_image_stays_within_its_bound(self):
        self.start_cluster(transport="tcp")
        file = self.make_file("guest.mem", 16 * MIB, holes=0, zero_share=0)
        self.push(file)
        small, whole = 4 * MIB // PAGE, 16 * MIB // PAGE
        grown, stats = self.grown("small.sock", file, 4 * MIB, count=8)
        self.assertEqual(stats["cache"]["frames"], small)
        self.assertLessEqual(stats["cache"]["pages"], small)
        self.assertGreater(stats["cache"]["evicted"], whole - small)
        self.assertEqual(stats["faults"]["lost"], 0)
        self.assertLess(grown, 8 * MIB)
        # One with room for the image takes more: it would have been seen.
        grown, stats = self.grown("large.sock", file, 64 * MIB, count=1)
        self.assertEqual((stats["cache"]["pages"], stats["cache"]["evicted"]), (whole, 0))
        self.assertGreater(grown, 12 * MIB)


if __name__ == "__main__":
    unittest.main()
