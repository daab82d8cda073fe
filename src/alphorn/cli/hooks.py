"""What operators hang on events: a command that runs for each, or a URL that each is posted to.

An event reaches a command on standard input and in environment variables, never in its command line, and no shell reads
it. What fails is told, and the next event comes all the same.
"""

import http.client
import os
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from typing import IO
from urllib.parse import urlsplit

from alphorn import __version__
from alphorn.cli.talking import to_json
from alphorn.model.errors import Misuse
from alphorn.model.events import Event

COMMAND_S = 60.0  # for a command; then it is killed, so that the next event comes
POST_S = 10.0  # for an answer
VARIABLE = "ALPHORN_EVENT_"

Hook = Callable[[Event], str]  # gives what went wrong, if something did


def hook_command(text: str, *, is_output_ours: bool) -> Hook:
    """Runs a command for each event; raises `Misuse` for one that cannot be run.

    What it prints goes to standard output, or to standard error where the output is for a program (`is_output_ours`).
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Misuse(f"--exec {text!r} is no command: {str(error).lower()}; close its quotes") from None
    if not words or "\0" in text:
        raise Misuse(f"--exec {text!r} names no command; write one like --exec '/usr/local/bin/alert --now'")
    if shutil.which(words[0]) is None:
        raise Misuse(f"--exec names {words[0]}, which is no program that can be run; give its whole path")

    def run(event: Event) -> str:
        sys.stdout.flush()
        try:
            ended = subprocess.run(
                words,
                input=to_json(event.as_dict()).encode(errors="replace") + b"\n",
                env=os.environ | variables_of(event),
                stdout=sys.stderr.fileno() if is_output_ours else None,
                timeout=COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{words[0]} did not end within {COMMAND_S:.0f} s and was killed"
        except OSError as error:
            return f"{words[0]} could not be run: {error.strerror}"
        code = ended.returncode
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"{words[0]} ended {how}" if code else ""

    return run


def hook_url(url: str) -> Hook:
    """Posts each event as JSON; raises `Misuse` for what is no URL. Its path is never printed: it may be a secret."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https") or any(not 0x20 < ord(character) < 0x7F for character in url):
        raise Misuse("--post is no URL of the web; write one like --post https://alerts.example.com/alphorn")
    if parts.username is not None:
        raise Misuse("--post takes no user in its URL; put a token into the path, or let a proxy add what is needed")
    place = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    opener = urllib.request.build_opener(_NoRedirects)
    headers = {"Content-Type": "application/json", "User-Agent": f"alphorn/{__version__}"}

    def post(event: Event) -> str:
        data = to_json(event.as_dict()).encode(errors="replace")
        request = urllib.request.Request(url, data=data, headers=headers, method="POST")
        try:
            with opener.open(request, timeout=POST_S):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"{place} answered {error.code} {error.reason}"
        except urllib.error.URLError as error:
            return f"{place} could not be reached: {getattr(error.reason, 'strerror', None) or error.reason}"
        except TimeoutError:
            return f"{place} did not answer within {POST_S:.0f} s"
        except (http.client.HTTPException, OSError) as error:
            return f"{place} could not be reached: {error}"

    return post


def variables_of(event: Event) -> dict[str, str]:
    """The environment variables of an event: one for each field and detail, such as ALPHORN_EVENT_KIND."""
    found: dict[str, str] = {}
    for name, value in event.as_dict().items():
        plain = "".join(character if character.isascii() and character.isalnum() else "_" for character in name)
        found[VARIABLE + plain.upper()] = str(value).replace("\0", "").encode(errors="replace").decode()
    return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Whom an event is posted to is who was named."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Another place is no answer."""
