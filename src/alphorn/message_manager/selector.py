"""Message selectors: the condition that a consumer sets on the messages it takes, in the language of JMS 2.0.

The language is the conditional part of SQL-92 with three-valued logic: a property that is not there is NULL, whatever
depends on it is UNKNOWN, and a message is selected only when the whole is TRUE. `parse` does all the work that does
not depend on a message; matching takes time linear in the selector and in the strings it looks at. Both are pure, so
every replica selects the same.
"""

from collections.abc import Mapping
from types import MappingProxyType

from alphorn.message_manager.selector_parser import Parser
from alphorn.message_manager.selector_terms import Evaluate, Header, constant
from alphorn.message_manager.selector_words import WHITESPACE, check_length

_NOTHING: Mapping[str, object] = MappingProxyType({})


class Selector:
    """A selector that has been understood: `text` as written, `identifiers` that it reads, and `matches`."""

    __slots__ = ("_evaluate", "identifiers", "text")

    def __init__(self, text: str, identifiers: frozenset[str], evaluate: Evaluate) -> None:
        self.text = text
        self.identifiers = identifiers
        self._evaluate = evaluate

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def matches(self, properties: Mapping[str, object] | None, header: Header = _NOTHING.get) -> bool:
        """Whether a message is selected. Never raises for values that messages carry.

        `header` gives a header field by its JMS name or None, and is called only for the fields the selector reads:
        JMSPriority and JMSTimestamp (milliseconds) as numbers, JMSDeliveryMode as 'PERSISTENT' or 'NON_PERSISTENT',
        JMSMessageID, JMSCorrelationID and JMSType as strings. Names that begin with JMSX are properties.

            parse("region = 'eu' AND JMSPriority > 4").matches({"region": "eu"}, {"JMSPriority": 9}.get)
        """
        return self._evaluate(properties or _NOTHING, header) is True


def parse(text: str) -> Selector:
    """Understands a selector; an empty or blank one selects every message.

    Raises `InvalidSelector` with the place of the first fault and what was expected there.
    """
    check_length(text)
    if not text.strip(WHITESPACE):
        return Selector(text, frozenset(), constant(True))
    parser = Parser(text)
    evaluate = parser.parse()
    return Selector(text, frozenset(parser.identifiers), evaluate)
