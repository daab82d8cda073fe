"""The text of scenario files: a head, and blocks of commands, four dashes and the transcript that must come out.

The head is the first comment: the goal in one line, the method in the next, and `# proves: BUS-20 BUS-21` where the
scenario proves requirements. Blocks are separated by empty lines; lines that begin with # explain.
"""

import msgspec

from alphorn.model.errors import Misuse

DASHES = "----"
PROVES = "# proves:"


class Block(msgspec.Struct):
    """Some commands and what they should print."""

    comments: list[str]
    commands: list[str]
    expected: list[str]


def read_blocks(text: str) -> list[Block]:
    """The blocks of a scenario file; raises `Misuse` for a block without dashes."""
    blocks = []
    for part in text.strip().split("\n\n"):
        lines = part.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        if not rest:
            blocks.append(Block(comments, [], []))
            continue
        if DASHES not in rest:
            raise Misuse(
                f"the block that begins with {rest[0]!r} has no line of four dashes; add one after its commands"
            )
        middle = rest.index(DASHES)
        blocks.append(Block(comments, rest[:middle], rest[middle + 1 :]))
    return blocks


def write_blocks(blocks: list[Block]) -> str:
    """The reverse of `read_blocks`."""
    parts = []
    for block in blocks:
        body = [*block.commands, DASHES, *block.expected] if block.commands else []
        parts.append("\n".join([*block.comments, *body]))
    return "\n\n".join(parts) + "\n"


def read_goal(text: str) -> list[str]:
    """What the head says before `proves`: goal and method."""
    return [line.removeprefix("#").strip() for line in _head(text) if not line.startswith(PROVES)]


def read_proofs(text: str) -> list[str]:
    """The requirements that the head names."""
    return [row for line in _head(text) if line.startswith(PROVES) for row in line.removeprefix(PROVES).split()]


def _head(text: str) -> list[str]:
    head = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        head.append(line)
    return head


def read_duration(text: str) -> float:
    """500us, 500ms or 2s, in seconds; a minus sign is allowed."""
    for suffix, factor in (("us", 1e-6), ("ms", 0.001), ("s", 1.0)):
        number = text.removesuffix(suffix)
        if text.endswith(suffix) and number.removeprefix("-").replace(".", "", 1).isdecimal():
            return float(number) * factor
    raise Misuse(f"{text!r} is no duration; write 500ms or 2s")
