"""`radix serve` says once where it is, logs lines of JSON, lets clients end on SIGTERM and finds
what was stored when it starts again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from radix.cli import main
from radix.service import DeniedError
from tests.service.program import Program, notifications
from tests.service.rig import ROOT, contents, keys_of

NAMES: list[object] = ["a", "b", "c"]


def test_it_says_where_it_is_and_drains(tmp_path: Path) -> None:
    with notifications(tmp_path) as systemd:
        told_systemd = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with Program(tmp_path, "--data", str(tmp_path / "data"), environment=told_systemd) as run:
            assert systemd.recv(100) == b"READY=1"
            assert run.told["ready"] is True and run.told["pid"] == run.process.pid
            assert run.told["socket"] == run.path and run.told["admin"].startswith("127.0.0.1:")
            with run.client() as client:
                assert client.write(keys_of(NAMES), contents(NAMES)).all()
                there, blocks = client.read(keys_of(NAMES))
                assert there.all() and (blocks == contents(NAMES)).all()
                status = run.get("/status")
                (store,) = status["stores"]
                assert store["tiers"][1]["blocks"] == {"kv": 3} and status["connections"] == 1
                assert run.get("/healthz") == {"state": "running"}
                tree = run.get(f"/tree?store={store['name']}")
                root = tree["namespaces"][0]["root"]
                nodes = run.get(f"/tree?store={store['name']}&root={root}&node={root}")["nodes"]
                assert len(nodes) == 3
            assert run.end() == 0
            assert systemd.recv(100) == b"STOPPING=1"
            assert run.process.stdout is not None and run.process.stdout.read() == ""
            messages = [line["message"] for line in run.log]
            assert messages[0] != messages[-1] == "ended" and "ready" in messages
            assert all({"time", "level", "logger"} <= set(line) for line in run.log)
    with Program(tmp_path, "--data", str(tmp_path / "data")) as again, again.client() as client:
        there, blocks = client.read(keys_of([*NAMES, "d"]))
        assert there.tolist() == [True, True, True, False]
        assert (blocks == contents(NAMES)).all()


def test_a_client_at_work_may_end_before_it_does(tmp_path: Path) -> None:
    with Program(tmp_path) as run, run.client() as client:
        client.write(keys_of(NAMES), contents(NAMES))
        lease = client.lease(keys=keys_of(NAMES))
        run.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while not any(line["message"] == "draining" for line in run.log):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert run.process.poll() is None
        lease.release()
        client.close()
        assert run.process.wait(30) == 0


def test_a_second_signal_ends_it_now(tmp_path: Path) -> None:
    with Program(tmp_path) as run, run.client() as client:
        client.write(keys_of(NAMES), contents(NAMES))
        client.lease(keys=keys_of(NAMES))
        run.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while not any(line["message"] == "draining" for line in run.log):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert run.end(signal.SIGINT) == 130


def test_a_file_and_flags_say_what_it_is(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    file = tmp_path / "radix.toml"
    file.write_text('host_bytes = "4MiB"\n[tenants.acme]\nquota_bytes = "8MiB"\n')
    flags = ["--config", str(file), "--listen", "127.0.0.1:0"]
    tenant = f"acme:uids={os.getuid()},secret_file={secret}"
    with Program(tmp_path, *flags, "--tenant", tenant) as run:
        (acme,) = run.get("/status")["tenants"]
        assert (acme["name"], acme["quota_bytes"]) == ("acme", None)  # the flag's takes its place
        assert run.told["listen"].startswith("127.0.0.1:")


def test_the_log_names_connection_and_request(tmp_path: Path) -> None:
    tenant = f"default:uids={os.getuid()},namespaces=acme/"
    with Program(tmp_path, "--log-level", "debug", "--tenant", tenant) as run:
        with run.client() as client, pytest.raises(DeniedError):
            client.write(keys_of(NAMES), contents(NAMES))
        (line,) = [each for each in run.log if each["message"].startswith("refused: ")]
        assert {
            "connection": 1,
            "op": 3,
            "status": "DENIED",
            "level": "debug",
        }.items() <= line.items()
        assert line["request"] > 0 and "acme/" in line["message"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--host-bytes", "much"], "--host-bytes: expected a size"),
        (["--config", "/nowhere/x.toml"], "--config: /nowhere/x.toml: No such file"),
        (["--tenant", "a:uids"], "--tenant: expected NAME:KEY=VALUE"),
        (["--admin", "0.0.0.0:1"], "--admin: the admin page knows no users"),
        (["--listen", "127.0.0.1:0"], "--listen: TCP needs tenants that prove"),
        (["--max-frame-bytes", "1"], "--max-frame-bytes: expected at least"),
        (["--remote", "redis://nowhere"], "--remote: url must name host:port"),
        (["--remote", "mooncake://127.0.0.1:1?colour=red"], "--remote: url: 'colour' is not one"),
        (["--remote-s", "0"], "--remote-s: expected seconds above 0"),
        (["--remote-blocks", "0"], "--remote-blocks: expected"),
    ],
)
def test_bad_input_is_one_line(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("radix: ") and named in err and err.count("\n") == 1


def test_an_address_that_is_taken_is_told(tmp_path: Path) -> None:
    with Program(tmp_path) as run:
        flags = ["--socket", str(tmp_path / "other.sock"), "--admin", run.told["admin"]]
        for each in (flags, ["--socket", run.path, "--admin", "none"]):
            done = subprocess.run(
                [sys.executable, "-m", "radix.cli", "serve", *each],
                capture_output=True,
                text=True,
                cwd=ROOT,
                timeout=60,
            )
            assert done.returncode in (1, 2) and done.stdout == ""
            assert "radix: " in done.stderr.splitlines()[-1]
        assert run.get("/healthz") == {"state": "running"}


def test_its_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    from radix.service.config import OPTIONS

    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert not [option.flag for option in OPTIONS if option.flag not in text]
