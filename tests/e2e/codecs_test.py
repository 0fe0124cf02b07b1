"""Encoders and archivers with large windows: the same output as in a plain run."""
import os
import random
import subprocess
import unittest

from verifier import FORM, PATIENCE, Verifier, scaled


class Codecs(Verifier):
    def make_input(self, kibibytes):
        """Words that repeat at short and at long distances."""
        source = random.Random(7)
        words = [source.randbytes(source.randrange(2, 12)).hex().encode() for _ in range(4000)]
        part = b" ".join(source.choices(words, k=kibibytes * 1024 // 30))
        with open(self.path("input"), "wb") as file:
            file.write(part + b"\n" + source.randbytes(1 << 20) + part)
        return os.path.getsize(self.path("input"))

    def expect_input(self, unpacked):
        with open(self.path("input"), "rb") as file:
            self.assertTrue(unpacked == file.read())

    def zstd(self, transport):
        self.make_input(scaled(1_500, 100_000))
        packed = self.compare([self.program("zstd"), "-9", "--long=27", "--single-thread", "-c",
                               self.path("input")], transport, local="14M" if FORM == "short" else None)
        with open(self.path("packed"), "wb") as file:
            file.write(packed)
        # Most of its memory is the window.
        self.expect_input(self.far([self.program("zstd"), "-d", "--long=27", "-c", self.path("packed")],
                                   transport, "4M"))

    def test_zstd_over_shm(self):
        self.zstd("shm")

    def test_zstd_over_tcp(self):
        self.zstd("tcp")

    def seven_zip(self, transport):
        self.make_input(scaled(600, 60_000))
        packed = self.compare([self.program("7z"), "a", "-txz", "-si", "-so", "-an", "-mx=9", "-mmt=1"], transport,
                              local="18M" if FORM == "short" else None, stdin=self.path("input"))
        with open(self.path("packed.xz"), "wb") as file:
            file.write(packed)
        self.expect_input(subprocess.run([self.program("7z"), "e", "-so", self.path("packed.xz")],
                                         capture_output=True, check=True, timeout=PATIENCE).stdout)

    def test_seven_zip_over_shm(self):
        self.seven_zip("shm")

    def test_seven_zip_over_tcp(self):
        self.seven_zip("tcp")

    def ffmpeg(self, transport):
        clip = f"testsrc2=size=1920x1080:rate=25:duration={scaled(1, 20)}"
        # The sums of the frames as encoded, and of the frames as they are decoded again.
        encoder = [self.program("ffmpeg"), "-hide_banner", "-loglevel", "error", "-f", "lavfi", "-i", clip,
                   "-c:v", "mpeg4", "-q:v", "4", "-threads", "2", "-bitexact"]
        self.compare([*encoder, "-f", "framemd5", "-"], transport, local="16M")

    def test_ffmpeg_over_shm(self):
        self.ffmpeg("shm")

    def test_ffmpeg_over_tcp(self):
        self.ffmpeg("tcp")


if __name__ == "__main__":
    unittest.main()
