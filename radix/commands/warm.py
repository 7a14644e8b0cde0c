"""`radix warm`: fills a cache from a list of prompts, through the engine that computes them or from
what a service's disk kept.

Kept here: the list is read and everything typed is checked before the first prompt is sent; what
was warmed is written down as it is, so that a later run goes on; a prompt that fails costs the
others nothing and ends the run with 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from radix.commands.prompts import ListedPrompt, read_list, read_prompts
from radix.commands.terminal import (
    EXIT_CHECK_FAILED,
    EXIT_DONE,
    Commands,
    check_target,
    complain,
    show,
)
from radix.errors import CacheError
from radix.options import OptionError
from radix.replay.options import parse_positive, parse_seconds
from radix.replay.progress import shown_progress
from radix.replay.report import write_json

if TYPE_CHECKING:
    from rich.table import Table

MOST_TOLD = 20
_HELP = """\
Fill a cache with the prompts of a list, in one of two ways.

With --url each prompt is posted to an engine (as OpenAI's endpoints: vLLM, SGLang) with one token
to sample, several at once: the engine computes it and its cache keeps it. With --data, the folder
of a service that runs, what its disk holds of each prompt is brought up into its memory, where it
is the most recently used then, or stays --keep SECONDS. What no disk holds only an engine can
compute.
"""
_EXAMPLES = """\
examples:
  radix warm prompts.jsonl --url http://127.0.0.1:8000/v1 --model meta-llama/Llama-3.1-8B
  radix warm prompts.txt --url http://127.0.0.1:8000/v1 --model m --resume done.txt --json -
  radix warm tokens.jsonl --data /var/lib/radix --page-tokens 16 --keep 3600 \\
      --namespace meta-llama/Llama-3.1-8B

FILE: a prompt a line as plain text, or a JSON object a line with "prompt" (text or token ids),
"tokens" (token ids) or "messages" (of a chat); - is standard input. --data needs token ids.
exit status: 0 done, 1 a prompt failed, 2 bad input
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A prompt that was not warmed: its line, and why."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class WarmReport:
    """What a run did. `warmed` prompts were sent now, `skipped` ones by an earlier run or for an
    equal one; of the tokens of the warmed ones, `cached_tokens` were there before: in an engine's
    cache, as far as it says, or in a service's tiers.
    """

    source: str
    target: str
    prompts: int
    warmed: int
    skipped: int
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    failures: tuple[Failure, ...]


def add(commands: Commands) -> None:
    """Add `radix warm` and its options."""
    parser = commands.add_parser(
        "warm",
        help="fill a cache from a list of prompts",
        description=_HELP,
        epilog=_EXAMPLES,
    )
    parser.set_defaults(run=run)
    parser.add_argument("list", metavar="FILE", help="the prompts, or - for standard input")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - is stdout")
    parser.add_argument(
        "--resume",
        metavar="FILE",
        help="leave out the prompts named there, and add those that are warmed now",
    )
    engine = parser.add_argument_group("through an engine")
    engine.add_argument("--url", metavar="URL", help="up to the version, as http://HOST:PORT/v1")
    engine.add_argument("--model", metavar="NAME", help="as the engine calls it")
    engine.add_argument("--concurrency", metavar="N", help="prompts at once (8)")
    engine.add_argument("--timeout", metavar="SECONDS", help="for one answer (600)")
    engine.add_argument("--retries", metavar="N", help="where the engine is busy or gone (4)")
    engine.add_argument(
        "--key-env", metavar="NAME", help="the environment variable that has the engine's API key"
    )
    disk = parser.add_argument_group("from the disk of a service")
    disk.add_argument("--data", metavar="DIR", help="its folder, which says what its blocks are")
    disk.add_argument("--socket", metavar="PATH", help="where it listens (its default)")
    disk.add_argument("--page-tokens", metavar="N", help="tokens a page of its prompts (16)")
    disk.add_argument("--tenant", metavar="NAME", help="whose prompts they are")
    disk.add_argument(
        "--namespace",
        metavar="MODEL|FIELD=VALUE,...",
        help="of the prompts: model, revision, adapter, adapter_version",
    )
    disk.add_argument("--keep", metavar="SECONDS", help="how long they are to stay, used or not")


def run(options: argparse.Namespace) -> int:
    """Warm as the options say; return the exit status."""
    _check_combination(options)
    check_target("--json", options.json)
    check_target("--resume", options.resume)
    if options.list == "-":
        prompts, name = read_prompts(sys.stdin.read(), "standard input"), "standard input"
    else:
        prompts, name = read_list(Path(options.list), options.list), options.list
    done = _done_before(options.resume)
    left = _once(prompt for prompt in prompts if prompt.digest not in done)
    work = _through_engine if options.url is not None else _from_disk
    report = work(options, name, prompts, left)
    show(options.json, _table(report))
    if options.json is not None:
        write_json(options.json, asdict(report))
    for failure in report.failures[:MOST_TOLD]:
        complain(f"{name}:{failure.line}: {failure.what}", EXIT_CHECK_FAILED)
    if len(report.failures) > MOST_TOLD:
        complain(f"and {len(report.failures) - MOST_TOLD} more", EXIT_CHECK_FAILED)
    return EXIT_CHECK_FAILED if report.failures else EXIT_DONE


def _check_combination(options: argparse.Namespace) -> None:
    """Refuse options that would be ignored, rather than ignoring them."""
    if (options.url is None) == (options.data is None):
        raise OptionError("--url", "one of --url and --data is needed, and only one")
    names = ("model", "concurrency", "timeout", "retries", "key_env")
    engine = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names}
    names = ("socket", "page_tokens", "tenant", "namespace", "keep")
    disk = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names}
    other, needs = (engine, "--url") if options.url is None else (disk, "--data")
    for option, value in other.items():
        if value is not None:
            raise OptionError(option, f"needs {needs}")
    if options.url is not None and options.model is None:
        raise OptionError("--model", "needed with --url")


def _done_before(path: str | None) -> set[str]:
    """Digests of the prompts that earlier runs have warmed."""
    if path is None or not Path(path).exists():
        return set()
    return set(Path(path).read_text(encoding="ascii", errors="replace").split())


def _once(prompts: Iterator[ListedPrompt]) -> list[ListedPrompt]:
    """Each prompt once, in order."""
    return list({prompt.digest: prompt for prompt in reversed(list(prompts))}.values())[::-1]


@contextmanager
def _written_down(path: str | None) -> Iterator[IO[str] | None]:
    """Where what is warmed is added, a line a prompt; None where nobody asked for it."""
    if path is None:
        yield None
        return
    with open(path, "a", encoding="ascii", buffering=1) as file:
        yield file


class _Warming:
    """What a run over ``left`` comes to; what it warms is written down at once."""

    def __init__(self, prompts: int, left: list[ListedPrompt], resume: IO[str] | None) -> None:
        self._prompts, self._left, self._resume = prompts, left, resume
        self._began = time.monotonic()
        self._warmed = self._prompt_tokens = self._cached_tokens = 0
        self._failures: list[Failure] = []

    @property
    def seen(self) -> int:
        """Prompts that were tried."""
        return self._warmed + len(self._failures)

    def warmed(self, prompt: ListedPrompt, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt is there."""
        self._warmed += 1
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += cached_tokens
        if self._resume is not None:
            self._resume.write(f"{prompt.digest}\n")

    def failed(self, line: int, what: str) -> None:
        """A prompt is not."""
        self._failures.append(Failure(line, what))

    def report(self, source: str, target: str) -> WarmReport:
        """All of it, failures by line."""
        return WarmReport(
            source=source,
            target=target,
            prompts=self._prompts,
            warmed=self._warmed,
            skipped=self._prompts - len(self._left),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            seconds=time.monotonic() - self._began,
            failures=tuple(sorted(self._failures, key=lambda failure: failure.line)),
        )


def _through_engine(
    options: argparse.Namespace, name: str, prompts: list[ListedPrompt], left: list[ListedPrompt]
) -> WarmReport:
    from radix.commands.engine import Engine

    key = None
    if options.key_env is not None and not (key := os.environ.get(options.key_env)):
        raise OptionError("--key-env", f"the environment has no {options.key_env}")
    retries = options.retries or "4"
    if not retries.isdecimal():
        raise OptionError("--retries", f"expected a count, got {retries!r}")
    concurrency = parse_positive("--concurrency", options.concurrency or "8")
    engine = Engine(
        options.url,
        options.model,
        key=key,
        timeout_s=parse_seconds("--timeout", options.timeout or "600"),
        retries=int(retries),
    )
    with shown_progress() as progress, _written_down(options.resume) as resume:
        run = _Warming(len(prompts), left, resume)
        progress.phase("prompts", len(left))
        for posted in engine.post_all(left, concurrency):
            if posted.what:
                run.failed(posted.prompt.line, posted.what)
            else:
                run.warmed(posted.prompt, posted.prompt_tokens, posted.cached_tokens)
            progress.reach(run.seen)
    if missed := len(left) - run.seen:
        run.failed(left[-1].line, f"the engine is gone: {missed} prompts not sent")
    return run.report(name, options.url)


def _from_disk(
    options: argparse.Namespace, name: str, prompts: list[ListedPrompt], left: list[ListedPrompt]
) -> WarmReport:
    from radix.commands.fetching import Service, groups_in, namespace_of
    from radix.service.config import default_socket

    wrong = next((prompt for prompt in prompts if prompt.kind != "tokens"), None)
    if wrong is not None:
        what = f"{wrong.kind}: a service knows prompts as token ids only"
        raise OptionError(f"{name}:{wrong.line}", what)
    service = Service(
        options.socket or default_socket(),
        groups_in(Path(options.data)),
        parse_positive("--page-tokens", options.page_tokens or "16"),
        tenant=options.tenant or "",
        namespace=namespace_of(options.namespace),
        keep_s=None if options.keep is None else parse_seconds("--keep", options.keep),
    )
    with shown_progress() as progress, _written_down(options.resume) as resume, service:
        run = _Warming(len(prompts), left, resume)
        progress.phase("prompts", len(left))
        for prompt in left:
            try:
                cached_tokens = service.fetch(prompt.value)
            except CacheError as error:
                run.failed(prompt.line, f"{type(error).__name__}: {error}")
            else:
                run.warmed(prompt, len(prompt.value), cached_tokens)
            progress.reach(run.seen)
    return run.report(name, options.data)


def _table(report: WarmReport) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(f"{report.source} to {report.target}"), title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("prompts", f"{report.prompts:,}")
    table.add_row("warmed", f"{report.warmed:,}")
    table.add_row("skipped: warmed before, or listed twice", f"{report.skipped:,}")
    table.add_row("failed", f"{len(report.failures):,}")
    table.add_row("tokens", f"{report.prompt_tokens:,}")
    table.add_row("of these there before", f"{report.cached_tokens:,}")
    table.add_row("seconds", f"{report.seconds:.2f}")
    return table
