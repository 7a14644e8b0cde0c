"""Results go to stdout, a fault is one line on stderr, and the exit status tells which it was."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from radix import __version__
from radix.cli import main

TRACE = [
    {"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1, 2, 3]},
    {"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [4, 5]},
    {"timestamp": 2, "input_length": 1, "output_length": 1, "hash_ids": [1, 2, 3]},
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in TRACE))
    return str(path)


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    try:
        status = main(arguments)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        status = ended.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


def test_optimum_is_printed_as_a_table(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", trace, "--policy", "optimal", "--capacity", "3"]) == 0
    out, err = capsys.readouterr()
    assert "optimal" in out
    assert "5 unique" in out
    assert err == ""


def test_json_on_stdout_stands_alone(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", trace, "--policy", "optimal", "--capacity", "3,40%", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == ""
    assert {name: report[name] for name in ("trace", "requests", "blocks", "unique_blocks")} == {
        "trace": trace,
        "requests": 3,
        "blocks": 8,
        "unique_blocks": 5,
    }
    assert [
        (r["capacity_blocks"], r["hit_blocks"], r["usable_hit_blocks"]) for r in report["runs"]
    ] == [
        (3, 3, 2),
        (2, 2, 2),
    ]


def test_json_and_plot_are_written_to_files(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, plot = tmp_path / "result.json", tmp_path / "plot.png"
    arguments = ["replay", trace, "--policy", "optimal", "--capacity", "3"]
    assert main([*arguments, "--json", str(result), "--plot", str(plot)]) == 0
    assert json.loads(result.read_text())["runs"][0]["hit_blocks"] == 3
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "optimal" in capsys.readouterr().out


def test_standard_input_is_a_trace(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(trace).read_bytes())))
    assert main(["replay", "-", "--policy", "optimal", "--capacity", "3", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["trace"] == "<stdin>"


def test_faulty_line_is_named_by_file_line_and_field(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(trace).open("a") as file:
        file.write('{"timestamp": 3, "hash_ids": [1, -2]}\n')
    err = refuse(capsys, "replay", trace)
    assert err == f"radix: {trace}:4: hash_ids[1]: -2 is outside [0, 2^31)\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--capacity", "0"], "--capacity"),
        (["--capacity", "1%"], "--capacity"),
        (["--capacity", "five"], "--capacity"),
        (["--policy", "mru"], "--policy"),
        (["--page-tokens", "0"], "--page-tokens"),
        (["--tiers", "device"], "--tiers"),
        (["--tiers", "device=1", "--block-bytes", "0"], "--block-bytes"),
        (["--tiers", "device=1", "--data", "x"], "--data"),
        (["--tiers", "device=1", "--capacity", "5"], "--capacity"),
        (["--tiers", "device=1", "--policy", "lru"], "--policy"),
        (["--verify"], "--verify"),
        (["--data", "x"], "--data"),
        (["--block-bytes", "4096"], "--block-bytes"),
        (["--json", "/no/such/folder/x.json"], "--json"),
        (["--plot", "/no/such/folder/x.png"], "--plot"),
        (["--json", "/"], "--json"),
        (["--model", "GPT-0"], "--model"),
        (["--model", "nowhere.toml"], "nowhere.toml"),
        (["--model", "Llama-3.1-8B", "--capacity", "5"], "--capacity"),
        (["--model", "Llama-3.1-8B", "--policy", "optimal"], "--policy"),
        (["--model", "Llama-3.1-8B", "--tiers", "device=1"], "--model"),
        (["--model", "Llama-3.1-8B", "--budget-bytes", "5"], "--budget-bytes"),
        (["--model", "Llama-3.1-8B", "--budget-bytes", "five"], "--budget-bytes"),
        (["--model", "Llama-3.1-8B", "--checkpoints", "often"], "--checkpoints"),
        (["--model", "Llama-3.1-8B", "--checkpoints", "every=100"], "--checkpoints"),
        (["--budget-bytes", "5%"], "--budget-bytes"),
        (["--checkpoints", "dense"], "--checkpoints"),
        (["--frobnicate"], "--frobnicate"),
        (["--cap", "5"], "--cap"),
    ],
)
def test_option_that_cannot_be_used_is_named(
    trace: str, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert named in refuse(capsys, "replay", trace, *arguments)


@pytest.mark.parametrize("arguments", [[], ["replay"], ["frobnicate"], ["demo", "--seed", "-1"]])
def test_incomplete_command_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    refuse(capsys, *arguments)


def test_missing_trace_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nowhere")
    err = refuse(capsys, "replay", missing, "--json", str(tmp_path / "result.json"))
    assert err == f"radix: {missing}: no such file\n"
    assert not list(tmp_path.iterdir())


def test_version_and_help_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in [
        (["--version"], f"radix {__version__}\n"),
        (["replay", "--help"], "--capacity"),
        (["demo", "--help"], "--seed"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert expected in capsys.readouterr().out


def test_interrupt_ends_with_one_line_and_status_130() -> None:
    program = (
        "import sys, radix.cli\n"
        "print('ready', flush=True)\n"
        "sys.exit(radix.cli.main(['replay', '-', '--policy', 'optimal']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    # More than a pipe holds: once it is all written, the child is reading.
    child.stdin.write((json.dumps(TRACE[0]) + "\n") * 5000)
    child.stdin.flush()
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) == 130
    assert child.stderr is not None
    assert child.stderr.read() == "radix: interrupted\n"


def test_counting_loads_neither_torch_nor_lmdb_nor_matplotlib(trace: str) -> None:
    program = (
        "import sys, radix.cli\n"
        f"radix.cli.main(['replay', {trace!r}, '--policy', 'optimal', '--capacity', '3'])\n"
        "print(sorted({'torch', 'lmdb', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_model_is_replayed_to_a_table_json_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, result, plot = (tmp_path / name for name in ("t.jsonl", "result.json", "plot.png"))
    lengths = [(1536, [1, 2, 3]), (2048, [1, 2, 3, 4]), (1600, [1, 2, 5, 6])]
    source.write_text(
        "\n".join(
            json.dumps({"timestamp": 0, "input_length": length, "hash_ids": ids})
            for length, ids in lengths
        )
    )
    arguments = ["--model", "Jamba-v0.1", "--budget-bytes", "50%,1GiB"]
    arguments += ["--checkpoints", "branch+turn,dense,every=1024"]
    arguments += ["--json", str(result), "--plot", str(plot)]
    assert main(["replay", str(source), *arguments]) == 0
    out, err = capsys.readouterr()
    assert "Jamba-v0.1" in out and "every=1024" in out
    assert err == ""
    assert plot.read_bytes().startswith(b"\x89PNG")
    runs = json.loads(result.read_text())["runs"]
    assert [(run["model"], run["checkpoints"]) for run in runs] == [
        ("Jamba-v0.1", policy)
        for _ in range(2)
        for policy in ("branch+turn", "dense", "every=1024")
    ]
    # The second prompt goes on where the first ended; the third leaves both after two blocks.
    assert [run["hit_tokens"] for run in runs[3:]] == [1536, 1536 + 1024, 1024 + 1024]
