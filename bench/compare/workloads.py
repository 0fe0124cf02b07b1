"""The programs of `./dev bench programs`, at --scale 1 with a peak of at least 512 MiB each.

  sort       sort(1) of 1.2 million lines of 400 characters, in memory
  sqlite     sqlite3 builds a table of 680,000 rows and an index, then counts, joins, updates and counts again
  redis      redis-server under GETs and SETs of 1 KiB values, keys by Zipf's law (cache_zipf.cc)
  memcached  memcached under the same
  btree      lookups, updates and scans by Zipf's law in a B+ tree of 5.4 million records (btree_zipf.cc)
  join       a hash join of 15.5 million rows with as many others (hash_join.cc)
  kmeans     k-means in numpy (kmeans.py)
  scan       20 passes in numpy over an array that is changed in place (scan_in_place.py)
  matrix     numpy on one square matrix: by blocks, rows, columns, and products with vectors (matrix.py)
  compile    gcc -O1 of one generated file of 25 MB: a table and 2,000 functions
  xz         xz -9 of 60 MiB, pieces of 4 MiB of random bytes with changes
  java       maps, trees and lists of 1 million objects in OpenJDK with the serial collector (Collections.java)
  graph      a breadth-first search and a walk through dictionaries and lists in Python (graph_walk.py)

run(place) runs one in a Place (systems.py) and returns a Result. The output of the run in a system must be
that of the plain run; redis, memcached, btree, join and java check their data themselves, too.
"""
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import typing

from systems import BUILD, Killed

HERE = pathlib.Path(__file__).resolve().parent
NAMES = [line.split()[0] for line in __doc__.splitlines() if line.startswith("  ") and line[2] != " "]
PATIENCE = 1200  # seconds
SQL = """
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price INTEGER, note BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
INSERT INTO item SELECT i, 'name-' || (i * 7919 % ({rows} * 2)), i * 31 % 1009,
  hex(i * 2654435761) || printf('%0300d', i) FROM n;
CREATE INDEX by_name ON item(name);
SELECT count(*), sum(price), sum(length(note)), max(name) FROM item;
SELECT count(*) FROM item a JOIN item b ON b.name = 'name-' || a.id WHERE a.price < 100;
UPDATE item SET note = note || 'x' WHERE price % 5 = 0;
SELECT count(*), sum(length(note)) FROM item;
"""


class Late(Exception):
    """Not done within PATIENCE."""


class Result(typing.NamedTuple):
    rates: dict  # of each thing that the program does; "run": the reciprocal of its run time
    output: object  # to be compared with the plain run's


class Watched:
    """A process that is killed when it takes longer than PATIENCE, or when this script is interrupted."""

    def __init__(self, place, words, output):
        self.place, self.late = place, threading.Event()
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(place.command(words), stdout=output, stderr=self.errors,
                                        env=place.environment)
        place.watch(self.process)
        self.watch = threading.Timer(PATIENCE, self.give_up)
        self.watch.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.watch.cancel()
        if self.process.poll() is None:
            self.end()
            self.process.wait()
        self.errors.close()

    def end(self):
        self.process.kill()  # in a system, that may be a pager, which is not in the group
        self.place.group.kill()

    def give_up(self):
        self.late.set()
        self.end()

    def finish(self, name):
        status = self.process.wait()
        if self.late.is_set():
            raise Late(name)
        if self.place.group.kills() > 0:
            raise Killed(name)
        self.errors.seek(0)
        if status != 0:
            raise RuntimeError(f"{name}: status {status}: {self.errors.read()[-2000:].decode(errors='replace')}")


class Command:
    """A program that runs to its end. Its output goes through a pipe: the pages of a file would count as its memory."""

    def __init__(self, name, words):
        self.name, self.words = name, words

    def run(self, place):
        begin = time.monotonic()
        with Watched(place, self.words, subprocess.PIPE) as watched:
            digest = hashlib.sha256()
            while part := watched.process.stdout.read(1 << 20):
                digest.update(part)
            watched.finish(self.name)
        return Result({"run": 1 / (time.monotonic() - begin)}, digest.hexdigest())


class Cache:
    """A server under the load of cache_zipf."""

    def __init__(self, name, words, path, keys, seconds):
        self.name, self.words, self.path = name, words, path
        self.load = [BUILD / "cache_zipf", name, path, str(keys), "1024", str(seconds)]

    def run(self, place):
        pathlib.Path(self.path).unlink(missing_ok=True)
        with Watched(place, self.words, subprocess.DEVNULL) as server:
            self.wait_for_socket(server.process)
            try:
                done = subprocess.run(self.load, capture_output=True, text=True, timeout=PATIENCE, check=False)
            except subprocess.TimeoutExpired as error:
                raise Late(self.name) from error
            server.process.send_signal(signal.SIGTERM)  # nothing happens if it has ended
            server.finish(self.name)
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: status {done.returncode}: {done.stdout}{done.stderr}")
        found = json.loads(done.stdout)
        return Result({"GET": found["gets_per_s"], "SET": found["sets_per_s"]}, found["wrong"])

    def wait_for_socket(self, server):
        for _ in range(1000):
            with socket.socket(socket.AF_UNIX) as connection:
                if connection.connect_ex(self.path) == 0 or server.poll() is not None:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{self.name} does not listen")


def program(name):
    return shutil.which(name, path="/usr/bin:/bin") or sys.exit(f"{name} is not installed: ./dev setup programs")


def write_lines(path, scale):
    source = random.Random(1)
    with open(path, "wb") as file:
        for _ in range(int(1_200_000 * scale)):
            file.write(source.randbytes(200).hex().encode() + b"\n")


def write_source(path, scale):
    source = random.Random(1)
    functions, rows = int(2000 * scale) + 1, int(330_000 * scale) + 1
    with open(path, "w", encoding="ascii") as file:
        file.write("typedef struct { int a, b; const char *name; double weight; } row;\n")
        for i in range(functions):
            file.write(f"static int f{i}(const row *rows, int n) {{ int s = {i}; for (int i = 0; i < n; ++i) {{ "
                       f"s += rows[i].a * {source.randrange(1, 999)} ^ rows[i].b; "
                       f"if (s & {1 << source.randrange(20)}) s -= (int)rows[i].weight; "
                       f"else s = s * {source.randrange(3, 99)} + {i}; }} return s; }}\n")
        file.write("const row table[] = {\n")
        for i in range(rows):
            file.write(f'{{ {source.randrange(1 << 30)}, {i}, "name-{i}", {source.randrange(1 << 20)} }},\n')
        file.write("};\nint (*const functions[])(const row *, int) = {\n")
        file.write(",\n".join(f"f{i}" for i in range(functions)) + "};\n")


def write_pieces(path, scale):
    """xz finds long matches in them, so that it is quick, but its tree takes as much memory as for any other data."""
    source = random.Random(1)
    base = source.randbytes(4 << 20)
    with open(path, "wb") as file:
        for _ in range(int(960 * scale) + 1):
            at = source.randrange(len(base) - (64 << 10))
            piece = bytearray(base[at:at + (64 << 10)])
            for _ in range(64):
                piece[source.randrange(len(piece))] = source.randrange(256)
            file.write(piece)


def make_cache(name, folder, scale):
    path = os.path.join(folder, f"{name}.socket")
    if name == "redis":
        # One binary with several names; the package of this name starts no service.
        server = os.path.join(folder, "redis-server")
        os.symlink(program("redis-check-rdb"), server)
        words = [server, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    else:
        words = [program("memcached"), "-s", path, "-m", str(int(2048 * scale) + 64), "-t", "2", "-u", "root"]
    return Cache(name, words, path, int(450_000 * scale) + 1, 4 if scale >= 0.5 else 1)


def make_java(folder, scale):
    subprocess.run([program("javac"), "-d", folder, HERE / "Collections.java"], check=True)
    heap = f"{int(700 * scale) + 16}m"
    return Command("java", [program("java"), "-XX:+UseSerialGC", "-Xshare:off", f"-Xmx{heap}", "-cp", folder,
                            "Collections", str(int(1_000_000 * scale) + 1)])


def make_programs(names, folder, scale):
    """Those with these names, and what they read, in the folder. It is in memory (/dev/shm), so that no page cache
    of input files is counted or reclaimed."""
    def path(name):
        return os.path.join(folder, name)

    def count(number):
        return str(int(number * scale) + 1)

    def with_input(write, words, name):
        write(path(name), scale)
        return Command(name, [*words, path(name)])

    def in_numpy(name, script, number):
        return Command(name, [program("python3"), HERE / script, number])

    makers = {
        "sort": lambda: with_input(write_lines, [program("sort"), "-S", "2G", "--parallel=1"], "sort"),
        "sqlite": lambda: Command("sqlite", [program("sqlite3"), ":memory:", SQL.format(rows=count(680_000))]),
        "redis": lambda: make_cache("redis", folder, scale),
        "memcached": lambda: make_cache("memcached", folder, scale),
        "btree": lambda: Command("btree", [BUILD / "btree_zipf", count(5_400_000), count(3_000_000)]),
        "join": lambda: Command("join", [BUILD / "hash_join", count(15_500_000)]),
        "kmeans": lambda: in_numpy("kmeans", "kmeans.py", count(840_000)),
        "scan": lambda: in_numpy("scan", "scan_in_place.py", count(68_000_000)),
        "matrix": lambda: in_numpy("matrix", "matrix.py", str(int(8200 * scale ** 0.5) + 64)),
        "compile": lambda: with_input(write_source, [program("gcc"), "-O1", "-S", "-x", "c", "-o", "-"], "compile"),
        "xz": lambda: with_input(write_pieces, [program("xz"), "-9", "-T1", "-c"], "xz"),
        "java": lambda: make_java(folder, scale),
        "graph": lambda: Command("graph", [program("python3"), HERE / "graph_walk.py", count(1_200_000),
                                           count(2_000_000)]),
    }
    return [makers[name]() for name in NAMES if name in names]
