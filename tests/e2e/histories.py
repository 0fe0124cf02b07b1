"""Checks that the words of programs/recorded_words.c have behaved like memory.

A word is a register that several threads write, never twice with the same value. Its history is right
(linearizable) if each operation can be given one moment between its begin and its end so that each read
returns what was written last. With distinct values that can be decided without a search (Gibbons and
Korach, "Testing shared memories", 1997): the operations of a value are its write and the reads that
return it, and its zone is the time from the first of their ends to the last of their begins.

- If that is forward (an operation has ended before another one began), the word must have had the
  value for all of it: two such zones must not overlap.
- Else all of them overlap, and one moment is enough for the value: it must not be one within a forward
  zone of another value.

An exchange counts as a read and a write of the same time. That two exchanges return the same value is
looked for separately: it means that the write of one was lost.
"""
import bisect
import itertools
import os
import struct

READ, WRITE, EXCHANGE = range(3)
KINDS = ("read", "write", "exchange")
NEVER = -1  # the begin and the end of what was there before the first operation
_RECORD = struct.Struct("<QQQQII")


def read_records(path):
    """The operations of one thread: (begin, end, read, written, word, kind), times in ns. Of a program
    that did not end by itself: those before the unused rest of the file."""
    with open(path, "rb") as file:
        content = file.read()
    whole = len(content) - len(content) % _RECORD.size
    return list(itertools.takewhile(lambda record: record[0] != 0, _RECORD.iter_unpack(content[:whole])))


def write_records(path, records):
    with open(path, "wb") as file:
        file.writelines(_RECORD.pack(*record) for record in records)


def read_folder(folder):
    """The operations of all threads."""
    return [record for name in sorted(os.listdir(folder)) for record in read_records(os.path.join(folder, name))]


def first_value(word):
    return word + 1


def findings(records):
    """What is wrong with a history, a line for each; empty: every read is explained."""
    words = {}
    for record in records:
        words.setdefault(record[4], []).append(record)
    return [f"word {word}: {problem}" for word, operations in sorted(words.items())
            for problem in _problems(first_value(word), operations)]


def _problems(first, operations):
    """Of one word."""
    problems = []
    values = {first: [(NEVER, NEVER)]}  # the write, then the reads
    for begin, end, _, written, _, kind in operations:
        if kind != READ:
            values[written] = [(begin, end)]
    replaced = {}
    for operation in operations:
        begin, end, value, _, _, kind = operation
        if kind == WRITE:
            continue
        if value not in values:
            problems.append(f"{_text(operation)} returned {value:#x}, which nobody wrote")
            continue
        if end < values[value][0][0]:
            problems.append(f"{_text(operation)} returned {value:#x} before that was written")
            continue
        values[value].append((begin, end))
        if kind == EXCHANGE and replaced.setdefault(value, operation) is not operation:
            problems.append(f"{_text(operation)} and {_text(replaced[value])} both replaced {value:#x}")
    return problems + _overlaps(values)


def _overlaps(values):
    problems, forward, backward = [], [], []
    for value, times in values.items():
        first_end, last_begin = min(end for _, end in times), max(begin for begin, _ in times)
        if first_end < last_begin:
            forward.append((first_end, last_begin, value))
        elif first_end != NEVER:
            backward.append((last_begin, first_end, value))
    forward.sort()
    for (begin, end, value), (later, last, other) in zip(forward, forward[1:]):
        if later < end:
            problems.append(f"{value:#x} was there from {begin} to {end}, and {other:#x} from {later} to {last}")
    begins = [begin for begin, _, _ in forward]
    for begin, end, value in backward:
        at = bisect.bisect_left(begins, begin) - 1
        if at >= 0 and forward[at][1] > end:
            since, until, other = forward[at]
            problems.append(f"{value:#x} was written and read from {begin} to {end}, while {other:#x} was there from "
                            f"{since} to {until}")
    return problems


def _text(operation):
    begin, end, _, _, _, kind = operation
    return f"{KINDS[kind]} ({begin} to {end})"
