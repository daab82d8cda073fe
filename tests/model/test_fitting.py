"""What people write and does not fit: every fault is told, with the field, what was given and what is allowed."""

from typing import Literal

import msgspec
import pytest

from alphorn.model.destinations import Policy
from alphorn.model.fitting import Unfit, fit


class Wheel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a list."""

    name: str
    spokes: int = 0
    colours: tuple[Literal["", "red", "blue"], ...] = ()


class Cart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole."""

    name: str
    wheels: tuple[Wheel, ...] = ()
    spare: Wheel | None = None
    best: Wheel = Wheel(name="best")


def faults_of(value: object, wanted: type[msgspec.Struct] = Cart) -> str:
    with pytest.raises(Unfit) as caught:
        fit(value, wanted)
    return str(caught.value)


def test_what_fits_becomes_the_struct():
    told = {"name": "cart", "wheels": [{"name": "left", "spokes": 8, "colours": ["red"]}]}
    assert fit(told, Cart) == Cart(name="cart", wheels=(Wheel(name="left", spokes=8, colours=("red",)),))


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        ({"delivery_limit": "many"}, "delivery_limit is 'many', not a whole number"),
        ({"delivery_limit": 5.5}, "delivery_limit is 5.5, not a whole number"),
        ({"ttl": "soon"}, "ttl is 'soon', not a number"),
        ({"exclusive": "yes"}, "exclusive is 'yes', not true or false"),
        ({"overflow": "drop"}, "overflow is 'drop', not 'block' or 'reject'"),
        ({"dead_letter": 5}, "dead_letter is 5, not a text"),
        ({"priority": "high"}, "priority is 'high', not a whole number"),
    ],
)
def test_a_policy_of_the_wrong_type_is_told_by_option_value_and_what_is_allowed(policy, fault):
    assert faults_of(policy, Policy) == fault


def test_every_fault_is_told():
    said = faults_of({"ttl": "soon", "exclusive": 7}, Policy)
    assert said == "ttl is 'soon', not a number; exclusive is 7, not true or false"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"name": "cart", "wheels": [{"name": "left", "spokes": "8"}]}, "spokes of left is '8', not a whole number"),
        ({"name": "cart", "wheels": [{"spokes": 8}]}, "name of number 1 of wheels is missing, which is a text"),
        ({"name": "cart", "wheels": [{"name": "left", "spoke": 8}]}, "nothing of left is called spoke; there are name"),
        ({"name": "cart", "wheels": {"name": "left"}}, "wheels is {'name': 'left'}, not a list of tables"),
        ({"name": "cart", "wheels": [8]}, "number 1 of wheels is 8, not a table"),
        (
            {"name": "cart", "wheels": [{"name": "left", "colours": ["red", "pink"]}]},
            "number 2 of colours of left is 'pink', not 'red' or 'blue'",
        ),
        ({"name": "cart", "best": {"name": "b", "spokes": []}}, "spokes of best is [], not a whole number"),
        ({"name": "cart", "spare": 1}, "spare is 1, not a table"),
        ({}, "name is missing, which is a text"),
        ([], "it is [], not a table"),
    ],
)
def test_what_is_nested_is_told_by_its_name_or_its_place(value, fault):
    assert faults_of(value).startswith(fault)


def test_what_is_long_is_not_repeated_whole():
    assert len(faults_of({"name": ["x" * 1000] * 1000})) < 300
