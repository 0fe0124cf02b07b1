"""Changes a table of blocks in a fixed random order, and forks again and again: each child checks blocks, changes its
own copies, and checks them again. Usage: fork_and_check.py BLOCKS SECONDS. Prints what was wrong, then the longest
time that one change, or one child, has taken."""
import hashlib
import os
import random
import sys
import time

PAGE = 4096
PAGES = 16  # of a block
STEP = 40   # changes between two forks

blocks, seconds = int(sys.argv[1]), float(sys.argv[2])
chance = random.Random(5)


def fresh(number):
    return bytearray(hashlib.sha256(str(number).encode()).digest() * (PAGE * PAGES // 32))


table = [fresh(i) for i in range(blocks)]
changes = [0] * blocks


def change(number):
    block = table[number]
    for at in range(0, len(block), PAGE):
        block[at] = (block[at] + 1) % 256
    changes[number] += 1


def is_right(number):
    expected = fresh(number)
    for at in range(0, len(expected), PAGE):
        expected[at] = (expected[at] + changes[number]) % 256
    return expected == table[number]


def child():
    right = True
    for _ in range(STEP):
        number = chance.randrange(blocks)
        right = right and is_right(number)
        change(number)
        right = right and is_right(number)
    os._exit(0 if right else 1)


print("filled", flush=True)
longest = forks = wrong_children = 0
end = time.monotonic() + seconds
while time.monotonic() < end:
    for _ in range(STEP):
        begin = time.monotonic()
        change(chance.randrange(blocks))
        longest = max(longest, time.monotonic() - begin)
    begin = time.monotonic()
    process = os.fork()
    if process == 0:
        child()
    wrong_children += os.waitpid(process, 0)[1] != 0
    forks += 1
    longest = max(longest, time.monotonic() - begin)
wrong = sum(not is_right(i) for i in range(blocks))
print(f"wrong_blocks {wrong} wrong_children {wrong_children} forks {forks} longest_ms {longest * 1000:.0f}", flush=True)
