"""`alphorn` with fake nodes: `python -c ...` of `command_line`."""

import functools
import sys

from alphorn.cli import application as cli
from alphorn.cli import single, up
from alphorn.io.restarts import RestartPolicy
from alphorn.io.supervisor import Supervisor
from alphorn.node.main import run_process
from tests.node.fake_nodes import ROOT, fake_command, find_fake


def command_line(*arguments: str) -> list[str]:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'src')!r}, {str(ROOT)!r}]; "
        "from tests.cli import fake_up; sys.exit(fake_up.run())"
    )
    return [sys.executable, "-c", code, *arguments]


def run() -> int:
    policy = functools.partial(RestartPolicy, quick_s=1e9, quick_deaths_max=3, first_s=0.0)
    up.Supervisor = functools.partial(Supervisor, command=fake_command, policy=policy)  # type: ignore[misc,assignment]
    single.run_process = functools.partial(run_process, find=find_fake)  # type: ignore[assignment]
    return cli.run(cli.build_app(cli.load_commands()), sys.argv[1:])
