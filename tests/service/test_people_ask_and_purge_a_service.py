"""`radix purge`, `radix explain` and `radix top` against a service that runs and against its
directory: what was purged stays away after kill -9, nothing else goes, and a miss is explained.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from radix import Namespace
from radix.cli import main
from radix.service import Client
from radix.service.control import control_path
from tests.service.program import Program
from tests.service.rig import GROUPS, content, contents, keys_of

LLAMA, OTHER = Namespace("llama", revision="r1"), Namespace("other")
NAMES: list[object] = list(range(40))


def tell(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json", "-"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def there(client: Client, name: Namespace) -> int:
    return int((client.has(keys_of(NAMES), namespace=name) >= 0).sum())


def written(client: Client) -> None:
    for name in (LLAMA, OTHER):
        assert client.write(keys_of(NAMES), contents(NAMES), namespace=name).all()


def test_what_is_purged_stays_away_after_a_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(tmp_path / "data")]
    with Program(tmp_path, *data) as run, run.client() as client:
        written(client)
        lease = client.lease(keys=keys_of(NAMES[:5]), namespace=LLAMA)
        went = tell(capsys, "purge", "--namespace", "llama", "--socket", run.path)
        assert (went["keys"], went["namespaces"], went["entries"]) == (40, 1, 0)
        assert (there(client, LLAMA), there(client, OTHER)) == (0, 40)
        lease.release()
        run.end(signal.SIGKILL)
    with Program(tmp_path, *data) as run, run.client() as client:
        assert (there(client, LLAMA), there(client, OTHER)) == (0, 40)
        found, blocks = client.read(keys_of(NAMES), namespace=OTHER)
        assert found.all() and (blocks == contents(NAMES)).all()


def test_stores_that_nobody_opened_again_are_purged_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(tmp_path / "data")]
    with Program(tmp_path, *data) as run, run.client() as client:
        written(client)
        client.close()
        assert run.end() == 0
    with Program(tmp_path, *data) as run:
        went = tell(capsys, "purge", "--tenant", "default", "--socket", run.path)
        assert (went["keys"], went["directories"], went["entries"]) == (0, 1, 80)
        with run.client() as client:
            assert (there(client, LLAMA), there(client, OTHER)) == (0, 0)


def test_a_directory_is_purged_without_a_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    with Program(tmp_path, "--data", str(folder)) as run, run.client() as client:
        written(client)
        assert main(["purge", "--namespace", "llama", "--data", str(folder)]) == 1
        assert "is held by pid" in capsys.readouterr().err
        client.close()
        assert run.end() == 0
    (slab,) = folder.rglob("slab-0000")
    asked = content(NAMES[7]).tobytes()
    assert slab.read_bytes().count(asked) == 2
    told = tell(capsys, "purge", "--namespace", "model=llama,revision=r2", "--data", str(folder))
    assert told["entries"] == 0
    told = tell(capsys, "purge", "--namespace", "model=llama,revision=r1", "--data", str(folder))
    assert told["entries"] == 40
    assert slab.read_bytes().count(asked) == 1  # the bytes are gone, not only their record
    report = tell(capsys, "inspect", str(folder), "--verify")["directories"][0]
    assert (report["entries"], report["verified"]["corrupt"]) == (40, 0)
    with Program(tmp_path, "--data", str(folder)) as run, run.client() as client:
        assert (there(client, LLAMA), there(client, OTHER)) == (0, 40)


def test_a_prompt_that_missed_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = np.arange(5 * 16 + 3, dtype=np.int32)
    file = tmp_path / "prompt.json"
    file.write_text(json.dumps(prompt.tolist()))
    ask = ["explain", "--tokens", str(file)]
    folder = tmp_path / "data"
    with Program(tmp_path, "--data", str(folder)) as run:
        with Client(run.path, GROUPS, page_tokens=16) as client:
            room = client.reserve(tokens=prompt[:64], namespace=LLAMA)
            for row, block in enumerate(contents([0, 1, 2, 3])):
                room.block(row)[:] = block
            assert client.commit(room).all()
            reaches = tell(capsys, *ask, "--socket", run.path)["reaches"]
            (reach,) = reaches
            assert (reach["model"], reach["revision"], reach["tenant"]) == (
                "llama",
                "r1",
                "default",
            )
            assert (reach["asked"], reach["hit"], reach["pool"]) == (5, 4, 4)
            assert (reach["reason"], reach["there"]) == ("cold", {"kv": 4})
            asked = tell(capsys, *ask, "--socket", run.path, "--namespace", "mistral")["reaches"]
            assert asked == []
            before = run.get("/status")["stores"][0]["counters"]
            tell(capsys, *ask, "--socket", run.path)
            assert run.get("/status")["stores"][0]["counters"] == before
        assert run.end() == 0
    with Program(tmp_path, "--data", str(folder)) as run:
        with Client(run.path, GROUPS, page_tokens=16) as client:
            assert client.lookup(prompt, namespace=LLAMA).pages == 4
            (reach,) = tell(capsys, *ask, "--socket", run.path)["reaches"]
            assert (reach["hit"], reach["pool"]) == (4, 0)  # from here on it is on disk alone
        assert run.end() == 0
    (reach,) = tell(capsys, *ask, "--data", str(folder))["reaches"]
    assert (reach["asked"], reach["hit"], reach["there"]) == (5, 4, {"kv": 4})
    assert "not on this disk" in reach["reason"]
    assert main([*ask, "--data", str(folder)]) == 0
    assert "llama" in capsys.readouterr().out


def test_keys_that_missed_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("\n".join(key.tobytes().hex() for key in keys_of(["x", *NAMES[:4]])))
    with Program(tmp_path) as run, run.client() as client:
        written(client)
        ask = ["explain", "--keys", str(file), "--socket", run.path]
        reaches = tell(capsys, *ask, "--tenant", "default")["reaches"]
        assert {reach["model"] for reach in reaches} == {"llama", "other"}
        assert {(reach["hit"], reach["there"]["kv"]) for reach in reaches} == {(0, 4)}
        file.write_text("zz")
        assert main(ask) == 1
        assert "hex" in capsys.readouterr().err


def test_top_shows_a_service_in_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Program(tmp_path) as run, run.client() as client:
        written(client)
        there(client, LLAMA)
        capsys.readouterr()
        assert main(["top", "--once", "--admin", run.told["admin"]]) == 0
        text = capsys.readouterr().out
        assert "running" in text and "host" in text and "default" in text
        assert main(["top", "--once", "--json", "--admin", run.told["admin"]]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "running"
    assert main(["top", "--once", "--admin", run.told["admin"]]) == 2
    assert "no service answers" in capsys.readouterr().err


def test_only_its_own_user_may_ask() -> None:
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with Program(folder) as run:
            path = control_path(Path(run.path))
            assert path.stat().st_mode & 0o777 == 0o600
            if os.geteuid() == 0:
                path.chmod(0o666)
                child = os.fork()
                if child == 0:  # another user; in a child, for there is no way back
                    ended = 1
                    try:
                        ended = _turned_away(path)
                    finally:
                        os._exit(ended)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert run.end() == 0
            assert not path.exists()


def _turned_away(path: Path) -> int:
    """0 where somebody who is nobody is not answered."""
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(20)
        link.connect(str(path))
        try:
            link.sendall(b"POST /purge HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
            return len(link.recv(1))
        except ConnectionError:
            return 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["purge"], "--namespace: say which"),
        (["purge", "--namespace", "modle=x", "--socket", "/nowhere"], "--namespace: expected a"),
        (["purge", "--tenant", "a", "--socket", "/nowhere"], "--socket: no service listens"),
        (["purge", "--tenant", "a", "--data", "/nowhere"], "--data: /nowhere is no directory"),
        (["purge", "--tenant", "a", "--data", "/x", "--socket", "/y"], "--socket: cannot go"),
        (["explain", "--tokens", "/dev/null"], "--tokens: /dev/null: nothing in it"),
        (["top", "--json"], "--json: needs --once"),
        (["top", "--every", "soon"], "--every: expected seconds"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and named in err and err.count("\n") == 1
