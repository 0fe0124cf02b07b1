"""Real, unmodified programs in far memory give what they give without it."""
import random
import subprocess
import sys
import unittest

from cluster import EndToEnd

SQL = """
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price INTEGER, note BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
INSERT INTO item SELECT i, 'name-' || (i * 7919 % 60000), i * 31 % 1009, zeroblob(1) ||
  hex(i * 2654435761) || printf('%0200d', i) FROM n;
CREATE INDEX by_name ON item(name);
CREATE INDEX by_price ON item(price, name);
CREATE TABLE total AS SELECT price, count(*) AS items, sum(length(note)) AS bytes,
  max(name) AS last FROM item GROUP BY price;
SELECT count(*), sum(price), sum(length(note)), max(name) FROM item;
SELECT sum(items), sum(bytes), max(last) FROM total;
SELECT count(*) FROM item a JOIN item b ON b.name = 'name-' || a.id WHERE a.price < 100;
DELETE FROM item WHERE id % 3 = 0;
UPDATE item SET note = note || 'x' WHERE price % 5 = 0;
SELECT count(*), sum(length(note)) FROM item;
PRAGMA integrity_check;
"""

LIST_AND_DICT = """
numbers = [i * 2654435761 % 4294967291 for i in range(400000)]
words = {f"key-{n}": n for n in numbers[:100000]}
print(sum(numbers), len(words), sum(words.values()))
numbers[:100000] = reversed(numbers[:100000])
numbers.sort()
print(numbers[0], numbers[200000], numbers[-1])
print(sum(words[f"key-{n}"] for n in list(words.values())[::3]))
"""


class Programs(EndToEnd):
    def check(self, command, transport, local):
        expected = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                  check=True, timeout=60).stdout
        self.assertTrue(expected)
        self.start_cluster(transport=transport)
        status, output, log = self.run_far(command, local=local,
                                           options=["--transport", transport])
        self.assertEqual(status, 0, log)
        self.assertTrue(output == expected, f"the output differs\n{output[:500]}\n{log}")
        self.expect_real_paging(transport)

    def sort(self, transport):
        seed = 1
        print("seed", seed)
        source = random.Random(seed)
        with open(self.path("input"), "wb") as file:
            for _ in range(60000):
                file.write(source.randbytes(200).hex().encode() + b"\n")
        self.check(["sort", "-S", "200M", self.path("input")], transport, "8M")

    def test_sort_over_shm(self):
        self.sort("shm")

    def test_sort_over_tcp(self):
        self.sort("tcp")

    def test_sqlite_over_shm(self):
        self.check(["sqlite3", ":memory:", SQL], "shm", "12M")

    def test_sqlite_over_tcp(self):
        self.check(["sqlite3", ":memory:", SQL], "tcp", "12M")

    def test_python_over_shm(self):
        self.check([sys.executable, "-c", LIST_AND_DICT], "shm", "12M")

    def test_python_over_tcp(self):
        self.check([sys.executable, "-c", LIST_AND_DICT], "tcp", "12M")


if __name__ == "__main__":
    unittest.main()
