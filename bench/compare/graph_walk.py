"""Walks a graph of dictionaries and lists: the memory accesses of an interpreter.

  graph_walk.py NODES STEPS
"""
import sys

nodes, steps = map(int, sys.argv[1:])
state = 1


def random_below(bound):
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return (state >> 33) % bound


graph = {node: [random_below(nodes) for _ in range(4)] for node in range(nodes)}
names = {node: f"node-{node * 2654435761 % 2**32:010}" for node in graph}

seen, frontier = {0}, [0]
while frontier:
    frontier = [after for node in frontier for after in graph[node] if not (after in seen or seen.add(after))]
checksum, node = 0, 0
for _ in range(steps):
    node = graph[node][random_below(4)]
    checksum = (checksum * 31 + int(names[node][5:])) % 2**61
print(len(seen), checksum)
