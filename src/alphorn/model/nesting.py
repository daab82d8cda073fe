"""How deep msgpack values lie within each other, found without recursion.

Decoders recurse, and how deep they can depends on who calls them. What must be judged alike on every replica has a
limit of its own, far below theirs.
"""

import struct

DEPTH_MAX = 100

_MARKS = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])  # bytes that may begin an array or a map
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8} | {
    0xD4 + step: 1 + (1 << step) for step in range(5)
}
_SIZED = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_EXTENDED = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
_COUNTED = {0xDC: (">H", 1), 0xDD: (">I", 1), 0xDE: (">H", 2), 0xDF: (">I", 2)}


def may_be_too_deep(value: bytes) -> bool:
    """Whether any bytes at all have what begins more than `DEPTH_MAX` arrays and maps."""
    return len(value) > DEPTH_MAX and len(value) - len(value.translate(None, _MARKS)) > DEPTH_MAX


def is_too_deep(value: bytes) -> bool:
    """Whether one msgpack value, which must be whole, holds arrays and maps more than `DEPTH_MAX` deep."""
    if not may_be_too_deep(value):
        return False
    open_counts: list[int] = []  # of each array or map around: values that are still to come
    place = 0
    while True:
        size, inner = _measure(value, place)
        place += size
        if inner:
            open_counts.append(inner)
            if len(open_counts) > DEPTH_MAX:
                return True
            continue
        while open_counts:
            open_counts[-1] -= 1
            if open_counts[-1]:
                break
            open_counts.pop()
        else:
            return False


def _measure(value: bytes, place: int) -> tuple[int, int]:
    """Bytes of a scalar or of the head of a container, and how many values that holds."""
    mark = value[place]
    if mark < 0x80 or mark >= 0xE0 or mark in (0xC0, 0xC1, 0xC2, 0xC3):
        return 1, 0
    if mark < 0x90:
        return 1, 2 * (mark & 0x0F)
    if mark < 0xA0:
        return 1, mark & 0x0F
    if mark < 0xC0:
        return 1 + (mark & 0x1F), 0
    if mark in _FIXED:
        return 1 + _FIXED[mark], 0
    if mark in _COUNTED:
        form, width = _COUNTED[mark]
        return 1 + struct.calcsize(form), width * struct.unpack_from(form, value, place + 1)[0]
    form = _SIZED.get(mark) or _EXTENDED[mark]
    kind = 1 if mark in _EXTENDED else 0
    return 1 + struct.calcsize(form) + kind + struct.unpack_from(form, value, place + 1)[0], 0
