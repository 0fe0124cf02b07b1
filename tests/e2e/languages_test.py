"""Interpreters, virtual machines and compiled languages with their own memory management."""
import os
import subprocess
import unittest

from cluster import BUILD
from verifier import FORM, PATIENCE, Verifier, scaled

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")


def source(name):
    return os.path.join(PROGRAMS, name)


class Languages(Verifier):
    def build(self, *command, environment=None):
        built = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False,
                               env={**os.environ, **(environment or {})})
        self.assertEqual(built.returncode, 0, built.stderr)

    def perl(self, transport):
        self.compare([self.program("perl"), source("hashes.pl"), str(scaled(600_000, 3_000_000, 5_000))], transport,
                     local="100M" if FORM == "short" else None)

    def test_perl_over_shm(self):
        self.perl("shm")

    def test_perl_over_tcp(self):
        self.perl("tcp")

    def ruby(self, transport):
        self.compare([self.program("ruby"), source("forks.rb"), str(scaled(80_000, 1_000_000))], transport)

    def test_ruby_over_shm(self):
        self.ruby("shm")

    def test_ruby_over_tcp(self):
        self.ruby("tcp")

    def lua(self, transport):
        self.compare([self.program("lua5.4"), source("tables.lua"), str(scaled(40_000, 2_000_000))],
                     transport)

    def test_lua_over_shm(self):
        self.lua("shm")

    def test_lua_over_tcp(self):
        self.lua("tcp")

    def php(self, transport):
        self.compare([self.program("php"), source("arrays.php"), str(scaled(30_000, 1_000_000))], transport)

    def test_php_over_shm(self):
        self.php("shm")

    def test_php_over_tcp(self):
        self.php("tcp")

    def java_with(self, collector, transport, local=None):
        self.build(self.program("javac"), "-d", self.folder, source("Collected.java"))
        heap = scaled(96, 1024)
        self.compare([self.program("java"), f"-XX:+Use{collector}GC", f"-Xmx{heap}m", "-Xshare:off", "-cp",
                      self.folder, "Collected", str(scaled(24_000, 300_000))], transport, local=local, lend="4G")

    def test_java_g1_over_shm(self):
        self.java_with("G1", "shm")

    def test_java_g1_over_tcp(self):
        self.java_with("G1", "tcp")

    def test_java_parallel_over_shm(self):
        self.java_with("Parallel", "shm")

    def test_java_parallel_over_tcp(self):
        self.java_with("Parallel", "tcp")

    def test_java_zgc_over_shm(self):
        self.java_with("Z", "shm", local="4M")

    def test_java_zgc_over_tcp(self):
        self.java_with("Z", "tcp", local="4M")

    def go(self, name):
        program = self.path(name)
        self.build(self.program("go"), "build", "-o", program, source(f"{name}.go"),
                   environment={"CGO_ENABLED": "1", "GO111MODULE": "off", "GOFLAGS": "",
                                "GOCACHE": os.path.join(BUILD, "tests", "go-cache")})
        return program

    def go_with_cgo(self, transport):
        self.compare([self.go("heaps"), str(scaled(60_000, 2_000_000))], transport)

    def test_go_with_cgo_over_shm(self):
        self.go_with_cgo("shm")

    def test_go_with_cgo_over_tcp(self):
        self.go_with_cgo("tcp")

    def r(self, transport):
        self.compare([self.program("R"), "--vanilla", "--no-echo", "-f", source("vectors.R"), "--args",
                      str(scaled(60_000, 2_000_000))], transport, environment={"OPENBLAS_NUM_THREADS": "1"})

    def test_r_over_shm(self):
        self.r("shm")

    def test_r_over_tcp(self):
        self.r("tcp")

    def sbcl(self, transport):
        self.compare([self.program("sbcl"), "--script", source("lists.lisp"),
                      str(scaled(100_000, 2_000_000))], transport)

    def test_sbcl_over_shm(self):
        self.sbcl("shm")

    def test_sbcl_over_tcp(self):
        self.sbcl("tcp")

    def ocaml(self, transport):
        self.compare([self.program("ocaml"), source("trees.ml"), str(scaled(30_000, 2_000_000))], transport)

    def test_ocaml_over_shm(self):
        self.ocaml("shm")

    def test_ocaml_over_tcp(self):
        self.ocaml("tcp")


if __name__ == "__main__":
    unittest.main()
