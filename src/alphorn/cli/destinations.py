"""`alphorn destinations`: lists, shows, creates, changes, purges and deletes queues and topics."""

from typing import Annotated, Any

import msgspec
import typer

from alphorn.cli.tables import open_console, show_rows
from alphorn.cli.talking import (
    JsonOption,
    UrlOption,
    connected,
    destination_of,
    find_destination,
    to_json,
)
from alphorn.client.packing import check_text
from alphorn.client.url import DEFAULT_URL
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.errors import Misuse
from alphorn.model.pattern_index import PatternIndex
from alphorn.model.patterns import is_pattern, parse_pattern
from alphorn.model.status_pages import check_complete

POLICY_TYPES: dict[str, Any] = {"retain": float} | {field.name: field.type for field in msgspec.structs.fields(Policy)}

DestinationArgument = Annotated[
    str, typer.Argument(metavar="DEST", help="As queue:orders or topic:prices; a bare name is a queue.")
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help=f"Something of its policy, may be repeated: retain, {', '.join(Policy.__struct_fields__)}.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    destinations = typer.Typer(
        no_args_is_help=True, help="List, show, create, change, purge and delete queues and topics."
    )
    destinations.command("list")(list_all)
    for command in (show, create, purge, delete):
        destinations.command()(command)
    destinations.command("policy")(set_policy)
    app.add_typer(destinations, name="destinations")


def list_all(
    pattern: Annotated[
        str | None, typer.Argument(metavar="PATTERN", help="Only these, as glob:topic:prices.* or regex:a|b.")
    ] = None,
    *,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List destinations with their depths and consumers; those of the system only where PATTERN begins with _.

    While a channel has no primary, those of the others are listed, and the exit code is 1.
    """
    index: PatternIndex[None] = PatternIndex()
    index.add(None, parse_pattern(_pattern_of(pattern)))
    with connected(url, "the cluster does not answer yet") as connection:
        found = connection.status()
    rows = [row for row in found.get("destinations", []) if index.match(parse_destination(row["name"]))]
    rows.sort(key=lambda row: str(row["name"]))
    if as_json:
        print(to_json(rows, indent=2))
    else:
        show_rows(open_console(), "destinations", rows)
    check_complete(found["lost"])


def show(destination: DestinationArgument, *, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Show one destination: where it is, what it holds, and its policy."""
    target = destination_of(destination)
    with connected(url, "the cluster does not answer yet") as connection:
        found = find_destination(connection, target)
    if as_json:
        print(to_json(found, indent=2))
        return
    policy = found.pop("policy", {})
    rows = [*found.items(), *((f"policy: {name}", value) for name, value in policy.items())]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")


def create(
    destination: DestinationArgument,
    *,
    policy: PolicyOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Create a destination. One that exists is left as it is; another policy than it has is refused."""
    target = destination_of(destination)
    chosen = dict(map(_read_policy, policy or ()))
    with connected(url, f"{target} does not confirm yet") as connection:
        connection.destinations.create(target, **chosen)
    if as_json:
        print(to_json({"destination": target}))


def set_policy(
    destination: DestinationArgument,
    *,
    policy: PolicyOption = None,
    none: Annotated[bool, typer.Option("--none", help="Decide nothing for it any more.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Replace a destination's policy as a whole: what is not named is not decided any more."""
    if bool(policy) is none:
        raise Misuse("a policy is replaced by what --policy names, or by --none; give one of them")
    target = destination_of(destination)
    chosen = dict(map(_read_policy, policy or ()))
    with connected(url, f"{target} does not confirm yet") as connection:
        connection.destinations.policy(target, **chosen)
    if as_json:
        print(to_json({"destination": target}))


def purge(destination: DestinationArgument, *, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Let go of all messages in a queue, for ever, and tell how many; the queue stays."""
    target = destination_of(destination)
    with connected(url, f"{target} does not confirm yet") as connection:
        count = connection.destinations.purge(target)
    if as_json:
        print(to_json({"destination": target, "messages": count}))
    else:
        print(f"{target}: {count:,} message{' was' if count == 1 else 's were'} let go of")


def delete(destination: DestinationArgument, *, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Delete a destination and everything it holds."""
    target = destination_of(destination)
    with connected(url, f"{target} does not confirm yet") as connection:
        connection.destinations.delete(target)
    if as_json:
        print(to_json({"destination": target}))


def _pattern_of(text: str | None) -> str:
    if text is None:
        return "glob:*"
    return text if is_pattern(text) else f"glob:{text}"


def _read_policy(text: str) -> tuple[str, Any]:
    """`name=value`, where the value is what the policy takes there; what does not fit stays the text that it is."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Misuse(f"--policy {text!r} has no name or no value; write it like --policy delivery_limit=5")
    check_text("the policy", text)
    try:
        return name, msgspec.convert(value, POLICY_TYPES.get(name, str), strict=False)
    except msgspec.ValidationError:
        return name, value
