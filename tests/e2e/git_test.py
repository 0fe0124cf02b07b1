"""git repacks a repository in far memory: the same objects as in a plain repack, and fsck succeeds."""
import os
import random
import shutil
import subprocess
import unittest

from verifier import PATIENCE, Verifier, scaled

SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


class Git(Verifier):
    def git(self, *arguments, stdin=None):
        return subprocess.run([self.program("git"), "-C", self.path("repository"), *arguments],
                              input=stdin, capture_output=True, check=True, timeout=PATIENCE,
                              env={**os.environ, **SETTINGS}).stdout

    def make_history(self):
        """Commits of a few large files that change a little each time, as loose objects and small packs."""
        source = random.Random(9)
        lines = [[source.randbytes(30).hex().encode() for _ in range(6000)] for _ in range(8)]
        stream = bytearray()
        commits = scaled(20, 1000, 8)
        for commit in range(commits):
            stream += (b"commit refs/heads/main\ncommitter A <a@example.com> %d +0000\n"
                       b"data 1\nc\n" % (1700000000 + commit))
            for number in source.sample(range(8), 3):
                for _ in range(100):
                    lines[number][source.randrange(6000)] = source.randbytes(30).hex().encode()
                text = b"\n".join(lines[number])
                stream += b"M 100644 inline file-%d\ndata %d\n%s\n" % (number, len(text), text)
        os.mkdir(self.path("repository"))
        self.git("init", "-q", "-b", "main")
        self.git("-c", "fastimport.unpackLimit=100000", "fast-import", "--quiet", stdin=bytes(stream))
        self.git("branch", "side", f"main~{commits // 2}")

    def verify(self, transport):
        self.make_history()
        shutil.copytree(self.path("repository"), self.path("untouched"))
        command = [self.program("git"), "-C", self.path("repository"), "-c", "gc.autoDetach=false",
                   "-c", "pack.threads=2", "gc", "--quiet", "--aggressive", "--prune=now"]
        _, peak = self.plain(command, environment=SETTINGS)
        objects = self.git("cat-file", "--batch-all-objects", "--batch-check")
        shutil.rmtree(self.path("repository"))
        os.rename(self.path("untouched"), self.path("repository"))

        self.start_cluster(transport=transport, lend="2G")
        self.far(command, transport, self.quarter(peak), environment=SETTINGS)
        self.expect_real_paging(transport)
        self.assertIn(b"count: 0\n", self.git("count-objects", "-v"))  # of loose objects
        self.git("fsck", "--full", "--strict")
        self.assertEqual(self.git("cat-file", "--batch-all-objects", "--batch-check"), objects)

    def test_git_gc_over_shm(self):
        self.verify("shm")

    def test_git_gc_over_tcp(self):
        self.verify("tcp")


if __name__ == "__main__":
    unittest.main()
