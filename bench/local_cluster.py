"""A coordinator and nodes on this machine, for the benchmarks that are scripts."""
import json
import os
import shutil
import subprocess
import tempfile

MIB = 1 << 20


def size_of(text):
    """"512M" in bytes, as an argument of a command line."""
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]


class LocalCluster:
    """It ends what it has started, and removes its folder, when it is closed."""

    def __init__(self, build):
        self.build = build
        self.farpage = os.path.join(build, "farpage")
        self.folder = tempfile.mkdtemp(prefix="farpage-bench-")
        self.running = []
        coordinator = self.start([self.farpage, "coordinator", "--listen", "127.0.0.1:0", "--output", "json"])
        self.url = json.loads(coordinator.stdout.readline())["url"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.running):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, command, log=None):
        """`log`: the name of a file in its folder for standard error."""
        errors = open(self.path(log), "wb") if log else subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        if log:
            errors.close()
        self.running.append(process)
        return process

    def start_node(self, name, lend, transport, *more):
        """Returns when it lends."""
        node = self.start([self.farpage, "node", "--coordinator", self.url, "--name", name, "--lend", str(lend),
                           "--transports", transport, "--shm-socket", self.path(name + ".sock"), "--output", "json",
                           *more])
        node.stdout.readline()
        return node

    def end(self, process):
        self.running.remove(process)
        process.kill()
        process.wait()

    def said(self, log):
        with open(self.path(log), encoding="utf-8") as file:
            return file.read()

    def run(self, *arguments):
        """What this command of farpage prints."""
        ended = subprocess.run([self.farpage, *arguments], capture_output=True, text=True)
        if ended.returncode != 0:
            raise RuntimeError(f"farpage {' '.join(arguments)}: exit {ended.returncode}\n{ended.stderr}")
        return ended.stdout


class LineProgram:
    """A program of bench/ that answers a line with a JSON object."""

    def __init__(self, cluster, command, log):
        self.process = cluster.start(command, log)
        assert self.process.stdout.readline() == b"ready\n", cluster.said(log)

    def ask(self, line):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer.get("wrong", 0) == 0, answer
        return answer
