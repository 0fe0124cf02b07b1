"""The checker of histories: finds what is wrong, and nothing in what is right."""
import random
import tempfile
import unittest
from unittest import TestCase

import histories
from histories import EXCHANGE, READ, WRITE

WORD = 5
FIRST = histories.first_value(WORD)


def read(begin, end, value):
    return (begin, end, value, 0, WORD, READ)


def write(begin, end, value):
    return (begin, end, 0, value, WORD, WRITE)


def exchange(begin, end, old, new):
    return (begin, end, old, new, WORD, EXCHANGE)


def random_history(chance, operations=400, threads=4, words=6):
    """What a memory may do: each operation takes effect at one moment between its begin and its end."""
    memory = {word: histories.first_value(word) for word in range(words)}
    free_at = [0] * threads
    records, value = [], 1000
    for moment in sorted(chance.sample(range(10, 20 * operations), operations)):
        ready = [thread for thread in range(threads) if free_at[thread] < moment]
        if not ready:
            continue
        thread = chance.choice(ready)
        begin, end = chance.randint(free_at[thread] + 1, moment), moment + chance.randint(0, 40)
        free_at[thread] = end
        word, kind = chance.randrange(words), chance.choice((READ, WRITE, EXCHANGE))
        value += 1
        records.append((begin, end, 0 if kind == WRITE else memory[word], 0 if kind == READ else value, word, kind))
        if kind != READ:
            memory[word] = value
    return records


def explained(operations, value):
    """The same question, answered by trying every order."""
    if not operations:
        return True
    first_end = min(operation[1] for operation in operations)
    for i, operation in enumerate(operations):
        begin, _, old, new, _, kind = operation
        if begin <= first_end and (kind == WRITE or old == value):
            if explained(operations[:i] + operations[i + 1:], value if kind == READ else new):
                return True
    return False


class Histories(TestCase):
    def expect_found(self, text, *records):
        self.assertRegex("\n".join(histories.findings(records)), text)

    def expect_right(self, *records):
        self.assertEqual(histories.findings(records), [])

    def test_reads_in_the_order_of_the_writes_are_right(self):
        self.expect_right(read(1, 2, FIRST), write(3, 4, 100), read(5, 6, 100), exchange(7, 8, 100, 101), read(9, 10, 101))

    def test_a_read_that_overlaps_a_write_returns_either_value(self):
        self.expect_right(write(3, 8, 100), read(4, 5, FIRST), read(6, 7, 100))
        self.expect_right(write(3, 8, 100), write(3, 8, 101), read(9, 10, 100))

    def test_an_old_value_is_found(self):
        self.expect_found("word 5: 0x65 was written and read from 3 to 4, while 0x64 was there from 2 to 5",
                          write(1, 2, 100), write(3, 4, 101), read(5, 6, 100))

    def test_the_first_value_after_a_write_is_found(self):
        self.expect_found("0x64 was written and read from 1 to 2, while 0x6", write(1, 2, 100), read(3, 4, FIRST))

    def test_zeros_are_found(self):
        self.expect_found("returned 0x0, which nobody wrote", write(1, 2, 100), read(3, 4, 0))

    def test_a_value_of_another_word_is_found(self):
        self.expect_found("returned 0x9, which nobody wrote", write(1, 2, 100), (1, 2, 0, 9, 4, WRITE), read(3, 4, 9))

    def test_a_value_from_the_future_is_found(self):
        self.expect_found("before that was written", read(1, 2, 100), write(3, 4, 100))

    def test_two_reads_in_the_wrong_order_are_found(self):
        self.expect_found("was there from", write(1, 20, 100), write(1, 20, 101), read(2, 3, 100), read(4, 5, 101),
                          read(6, 7, 100))

    def test_a_lost_exchange_is_found(self):
        self.expect_found("both replaced 0x64", write(1, 2, 100), exchange(3, 6, 100, 101), exchange(3, 6, 100, 102))

    def test_what_a_memory_may_do_is_right(self):
        for seed in range(100):
            self.assertEqual(histories.findings(random_history(random.Random(seed))), [], seed)

    def test_agrees_with_a_search_of_all_orders(self):
        """Of short histories without exchanges, most of them wrong."""
        verdicts = {True: 0, False: 0}
        for seed in range(3000):
            chance = random.Random(seed)
            values = [FIRST, *range(100, 103)]
            history = [write(begin, begin + chance.randint(0, 6), value)
                       for value in values[1:] for begin in [chance.randint(0, 12)]]
            history += [read(begin, begin + chance.randint(0, 6), chance.choice(values))
                        for _ in range(3) for begin in [chance.randint(0, 12)]]
            right = explained(history, FIRST)
            self.assertEqual(not histories.findings(history), right, (seed, history))
            verdicts[right] += 1
        self.assertGreater(min(verdicts.values()), 300, verdicts)

    def test_one_changed_read_of_many_operations_is_found(self):
        for seed in range(50):
            chance = random.Random(seed)
            records = random_history(chance)
            values = {record[3]: record for record in records if record[3] != 0}
            # A read of what an operation has replaced long before.
            stale = [(i, r[2]) for i, read_ in enumerate(records) if read_[5] == READ for r in records
                     if r[5] == EXCHANGE and r[4] == read_[4] and r[1] < read_[0] and r[2] in values]
            at, value = chance.choice(stale)
            begin, end, _, written, word, kind = records[at]
            records[at] = (begin, end, value, written, word, kind)
            self.assertNotEqual(histories.findings(records), [], seed)

    def test_records_of_files_are_those_that_were_written(self):
        records = [exchange(1, 2, FIRST, 100), read(3, 4, 100)]
        with tempfile.TemporaryDirectory() as folder:
            histories.write_records(folder + "/thread-0", records)
            histories.write_records(folder + "/thread-1", [read(5, 6, 100)])
            with open(folder + "/thread-1", "ab") as file:
                file.write(bytes(1000))  # the rest that a killed program leaves
            self.assertEqual(histories.read_folder(folder), [*records, read(5, 6, 100)])


if __name__ == "__main__":
    unittest.main()
