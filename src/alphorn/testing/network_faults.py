"""Faults of the network: bad links, clogged links, and every shape of partition. Each heals by itself after a while."""

from typing import TYPE_CHECKING

from alphorn.testing.network import Link
from alphorn.testing.node_faults import sequencer_of
from alphorn.testing.simulator import join_names

if TYPE_CHECKING:
    from alphorn.testing.faults import Nemesis

LASTS_S = 1.5  # mean
SWAP_POLL_S = 0.01
SWAP_S_MAX = 2.0
Pairs = list[tuple[int, int]]


def lose(nemesis: "Nemesis") -> str:
    """Links lose a share of their datagrams."""
    return _spoil(nemesis, "loss", nemesis.stream.choice((0.01, 0.05, 0.2, 0.5)))


def duplicate(nemesis: "Nemesis") -> str:
    """Links deliver a share of their datagrams twice."""
    return _spoil(nemesis, "duplicate", nemesis.stream.choice((0.02, 0.2)))


def delay(nemesis: "Nemesis") -> str:
    """Links are slow, and reorder what they carry."""
    return _spoil(nemesis, "delay_mean", nemesis.stream.choice((0.005, 0.03, 0.1)))


def flip(nemesis: "Nemesis") -> str:
    """Links damage a share of their datagrams by one bit."""
    return _spoil(nemesis, "flip", nemesis.stream.choice((0.01, 0.1)))


def clog(nemesis: "Nemesis") -> str:
    """Links stop one after another and begin again in another order; what was sent meanwhile arrives then."""
    links = _draw_links(nemesis)
    now = nemesis.simulation.now
    for link in links:
        link.clogged_until = max(link.clogged_until, now + min(2.0, nemesis.draw_s(0.5)))
    return f"{len(links)} links"


def isolate(nemesis: "Nemesis") -> str:
    """One member hears nobody and is heard by nobody."""
    nodes = nemesis.simulation.nodes
    alone = nemesis.stream.choice(nodes)
    others = [node.index for node in nodes if node is not alone]
    _cut(nemesis, _between([alone.index], others))
    return alone.name


def halve(nemesis: "Nemesis") -> str:
    """Two random parts do not hear each other."""
    nodes = list(nemesis.simulation.nodes)
    nemesis.stream.shuffle(nodes)
    left, right = nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]
    _cut(nemesis, _between([node.index for node in left], [node.index for node in right]))
    return f"{join_names(left)} | {join_names(right)}"


def cut_one_way(nemesis: "Nemesis") -> str:
    """A member is heard and hears nothing, or hears and is not heard."""
    nodes = nemesis.simulation.nodes
    node = nemesis.stream.choice(nodes)
    others = [other.index for other in nodes if other is not node]
    if nemesis.stream.random() < 0.5:
        _cut(nemesis, [(node.index, other) for other in others])
        return f"{node.name} is not heard"
    _cut(nemesis, [(other, node.index) for other in others])
    return f"{node.name} hears nothing"


def ring(nemesis: "Nemesis") -> str:
    """Every configured member hears a majority, and no two hear the same one."""
    indices = [node.index for node in nemesis.simulation.servers()]
    nemesis.stream.shuffle(indices)
    count = len(indices)
    if count < 4:
        return ""
    reach = -(-(count // 2) // 2)  # neighbours on each side that stay in touch: with the member itself, a majority
    pairs = [
        (indices[place], indices[other])
        for place in range(count)
        for other in range(count)
        if min((place - other) % count, (other - place) % count) > reach
    ]
    _cut(nemesis, pairs)
    return " ".join(nemesis.simulation.nodes[index].name for index in indices)


def bridge(nemesis: "Nemesis") -> str:
    """Two parts hear each other only through one member that hears both."""
    nodes = list(nemesis.simulation.nodes)
    nemesis.stream.shuffle(nodes)
    middle, rest = nodes[0], nodes[1:]
    left, right = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    _cut(nemesis, _between([node.index for node in left], [node.index for node in right]))
    return f"{join_names(left)} | {middle.name} | {join_names(right)}"


def swap(nemesis: "Nemesis") -> str:
    """The sequencer is alone until there is another; then that one is alone and the first is back, with its log."""
    first = sequencer_of(nemesis)
    if first is None or not first.is_up:
        return ""
    pairs = _around(nemesis, first.index)
    nemesis.simulation.network.cut(pairs)
    until = nemesis.simulation.now + SWAP_S_MAX
    nemesis.after(SWAP_POLL_S, _swap_back, nemesis, pairs, nemesis.ruin.newest_epoch, until)
    return first.name


def _swap_back(nemesis: "Nemesis", pairs: Pairs, epoch: int, until: float) -> None:
    if nemesis.ruin.newest_epoch == epoch and nemesis.simulation.now < until:
        nemesis.after(SWAP_POLL_S, _swap_back, nemesis, pairs, epoch, until)
        return
    nemesis.simulation.network.mend(pairs)
    second = sequencer_of(nemesis)
    if second is not None and nemesis.ruin.newest_epoch != epoch:
        _cut(nemesis, _around(nemesis, second.index))
        nemesis.simulation.tell_fault("swap", f"{second.name} is alone now")


def _around(nemesis: "Nemesis", index: int) -> Pairs:
    return _between([index], [node.index for node in nemesis.simulation.nodes if node.index != index])


def _cut(nemesis: "Nemesis", pairs: Pairs) -> None:
    network = nemesis.simulation.network
    network.cut(pairs)
    nemesis.after(nemesis.draw_s(LASTS_S), network.mend, pairs)


def _between(left: list[int], right: list[int]) -> Pairs:
    return [pair for one in left for other in right for pair in ((one, other), (other, one))]


def _spoil(nemesis: "Nemesis", field: str, value: float) -> str:
    links = _draw_links(nemesis)
    before = [(link, getattr(link, field)) for link in links]
    for link in links:
        setattr(link, field, value)
    nemesis.after(nemesis.draw_s(LASTS_S), _restore, field, value, before)
    return f"{field} {value} on {len(links)} links"


def _restore(field: str, value: float, before: list[tuple[Link, float]]) -> None:
    for link, old in before:
        if getattr(link, field) == value:
            setattr(link, field, old)


def _draw_links(nemesis: "Nemesis") -> list[Link]:
    """All links, those to or from one member, or any."""
    links = nemesis.simulation.network.links
    everything = [link for row in links for link in row]
    draw = nemesis.stream.random()
    if draw < 0.4:
        return everything
    if draw < 0.7:
        index = nemesis.stream.randrange(len(links))
        return [*links[index], *(row[index] for row in links)]
    return [link for link in everything if nemesis.stream.random() < 0.3]
