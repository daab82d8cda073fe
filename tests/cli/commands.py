"""Runs one command line in this process."""

from alphorn.cli import application as cli


def run(*arguments: str) -> int:
    return cli.run(cli.build_app(cli.load_commands()), arguments)
