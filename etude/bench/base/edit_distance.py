"""The edit distance of two texts: the fewest characters to insert, delete or replace.

Bit-parallel (Myers 1999, in Hyyrö's form for the plain distance): a column of the table is one long integer, so two
files of ten thousand characters take a fraction of a second.
"""

from __future__ import annotations


def edit_distance(left: str, right: str) -> int:
    # What both texts begin and end with costs nothing, and versions of a file share most of it.
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    left, right = left[start : len(left) - end], right[start : len(right) - end]
    if not left or not right:
        return len(left) + len(right)
    return _distance(left, right)


def _distance(left: str, right: str) -> int:
    """Bit i of `up` (`down`): the distance grows (shrinks) by one from row i to row i + 1 of the current column."""
    places: dict[str, int] = {}
    for row, character in enumerate(left):
        places[character] = places.get(character, 0) | 1 << row
    whole, last = (1 << len(left)) - 1, 1 << (len(left) - 1)
    up, down, distance = whole, 0, len(left)
    for character in right:
        equal = places.get(character, 0)
        free = (((equal & up) + up) ^ up) | equal | down  # the diagonal step costs nothing
        grows, shrinks = down | ~(free | up) & whole, up & free  # from the column before
        distance += bool(grows & last) - bool(shrinks & last)
        grows, shrinks = grows << 1 | 1, shrinks << 1
        up, down = (shrinks | ~(free | grows)) & whole, grows & free & whole
    return distance
