"""Programs on libfarpage: examples/kv with values on real nodes, and an installation."""
import json
import os
import re
import signal
import subprocess
import sys
import unittest

from cluster import BUILD, MIB, PATIENCE, EndToEnd, Process, wait_until
from host_pager_base import HostPagerTest

KV = os.path.join(BUILD, "kv")
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Kv(EndToEnd):
    """kv checks every value against its key and version."""

    def start_kv(self, command, *options, stdin=subprocess.DEVNULL):
        return self._owned(Process([KV, command, "--coordinator", self.url, *options],
                                   self._log("kv"), stdin=stdin))

    def bench(self, transport, *options):
        self.start_cluster(transport=transport)
        process = self.start_kv("bench", "--transport", transport, "--output", "json", *options)
        status, output = process.finish()
        self.assertEqual(status, 0, process.log())
        result = json.loads(output)
        phases = {phase["name"]: phase for phase in result["phases"]}
        self.assertEqual(list(phases), ["fill", "warm-up", "read", "verify", "delete"])
        for phase in phases.values():
            self.assertEqual(phase["wrong"], 0, result)
        for name in ("read", "verify", "delete"):
            self.assertEqual(phases[name]["verified"], phases[name]["operations"], result)
        self.assertGreater(result["value_bytes"], 3 * result["local_bytes"])
        self.assertGreater(result["evicted_written"] * 4096, result["value_bytes"] / 2)
        self.assertGreater(result["faults_remote"] + result["prefetched"], 1000)
        self.assertEqual(result["faults_failed"], 0)
        self.assertEqual(result["allocated_after_delete"], 0)
        self.assertEqual(result["transports"], transport)
        return phases

    SMALL = ("--local", "4M", "--values", "3000", "--reads", "3000")

    def test_every_value_verifies_over_shm(self):
        phases = self.bench("shm", *self.SMALL)
        self.assertEqual(phases["verify"]["verified"], 3000)

    def test_every_value_verifies_over_tcp(self):
        self.bench("tcp", *self.SMALL, "--threads", "2")

    def test_every_value_verifies_over_shm_with_faults_in_the_handler(self):
        self.bench("shm", *self.SMALL, "--faults", "handler", "--threads", "2")

    def test_every_value_verifies_over_tcp_with_faults_in_the_handler(self):
        self.bench("tcp", *self.SMALL, "--faults", "handler")

    def test_values_of_64_mib(self):
        self.bench("shm", "--local", "16M", "--values", "2", "--value-bytes", "64M", "--reads", "4")

    def test_values_are_put_got_deleted_and_expire(self):
        self.start_cluster()
        process = self.start_kv("shell", "--local", "1M", "--size", "16M", stdin=subprocess.PIPE)
        output, _ = process.popen.communicate(
            b"put a one\nput b two 0\nget a\nget b\ndelete a\nget a\nstats\n", PATIENCE)
        self.assertEqual(output.decode().splitlines(),
                         ["stored", "stored", "value one", "none", "deleted", "none",
                          "keys 1 value_bytes 3"], process.log())

    def lose_the_node(self, faults):
        _, nodes = self.start_cluster(transport="tcp")
        process = self.start_kv("bench", "--transport", "tcp", "--local", "4M", "--values", "3000",
                                "--reads", "100000000", "--faults", faults)
        # If every resident page were dirty, it would end for lack of room: some resident pages must be
        # clean.
        wait_until(lambda: "warm-up" in process.log(), "every value is stored")
        read = self.remote_faults(process)
        wait_until(lambda: self.remote_faults(process) > read + 2048, "values are read")
        nodes[0].end()
        status, output = process.finish()
        self.assertEqual(status, 128 + signal.SIGBUS, process.log())
        self.assertEqual(output, b"")
        self.assertIn("page_lost", process.log())

    def remote_faults(self, process):
        self.assertIsNone(process.popen.poll(), process.log())
        return sum(int(count) for count in re.findall(
            r'^farpage_faults_total{.*kind="remote".*} (\d+)', self.get("/metrics"), re.M))

    def test_a_lost_node_is_sigbus_and_never_a_wrong_value(self):
        self.lose_the_node("worker")

    def test_a_lost_node_is_sigbus_in_the_handler_too(self):
        self.lose_the_node("handler")


class LibraryInHostsPager(HostPagerTest):
    """Regions that `farpage pager` serves."""

    def test_the_calls_of_a_region(self):
        self.start_pager(local="64M")
        done = subprocess.run([os.path.join(BUILD, "tests", "hosted_region"), self.socket], timeout=PATIENCE,
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "right\n", ""), self.pager.log())
        wait_until(lambda: not self.regions(), "the regions are given back")
        self.assertEqual(self.status()["runs"], [])

    def test_every_value_verifies(self):
        self.start_pager(local="64M")
        process = self._owned(Process([KV, "bench", "--pager", self.socket, "--local", "8M", "--values", "4000",
                                       "--reads", "4000", "--output", "json"], self._log("kv")))
        wait_until(lambda: self.status()["runs"], "the pager serves it")
        [run] = self.status()["runs"]
        self.assertEqual((run["program"], run["pid"], run["local_bytes"]), ("kv", process.pid, 8 * MIB))
        status, output = process.finish()
        self.assertEqual(status, 0, process.log())
        result = json.loads(output)
        self.assertEqual([phase["wrong"] for phase in result["phases"]], [0] * 5)
        self.assertGreater(result["faults_remote"] + result["prefetched"], 1000)
        wait_until(lambda: not self.regions(), "the region is given back")


class Installed(EndToEnd):
    """An installation elsewhere by `cmake --install` is enough to build and run programs."""

    def setUp(self):
        super().setUp()
        self.prefix = self.path("prefix")
        self.run_tool("cmake", "--install", BUILD, "--prefix", self.prefix)

    def run_tool(self, *arguments, **environment):
        result = subprocess.run(arguments, env={**os.environ, **environment}, timeout=240,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        text = result.stdout.decode(errors="replace")
        self.assertEqual(result.returncode, 0, text)
        return text

    def library_folder(self, *more):
        for folder in ("lib", "lib64"):
            path = os.path.join(self.prefix, folder, *more)
            if os.path.exists(path):
                return path
        raise AssertionError(f"{more} was not installed")

    def build_with_cmake(self, example):
        build = self.path(example)
        self.run_tool("cmake", "-S", os.path.join(SOURCE, "examples", example), "-B", build,
                      "-DCMAKE_PREFIX_PATH=" + self.prefix, "-DCMAKE_BUILD_TYPE=Debug")
        self.run_tool("cmake", "--build", build)
        return build

    def test_examples_find_it_with_cmake(self):
        text = self.run_tool(os.path.join(self.build_with_cmake("region"), "region_example"))
        self.assertRegex(text, r"sorted=yes remote_faults=[1-9]\d* .* over loop")
        text = self.run_tool(os.path.join(self.build_with_cmake("kv"), "kv"), "bench", "--values",
                             "1000", "--local", "1M", "--slab", "2M", "--reads", "500")
        self.assertRegex(text, r"(?m)^verify +1000 .* 1000 +0$")

    def test_the_documents_example_builds_with_pkg_config(self):
        with open(os.path.join(SOURCE, "docs", "library.md"), encoding="utf-8") as file:
            code = re.search(r"```cpp\n(.*?)```", file.read(), re.S).group(1)
        with open(os.path.join(SOURCE, "examples", "region", "main.cc"), encoding="utf-8") as file:
            self.assertEqual(code, file.read(), "docs/library.md and examples/region/main.cc differ")
        with open(self.path("main.cc"), "w", encoding="utf-8") as file:
            file.write(code)
        packages = {"PKG_CONFIG_PATH": self.library_folder("pkgconfig")}
        flags = self.run_tool("pkg-config", "--cflags", "--libs", "farpage", **packages).split()
        program = self.path("program")
        self.run_tool("c++", "-std=c++20", self.path("main.cc"), "-o", program, *flags)
        text = self.run_tool(program, LD_LIBRARY_PATH=self.library_folder())
        self.assertIn("sorted=yes", text)

    def test_the_library_shows_its_own_interface_alone(self):
        names = self.run_tool("nm", "-DC", "--defined-only", self.library_folder("libfarpage.so"))
        ours = [line.split(maxsplit=2)[2] for line in names.splitlines() if "farpage::" in line]
        self.assertTrue(ours)
        for name in ours:
            self.assertRegex(name, r"farpage::Region(Memory|Options|Error|Result|Stats|MemoryStats)?\b")
        # The public header needs none of our dependencies.
        for folder, _, files in os.walk(os.path.join(self.prefix, "include")):
            for name in files:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    self.assertNotIn('#include "', file.read())

    def test_the_installed_binary_finds_its_shim(self):
        if os.geteuid() != 0:
            self.skipTest("needs the right to use userfaultfd")
        text = self.run_tool(os.path.join(self.prefix, "bin", "farpage"), "run", "--lend", "128M",
                             "--", sys.executable, "-c", "print('far')")
        self.assertIn("far", text)


if __name__ == "__main__":
    unittest.main()
