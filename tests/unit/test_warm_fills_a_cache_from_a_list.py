"""A list of prompts fills a cache: through an engine that listens on a socket, several at once,
each once, and again where it is busy; from the disk of a service that runs. A line that is no
prompt is refused by its number before anything is sent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.cli import main
from radix.commands.prompts import read_prompts
from radix.keys import Namespace
from radix.options import OptionError
from tests.refengine import Engine
from tests.refworld import Ask, World
from tests.service.rig import Service, content

Answer = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]


class Endpoint:
    """An HTTP server in this process; ``answer(path, body)`` gives status and JSON."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []
        self.most_at_once = 0
        lock, running = threading.Lock(), [0]
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    running[0] += 1
                    endpoint.most_at_once = max(endpoint.most_at_once, running[0])
                    endpoint.asked.append((self.path, body, self.headers.get("Authorization")))
                try:
                    status, told = answer(self.path, body)
                finally:
                    with lock:
                        running[0] -= 1
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *told: object) -> None:
                """Nothing on standard error."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@contextmanager
def endpoint(answer: Answer) -> Iterator[Endpoint]:
    made = Endpoint(answer)
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


def fine(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """What an engine says of a prompt that it had half of."""
    asked = body.get("prompt") or body["messages"]
    usage = {
        "prompt_tokens": len(asked),
        "prompt_tokens_details": {"cached_tokens": len(asked) // 2},
    }
    return 200, {"choices": [{"text": "x"}], "usage": usage}


def listed(folder: Path, *lines: object) -> str:
    path = folder / "prompts.jsonl"
    path.write_text(
        "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    )
    return str(path)


def warm(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    target = folder / "out.json"
    target.unlink(missing_ok=True)
    status = main(["warm", *arguments, "--json", str(target)])
    return status, json.loads(target.read_text()) if target.exists() else {}


def test_each_prompt_is_posted_once_as_what_it_is(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hello"}]
    path = listed(
        tmp_path,
        {"prompt": "a text"},
        {"tokens": [1, 2, 3, 4]},
        "",
        {"messages": chat, "x": 1},
        {"prompt": [5, 6]},
        {"prompt": "a text"},
    )
    with endpoint(fine) as engine:
        status, told = warm(tmp_path, path, "--url", engine.url, "--model", "m")
    assert status == 0
    assert sorted(json.dumps(body, sort_keys=True) for _, body, _ in engine.asked) == sorted(
        json.dumps({"model": "m", "max_tokens": 1, "temperature": 0, **body}, sort_keys=True)
        for body in (
            {"prompt": "a text"},
            {"prompt": [1, 2, 3, 4]},
            {"prompt": [5, 6]},
            {"messages": chat},
        )
    )
    assert {path for path, body, _ in engine.asked if "messages" in body} == {
        "/v1/chat/completions"
    }
    assert {path for path, body, _ in engine.asked if "prompt" in body} == {"/v1/completions"}
    assert (told["prompts"], told["warmed"], told["skipped"]) == (5, 4, 1)
    assert (told["prompt_tokens"], told["cached_tokens"]) == (6 + 4 + 1 + 2, 3 + 2 + 0 + 1)


def test_plain_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one prompt\n\nand another\n")
    with endpoint(fine) as engine:
        status, told = warm(tmp_path, str(tmp_path / "p.txt"), "--url", engine.url, "--model", "m")
    assert status == 0 and told["warmed"] == 2
    assert {body["prompt"] for _, body, _ in engine.asked} == {"one prompt", "and another"}


def test_so_many_at_once_and_no_more(tmp_path: Path) -> None:
    both = threading.Barrier(3, timeout=20)

    def together(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        both.wait()  # breaks unless three are under way
        return fine(path, body)

    path = listed(tmp_path, *({"prompt": f"p{n}"} for n in range(12)))
    with endpoint(together) as engine:
        status, told = warm(
            tmp_path, path, "--url", engine.url, "--model", "m", "--concurrency", "3"
        )
    assert (status, told["warmed"], engine.most_at_once) == (0, 12, 3)


def test_busy_engine_is_asked_again_and_a_refusal_is_told_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, int] = {}

    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = body["prompt"]
        seen[name] = seen.get(name, 0) + 1
        if name == "busy" and seen[name] == 1:
            return 503, {"error": {"message": "later"}}
        if name == "long":
            return 400, {"error": {"message": "the prompt is\ntoo long"}}
        return fine(path, body)

    path = listed(tmp_path, {"prompt": "busy"}, {"prompt": "long"}, {"prompt": "good"})
    with endpoint(answer) as engine:
        status, told = warm(tmp_path, path, "--url", engine.url, "--model", "m")
    assert status == 1 and seen == {"busy": 2, "long": 1, "good": 1}
    assert told["failures"] == [{"line": 2, "what": "HTTP 400: the prompt is too long"}]
    assert f"{path}:2: HTTP 400" in capsys.readouterr().err


def test_later_run_goes_on_where_one_ended(tmp_path: Path) -> None:
    failing = {"p3", "p7"}

    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return (500, {}) if body["prompt"] in failing else fine(path, body)

    path, done = listed(tmp_path, *({"prompt": f"p{n}"} for n in range(10))), tmp_path / "done"
    with endpoint(answer) as engine:
        terms = (path, "--url", engine.url, "--model", "m", "--resume", str(done))
        status, told = warm(tmp_path, *terms)
        assert (status, told["warmed"], len(told["failures"])) == (1, 8, 2)
        failing.clear()
        engine.asked.clear()
        status, told = warm(tmp_path, *terms)
    assert (status, told["warmed"], told["skipped"]) == (0, 2, 8)
    assert {body["prompt"] for _, body, _ in engine.asked} == {"p3", "p7"}


def test_engine_that_is_not_there_is_not_asked_for_each(tmp_path: Path) -> None:
    with endpoint(fine) as engine:
        url = engine.url  # nobody listens there once it is closed
    path = listed(tmp_path, *({"prompt": f"p{n}"} for n in range(50)))
    status, told = warm(
        tmp_path, path, "--url", url, "--model", "m", "--concurrency", "2", "--retries", "0"
    )
    assert status == 1 and told["warmed"] == 0 and len(told["failures"]) < 10
    assert "the engine is gone" in told["failures"][-1]["what"]


def test_key_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARM_KEY", "k")
    path = listed(tmp_path, {"prompt": "p"})
    with endpoint(fine) as engine:
        terms = (path, "--url", engine.url, "--model", "m", "--key-env")
        assert warm(tmp_path, *terms, "WARM_KEY")[0] == 0
        assert engine.asked[0][2] == "Bearer k"
        monkeypatch.delenv("WARM_KEY")
        assert warm(tmp_path, *terms, "WARM_KEY")[0] == 2


def test_engine_computes_what_was_listed_and_hits_it_then(tmp_path: Path) -> None:
    """The reference engine behind the socket: what was warmed is a hit for the next request."""
    world = World.draw(4).roomy()
    engine, lock = Engine(world, tmp_path), threading.Lock()

    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with lock:
            ask = Ask.of(world.model, body["prompt"], 1, 0, 1)
            hit = engine.serve(ask)
        usage = {"prompt_tokens": len(ask.prompt), "prompt_tokens_details": {"cached_tokens": hit}}
        return 200, {"usage": usage}

    length = 2 * world.grid + 5
    prompts = [[(n * 7 + i * i) % 5 for i in range(length)] for n in range(4)]
    path = listed(tmp_path, *({"tokens": prompt} for prompt in prompts))
    with endpoint(answer) as served:
        terms = (path, "--url", served.url, "--model", "m", "--concurrency", "1")
        status, first = warm(tmp_path, *terms)
        assert (status, first["warmed"]) == (0, 4)
        status, again = warm(tmp_path, *terms)
    assert again["prompt_tokens"] == 4 * length
    assert again["cached_tokens"] >= 4 * world.reach(length - 1) > first["cached_tokens"]
    engine.close()


def test_disk_of_a_service_is_brought_up_into_its_memory(tmp_path: Path) -> None:
    space, prompt = Namespace(model="m"), np.arange(64, dtype=np.int32)
    data = str(tmp_path / "data")
    with Service(tmp_path, data=data) as service:
        with service.client(page_tokens=16) as client:
            room = client.reserve(tokens=prompt, namespace=space)
            for page in range(4):
                room.block(page)[:] = content(page)
            assert client.commit(room).all()
            client.flush()
        assert service.drain() == 0
    path = listed(tmp_path, {"tokens": prompt.tolist()}, {"tokens": [9] * 40})
    with Service(tmp_path, data=data) as service:
        terms = (path, "--data", data, "--socket", service.path, "--namespace", "m")
        with service.client(page_tokens=16) as client:
            before = client.lookup(prompt, namespace=space, leave=0)
            status, told = warm(tmp_path, *terms, "--keep", "60")
            after = client.lookup(prompt, namespace=space, leave=0)
        assert status == 0 and told["warmed"] == 2
        assert (told["prompt_tokens"], told["cached_tokens"]) == (104, 64)
        assert (before.pages, before.pool_pages) == (4, 0), "it lay on the disk alone"
        assert (after.pages, after.pool_pages) == (4, 4)
        service.check()
        assert service.drain() == 0
    assert warm(tmp_path, *terms)[0] == 2, "no service listens there"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "no JSON object"),
        ("[1]", "no JSON object"),
        ('{"text": 1}', "expected one of prompt, tokens and messages, found 0"),
        ('{"prompt": "a", "tokens": [1]}', "found 2"),
        ('{"prompt": ""}', "expected a text or token ids"),
        ('{"prompt": [1, -1]}', "-1 is no token id"),
        ('{"tokens": [true]}', "true is no token id"),
        ('{"tokens": []}', "expected token ids, at least one"),
        ('{"tokens": [2147483648]}', "is no token id"),
        ('{"messages": []}', "expected a list of them"),
        ('{"messages": [{"content": "a"}]}', "messages[0]: expected an object with a role"),
        ('{"messages": [{"role": "user"}]}', "messages[0]: expected its content"),
    ],
)
def test_line_that_is_no_prompt_is_refused_by_its_number(line: str, what: str) -> None:
    with pytest.raises(OptionError) as error:
        read_prompts('{"prompt": "fine"}\n\n' + line + "\n", "list")
    assert str(error.value).startswith("list:3: ") and what in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "one of --url and --data"),
        (("--url", "http://127.0.0.1:1/v1", "--data", "d", "--model", "m"), "only one"),
        (("--url", "http://127.0.0.1:1/v1"), "--model: needed"),
        (("--url", "ftp://x", "--model", "m"), "--url: expected http"),
        (("--url", "http://x:99999", "--model", "m"), "--url"),
        (("--data", "nowhere", "--model", "m"), "--model: needs --url"),
        (("--url", "http://x", "--model", "m", "--keep", "1"), "--keep: needs --data"),
        (("--data", "nowhere"), "--data: nowhere holds no directory"),
        (("--url", "http://x", "--model", "m", "--concurrency", "0"), "--concurrency"),
        (("--url", "http://x", "--model", "m", "--retries", "-1"), "--retries"),
        (("--url", "http://x", "--model", "m", "--json", "/nowhere/x"), "--json"),
    ],
)
def test_bad_terms_end_with_2_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], what: str
) -> None:
    path = listed(tmp_path, {"tokens": [1]})
    try:
        status = main(["warm", path, *arguments])
    except SystemExit as end:  # argparse's own
        status = int(str(end.code))
    assert status == 2
    told = capsys.readouterr().err
    assert what in told and told.count("\n") == 1


def test_empty_and_missing_lists_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "bytes").write_bytes(b"fine\n\xff\n")
    for name in ("empty", "missing", "bytes"):
        assert main(["warm", str(tmp_path / name), "--url", "http://x", "--model", "m"]) == 2
