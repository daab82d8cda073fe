"""The grammar of selectors: from words to one closure, by operator precedence with stacks of its own.

No call of the parser nests in another, so no selector can exhaust the interpreter's stack; parentheses are counted to
keep the closures within it too. Precedence, from loose to tight: OR, AND, NOT, comparisons and tests (which do not
chain), `+ -`, `* /`, signs. A chain of one precedence becomes one flat closure, and repeated NOTs or signs become one.
Types that the text itself shows to be wrong (`price > 'high'`, `'a' + 1`) are refused here, not at every message.
"""

from typing import NoReturn

from alphorn.message_manager import selector_terms as terms
from alphorn.message_manager.selector_like import compile_like
from alphorn.message_manager.selector_terms import Evaluate, Kind, Term
from alphorn.message_manager.selector_words import LONG_MAX, Sort, Word, invalid, words_of

NESTING_MAX = 100
IN_VALUES_MAX = 1_000
HEADER_FIELDS = frozenset("JMSDeliveryMode JMSPriority JMSMessageID JMSTimestamp JMSCorrelationID JMSType".split())

_PARENTHESIS, _OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(8)
_LEVELS = {"OR": _OR, "AND": _AND, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}
_LEVELS |= dict.fromkeys(["=", "<>", "<", "<=", ">", ">=", "BETWEEN"], _COMPARISON)
_CONDITIONAL = (Kind.CONDITION, Kind.ANY)
_NUMERIC = (Kind.NUMBER, Kind.ANY)


class _Pending:
    """An operator that waits for its right side: several signs when it is a chain."""

    __slots__ = ("is_negated", "level", "position", "signs")

    def __init__(self, level: int, sign: str, position: int, *, is_negated: bool = False) -> None:
        self.level = level
        self.signs = [sign]
        self.position = position
        self.is_negated = is_negated


class Parser:
    """Reads one selector. After `parse`, `identifiers` holds the names it reads."""

    __slots__ = ("_is_tested", "_nesting", "_operands", "_pending", "_text", "_word", "_words", "identifiers")

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = words_of(text)
        self._word = next(self._words)
        self._operands: list[Term] = []
        self._pending: list[_Pending] = []
        self._nesting = 0
        self._is_tested = (
            False  # the last operand was a test such as IS NULL, which nothing tighter than NOT may follow
        )
        self.identifiers: set[str] = set()

    def parse(self) -> Evaluate:
        """The whole selector as one condition. Raises `InvalidSelector`."""
        self._read_operand()
        while self._read_operator():
            self._read_operand()
        self._reduce(_PARENTHESIS + 1)
        if self._pending:
            self._refuse(f"the parenthesis that closes the one at character {self._pending[-1].position}")
        return self._condition(self._operands.pop())

    # Words

    def _take(self) -> Word:
        word = self._word
        self._word = next(self._words)
        return word

    def _is_at(self, *values: str) -> bool:
        return self._word.sort in (Sort.SIGN, Sort.RESERVED) and self._word.value in values

    def _take_expected(self, value: str) -> None:
        if not self._is_at(value):
            self._refuse(value)
        self._take()

    def _take_string(self, expectation: str) -> str:
        if self._word.sort is not Sort.STRING:
            self._refuse(expectation)
        return str(self._take().value)

    def _refuse(self, expectation: str) -> NoReturn:
        raise invalid(self._text, self._word.position, f"{expectation}, found {self._word.shown}")

    # Operands

    def _read_operand(self) -> None:
        """One value or name, with the parentheses, NOTs and signs before it."""
        self._is_tested = False
        while self._is_at("(", "NOT", "+", "-"):
            if self._is_at("("):
                self._open()
            elif self._is_at("NOT"):
                self._read_not()
            else:
                self._read_prefix(_SIGN, negates=self._is_at("-"))
        self._operands.append(self._read_value())

    def _open(self) -> None:
        if self._nesting == NESTING_MAX:
            self._refuse(f"at most {NESTING_MAX} parentheses inside each other")
        self._nesting += 1
        self._pending.append(_Pending(_PARENTHESIS, "(", self._take().position))

    def _read_not(self) -> None:
        if self._pending and self._pending[-1].level > _NOT:
            self._refuse("a value or a name")
        self._read_prefix(_NOT, negates=True)

    def _read_prefix(self, level: int, *, negates: bool) -> None:
        word = self._take()
        if self._pending and self._pending[-1].level == level:
            self._pending[-1].is_negated ^= negates
        else:
            self._pending.append(_Pending(level, str(word.value), word.position, is_negated=negates))

    def _read_value(self) -> Term:
        word = self._word
        if self._is_at("NULL"):
            self._refuse("a value or a name (IS NULL asks whether there is a value)")
        if self._is_at("TRUE", "FALSE"):
            return self._constant(Kind.CONDITION, self._take().value == "TRUE", word.position)
        match word.sort:
            case Sort.STRING:
                return self._constant(Kind.STRING, self._take().value, word.position)
            case Sort.NUMBER:
                return self._read_number()
            case Sort.IDENTIFIER:
                return self._read_identifier()
        self._refuse("a value or a name")

    def _read_number(self) -> Term:
        is_negative = bool(self._pending) and self._pending[-1].level == _SIGN and self._pending[-1].is_negated
        value = self._word.value
        if isinstance(value, int) and value > LONG_MAX and not is_negative:
            self._refuse("a number as Java writes it, within a long or a double")
        return self._constant(Kind.NUMBER, value, self._take().position)

    def _read_identifier(self) -> Term:
        name = str(self._word.value)
        is_header = name.startswith("JMS") and not name.startswith(("JMSX", "JMS_"))
        if is_header and name not in HEADER_FIELDS:
            self._refuse(f"a property or one of the header fields {', '.join(sorted(HEADER_FIELDS))}")
        self.identifiers.add(name)
        evaluate = terms.read_header(name) if is_header else terms.read_property(name)
        return Term(Kind.ANY, self._take().position, evaluate, is_identifier=True)

    def _constant(self, kind: Kind, value: str | int | float, position: int) -> Term:
        return Term(kind, position, terms.constant(value), value)

    # Operators

    def _read_operator(self) -> bool:
        """What follows an operand, up to an operator that wants another one; False at the end of the selector."""
        while self._word.sort is not Sort.END:
            if self._is_at(")"):
                self._close()
            elif self._is_at("NOT", "LIKE", "IN", "IS"):
                if self._read_test():
                    return True
            else:
                self._read_binary()
                return True
        return False

    def _close(self) -> None:
        self._reduce(_PARENTHESIS + 1)
        if not self._pending:
            self._refuse("the end or an operator, as no parenthesis is open")
        self._pending.pop()
        self._nesting -= 1
        self._is_tested = False
        self._take()

    def _read_test(self) -> bool:
        """LIKE, IN and IS NULL, which end a comparison, or NOT BETWEEN, which gives True as it wants its bounds."""
        self._reduce(_SUM)
        self._check_unchained()
        is_negated = self._is_at("NOT")
        if is_negated:
            self._take()
            if self._is_at("BETWEEN"):
                self._push_comparison(is_negated=True)
                return True
            if not self._is_at("LIKE", "IN"):
                self._refuse("BETWEEN, LIKE or IN")
        operand = self._operands.pop()
        if not operand.is_identifier:
            self._refuse("an operator, as this test is for a property or header field only")
        word = self._take()
        if word.value == "IS":
            evaluate = self._read_null(operand)
        elif word.value == "IN":
            evaluate = terms.accept_string(operand.evaluate, self._read_set().__contains__, is_negated=is_negated)
        else:
            evaluate = self._read_like(operand, is_negated=is_negated)
        self._operands.append(Term(Kind.CONDITION, operand.position, evaluate))
        self._is_tested = True
        return False

    def _read_null(self, operand: Term) -> Evaluate:
        is_negated = self._is_at("NOT")
        if is_negated:
            self._take()
        self._take_expected("NULL")
        return terms.is_null(operand.evaluate, is_negated=is_negated)

    def _read_set(self) -> frozenset[str]:
        self._take_expected("(")
        values = [self._take_string("a string")]
        while self._is_at(","):
            self._take()
            if len(values) == IN_VALUES_MAX:
                self._refuse(f"at most {IN_VALUES_MAX} strings after IN")
            values.append(self._take_string("a string"))
        if not self._is_at(")"):
            self._refuse("a comma or the closing parenthesis of IN")
        self._take()
        return frozenset(values)

    def _read_like(self, operand: Term, *, is_negated: bool) -> Evaluate:
        position = self._word.position
        pattern = self._take_string("a pattern in quotes")
        escape = None
        if self._is_at("ESCAPE"):
            self._take()
            if len(str(self._word.value)) != 1:
                self._refuse("one character in quotes")
            escape = self._take_string("one character in quotes")
        try:
            accepts = compile_like(pattern, escape)
        except ValueError:
            message = "a pattern in which each escape character precedes %, _ or itself"
            raise invalid(self._text, position, message) from None
        return terms.accept_string(operand.evaluate, accepts, is_negated=is_negated)

    def _read_binary(self) -> None:
        level = _LEVELS.get(str(self._word.value)) if self._word.sort in (Sort.SIGN, Sort.RESERVED) else None
        if level is None:
            self._refuse("an operator or the end")
        if level >= _COMPARISON and self._is_tested:
            self._refuse("AND, OR or the end")
        if level == _AND and self._complete_between():
            return
        self._reduce(level + 1)
        if level == _COMPARISON:
            self._check_unchained()
            self._push_comparison(is_negated=False)
        elif self._pending and self._pending[-1].level == level:
            self._pending[-1].signs.append(str(self._take().value))
        else:
            word = self._take()
            self._pending.append(_Pending(level, str(word.value), word.position))

    def _complete_between(self) -> bool:
        """Takes an AND that parts the bounds of a BETWEEN; any other is left for a conjunction."""
        self._reduce(_SUM)
        if not self._pending or self._pending[-1].signs != ["BETWEEN"]:
            return False
        self._pending[-1].signs.append(str(self._take().value))
        return True

    def _push_comparison(self, *, is_negated: bool) -> None:
        word = self._take()
        self._pending.append(_Pending(_COMPARISON, str(word.value), word.position, is_negated=is_negated))

    def _check_unchained(self) -> None:
        top = self._pending[-1] if self._pending else None
        if self._is_tested or (top and top.level == _COMPARISON):
            self._refuse("AND" if top and top.signs == ["BETWEEN"] else "AND, OR or the end")

    # Terms

    def _reduce(self, level: int) -> None:
        """Makes terms of all pending operators that bind at least as tight as a level."""
        while self._pending and self._pending[-1].level >= level:
            self._build(self._pending.pop())

    def _build(self, operator: _Pending) -> None:
        if operator.level == _SIGN:
            term = self._signed(self._operands.pop(), operator)
        elif operator.level == _NOT:
            operand = self._operands.pop()
            evaluate = self._condition(operand)
            evaluate = terms.negate(evaluate) if operator.is_negated else evaluate
            term = Term(Kind.CONDITION, operator.position, evaluate)
        else:
            first = len(self._operands) - len(operator.signs) - 1
            operands = self._operands[first:]
            del self._operands[first:]
            term = self._joined(operator, operands)
        self._operands.append(term)

    def _joined(self, operator: _Pending, operands: list[Term]) -> Term:
        """An operator between two operands, or a chain of one between several."""
        position = operands[0].position
        if operator.level == _COMPARISON:
            return Term(Kind.CONDITION, position, self._compared(operator, operands))
        if operator.level in (_AND, _OR):
            join = terms.all_of if operator.level == _AND else terms.any_of
            return Term(Kind.CONDITION, position, join([self._condition(operand) for operand in operands]))
        numbers = [self._number(operand).evaluate for operand in operands]
        chain = list(zip(operator.signs, numbers[1:], strict=True))
        return Term(Kind.NUMBER, position, terms.calculate(numbers[0], chain))

    def _compared(self, operator: _Pending, operands: list[Term]) -> Evaluate:
        sign = operator.signs[0]
        if sign in ("=", "<>"):
            return terms.compare(sign, *operands)
        for operand in operands:
            self._number(operand)
        if sign != "BETWEEN":
            return terms.compare(sign, *operands)
        if len(operator.signs) == 1:
            self._refuse("AND and the upper bound of BETWEEN")
        return terms.between(*operands, is_negated=operator.is_negated)

    def _signed(self, operand: Term, operator: _Pending) -> Term:
        self._number(operand)
        value = operand.constant
        if isinstance(value, int | float):
            return self._constant(
                Kind.NUMBER, terms.negative(value) if operator.is_negated else value, operator.position
            )
        evaluate = terms.signed(operand.evaluate, is_negative=operator.is_negated)
        return Term(Kind.NUMBER, operator.position, evaluate)

    def _condition(self, term: Term) -> Evaluate:
        if term.kind not in _CONDITIONAL:
            raise invalid(self._text, term.position, f"a condition, found {term.kind.value}")
        return terms.truth(term.evaluate) if term.kind is Kind.ANY else term.evaluate

    def _number(self, term: Term) -> Term:
        if term.kind not in _NUMERIC:
            raise invalid(self._text, term.position, f"a number, found {term.kind.value}")
        return term
