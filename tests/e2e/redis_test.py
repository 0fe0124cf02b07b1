"""redis-server in far memory: its data, its files, and redis's own checks of both."""
import os
import random
import socket
import subprocess
import unittest

from cluster import wait_until
from verifier import PATIENCE, Verifier, peak_of, scaled

KEYS = scaled(12_000, 600_000, 4_000)


class Client:
    """The part of redis's protocol that the test needs: commands in batches, replies in order."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(path)
        self.replies = self.socket.makefile("rb")

    def close(self):
        self.replies.close()
        self.socket.close()

    def all(self, commands):
        request = bytearray()
        for command in commands:
            request += b"*%d\r\n" % len(command)
            for word in command:
                word = word if isinstance(word, bytes) else str(word).encode()
                request += b"$%d\r\n%s\r\n" % (len(word), word)
        self.socket.sendall(request)
        return [self._reply() for _ in commands]

    def __call__(self, *command):
        return self.all([command])[0]

    def _reply(self):
        line = self.replies.readline()
        kind, text = line[:1], line[1:-2]
        if kind == b"$":
            return None if text == b"-1" else self.replies.read(int(text) + 2)[:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(text))]
        if kind == b":":
            return int(text)
        if kind == b"+":
            return text
        raise AssertionError(f"redis says {line!r}")


class Redis(Verifier):
    def setUp(self):
        super().setUp()
        # One binary with several names. This package starts no service.
        self.server = self.path("redis-server")
        os.symlink(self.program("redis-check-rdb"), self.server)

    def start(self, folder, transport=None, local=None, *more):
        os.makedirs(self.path(folder), exist_ok=True)
        listen = self.path(folder + ".socket")
        command = [self.server, "--port", "0", "--unixsocket", listen, "--dir", self.path(folder),
                   "--save", "", "--enable-debug-command", "yes", *more]
        process = self.serve(command, listen, transport, local)
        client = Client(listen)
        self.addCleanup(client.close)
        wait_until(lambda: b"\r\nloading:0\r\n" in client("INFO", "persistence"), "redis has loaded")
        return process, client

    def fill(self, client):
        """Keys of several types, some overwritten, deleted or expired; every value is checked."""
        source = random.Random(11)
        values = {}
        for begin in range(0, KEYS, 500):
            batch = {b"key-%d" % i: source.randbytes(source.randrange(100, 1500))
                     for i in range(begin, begin + 500)}
            values.update(batch)
            client.all([("SET", *item) for item in batch.items()])
        for key in source.sample(sorted(values), KEYS // 5):
            values[key] = source.randbytes(source.randrange(10, 3000))
            client("SET", key, values[key])
        gone = source.sample(sorted(values), KEYS // 10)
        client.all([("DEL", key) for key in gone])
        for key in gone:
            del values[key]
        client.all([("HSET", f"hash-{i % 50}", f"field-{i}", i * 7919) for i in range(KEYS // 10)])
        client.all([("ZADD", "ranking", i * 31 % 1009, f"member-{i}") for i in range(KEYS // 10)])
        client.all([("RPUSH", f"list-{i % 20}", f"{i:0100}") for i in range(KEYS // 10)])
        return values

    def check(self, client, values):
        keys = sorted(values)
        for begin in range(0, len(keys), 500):
            some = keys[begin:begin + 500]
            self.assertEqual(client("MGET", *some), [values[key] for key in some])
        self.assertEqual(client.all([("HLEN", f"hash-{i}") for i in range(50)]), [KEYS // 500] * 50)
        self.assertEqual(client("ZCARD", "ranking"), KEYS // 10)

    def verify(self, transport):
        plain, client = self.start("plain")
        self.check(client, self.fill(client))
        digest = client("DEBUG", "DIGEST")
        local = self.quarter(peak_of(plain.pid))
        plain.end()

        self.start_cluster(transport=transport, lend="1G")
        far, client = self.start("far", transport, local)
        values = self.fill(client)
        self.check(client, values)
        benchmark = subprocess.run(
            [self.program("redis-benchmark"), "-s", self.path("far.socket"), "-q", "-n", str(scaled(3000, 100_000)), "-r",
             "1000000", "-d", "500", "-t", "get,lpop,sadd,hset,zadd"],
            capture_output=True, timeout=PATIENCE, check=True)
        self.assertNotIn(b"rror", benchmark.stdout + benchmark.stderr)
        client.all([("DEL", key) for key in client("KEYS", "*")
                    if key.startswith((b"my", b"element", b"zset"))])
        self.assertEqual(client("DEBUG", "DIGEST"), digest)
        latest = self.save(client, values)
        self.check(client, values)
        self.assertEqual(client("DEBUG", "DIGEST"), latest)
        far.kill(15)
        self.assertEqual(far.finish()[0], 0, far.log())
        self.expect_real_paging(transport)
        self.expect_saved("rdb", "dump.rdb", digest)
        self.expect_saved("aof", "appendonlydir/appendonly.aof.manifest", latest, "--appendonly", "yes")

    def save(self, client, values):
        """Two children write the state of their fork while the server goes on changing it."""
        self.assertIn(b"started", client("BGSAVE"))
        self.change(client, values, 0)
        self.expect_done(client, b"rdb_bgsave_in_progress", b"rdb_last_bgsave_status")
        client("CONFIG", "SET", "appendonly", "yes")  # a child rewrites the file
        self.change(client, values, 1)
        self.expect_done(client, b"aof_rewrite_in_progress", b"aof_last_bgrewrite_status")
        self.change(client, values, 2)
        return client("DEBUG", "DIGEST")

    @staticmethod
    def change(client, values, turn):
        some = sorted(values)[turn::5]
        for begin in range(0, len(some), 500):
            batch = some[begin:begin + 500]
            values.update({key: b"%d-%s" % (turn, key) * 20 for key in batch})
            client.all([("SET", key, values[key]) for key in batch])

    def expect_done(self, client, progress, status):
        def state():
            return dict(line.split(b":", 1) for line in client("INFO", "persistence").split(b"\r\n")
                        if b":" in line)
        wait_until(lambda: state()[progress] == b"0", progress.decode(), PATIENCE)
        self.assertEqual(state()[status], b"ok")

    def expect_saved(self, kind, file, digest, *more):
        """redis's own check of a file, and the data that a plain server loads from it."""
        checker = self.program(f"redis-check-{kind}")
        checked = subprocess.run([checker, self.path("far/" + file)], capture_output=True, text=True,
                                 timeout=PATIENCE, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        again, client = self.start("far", None, None, *more)
        self.assertEqual(client("DEBUG", "DIGEST"), digest)
        again.end()

    def test_redis_over_shm(self):
        self.verify("shm")

    def test_redis_over_tcp(self):
        self.verify("tcp")


if __name__ == "__main__":
    unittest.main()
