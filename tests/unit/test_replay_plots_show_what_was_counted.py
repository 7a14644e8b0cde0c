"""Every figure is a real PNG with labelled axes, also of a run too short to have a curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from radix.replay import plots
from radix.replay.history import History, Sample
from radix.replay.report import IndexReport, ModelReport, ModelRun, Run, TieredReport
from radix.replay.stopwatch import BYTES, REPLAY, TREE, StageTime

OVER_TIME = [plots.plot_hit_ratio_over_time, plots.plot_occupancy, plots.plot_bytes_moved]


def history(samples: int) -> History:
    made = History({"device": 1 << 20, "host": 1 << 22, "disk": 1 << 24})
    for step in range(samples):
        made.add(
            Sample(
                seconds=step / 10,
                prompt_tokens=100 * (step // 2),
                hit_tokens={"device": 30 * (step // 2), "host": 10 * (step // 2), "disk": 0},
                used_bytes={"device": 1 << 20, "host": 1000 * step, "disk": 2000 * step},
                moved_bytes={"device to host": 4096 * step, "host to disk": 4096 * step},
                written_bytes={"disk": 5000 * step},
            )
        )
    made.mark(0.2, "reopened")
    return made


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Keep the figures that are saved, beside saving them."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: object, **options: object) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def check(path: Path, figure: Figure) -> None:
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    axes = figure.axes[0]
    assert "(s)" in axes.get_xlabel() or "(blocks" in axes.get_xlabel()
    assert axes.get_ylabel()
    assert axes.get_title(loc="left")
    assert figure.legends


@pytest.mark.parametrize("plot", OVER_TIME)
def test_figures_over_time_have_labels_and_a_legend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plot: Callable[[History, Path], None]
) -> None:
    figures = drawn(monkeypatch)
    plot(history(200), tmp_path / "plot.png")
    check(tmp_path / "plot.png", figures[0])
    assert [text.get_text() for text in figures[0].axes[0].texts] == ["reopened"]


@pytest.mark.parametrize("samples", [0, 1, 2, 3])
@pytest.mark.parametrize("plot", OVER_TIME)
def test_figures_over_time_survive_a_run_of_few_samples(
    tmp_path: Path, plot: Callable[[History, Path], None], samples: int
) -> None:
    plot(history(samples), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_hit_ratio_over_time_adds_up_the_tiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn(monkeypatch)
    plots.plot_hit_ratio_over_time(history(50), tmp_path / "plot.png")
    total = next(line for line in figures[0].axes[0].lines if line.get_label() == "all tiers")
    assert set(map(float, total.get_ydata())) == {40.0}


def test_tiered_replay_draws_a_bar_for_each_stage_below_its_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn(monkeypatch)
    stages = (
        StageTime("match", TREE, 0.5, 4),
        StageTime("wait", BYTES, 1.0, 4),
        StageTime("rest", REPLAY, 0.5, 1),
    )
    report = TieredReport("trace", {}, (), (), stages)
    plots.plot_tiered_replay(report, history(50), tmp_path / "plot.png")
    check(tmp_path / "plot.png", figures[0])
    above, middle, below = figures[0].axes
    assert [line for line in above.lines if line.get_label() == "all tiers"]
    (written,) = [line for line in middle.lines if str(line.get_label()).startswith("written to")]
    assert written.get_ydata()[-1] == 5000 * 49
    assert [label.get_text() for label in below.get_yticklabels()] == ["match", "wait", "rest"]
    assert [bar.get_width() for bar in below.patches] == [25.0, 50.0, 25.0]
    assert below.get_xlabel() and below.get_ylabel() and "2 s" in below.get_title(loc="left")
    told = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert {f"{TREE} (25.0 %)", f"{BYTES} (50.0 %)", f"{REPLAY} (25.0 %)"} <= set(told)


def test_no_window_of_a_hit_ratio_reaches_over_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn(monkeypatch)
    made = History({"device": 100})
    for step in range(201):
        # Nothing hits before the mark at 10 s, everything behind it.
        hits = max(0, step - 100) * 7
        made.add(Sample(step / 10, step * 7, {"device": hits}, {"device": 0}, {}, {}))
    made.mark(9.95, "reopened")
    plots.plot_hit_ratio_over_time(made, tmp_path / "plot.png")
    before, after, _mark = figures[0].axes[0].lines
    assert (max(before.get_xdata()), set(before.get_ydata())) == (9.9, {0.0})
    assert (min(after.get_xdata()), set(after.get_ydata())) == (10.0, {100.0})


def test_hit_ratio_by_capacity_draws_a_curve_for_each_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn(monkeypatch)
    runs = (Run("lru", 20, 5, 5, 10, 0.1, {}), Run("lru", 10, 2, 2, 10, 0.1, {}))
    report = IndexReport("/x/t", 3, 10, 4, (*runs, Run("optimal", 10, 6, 6, 10, 0.1, {})))
    plots.plot_hit_ratio_by_capacity(report, tmp_path / "plot.png")
    check(tmp_path / "plot.png", figures[0])
    curves = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in figures[0].axes[0].lines
    }
    assert curves["lru"] == ([10, 20], [20.0, 50.0])
    assert curves["optimal"] == ([10], [60.0])
    assert curves["unlimited capacity"][1] == [60.0, 60.0]


def model_run(checkpoints: str, budget_bytes: int, hit_tokens: int) -> ModelRun:
    return ModelRun(
        policy="lru",
        capacity_blocks=1,
        hit_blocks=1,
        usable_hit_blocks=1,
        total_blocks=9,
        seconds=0.1,
        tenants={},
        model="m",
        checkpoints=checkpoints,
        budget_bytes=budget_bytes,
        hit_tokens=hit_tokens,
        known_tokens=hit_tokens,
        state_bytes=0,
        state_bytes_peak=0,
        resident_bytes={},
        evicted_blocks={},
    )


def model_report(*runs: ModelRun) -> ModelReport:
    return ModelReport(
        trace="/x/t",
        requests=3,
        blocks=9,
        unique_blocks=5,
        model="m",
        page_tokens=512,
        prompt_tokens=5000,
        odd_lengths=0,
        footprint_bytes=1 << 40,
        footprint_checkpoints="branch+turn",
        footprint_hit_tokens=2500,
        runs=runs,
    )


def test_hit_tokens_by_budget_draws_a_curve_for_each_checkpoint_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn(monkeypatch)
    runs = (
        model_run("branch+turn", 2 << 30, 2000),
        model_run("dense", 2 << 30, 900),
        model_run("branch+turn", 1 << 30, 1500),
    )
    plots.plot_hit_tokens_by_budget(model_report(*runs), tmp_path / "plot.png")
    axes = figures[0].axes[0]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "(bytes" in axes.get_xlabel()
    assert "tokens" in axes.get_ylabel()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1 GiB", "2 GiB"]
    curves = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines
    }
    assert curves["branch+turn"] == ([1 << 30, 2 << 30], [1500, 2000])
    assert curves["dense"] == ([2 << 30], [900])
    assert curves["unlimited, branch+turn"][1] == [2500, 2500]


def test_hit_tokens_by_budget_survives_a_model_that_never_hits(tmp_path: Path) -> None:
    report = replace(model_report(model_run("dense", 1000, 0)), footprint_hit_tokens=0)
    plots.plot_hit_tokens_by_budget(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_samples_out_of_order_are_refused() -> None:
    made = history(3)
    with pytest.raises(ValueError, match="came after a later one"):
        made.add(Sample(0.0, 0, {}, {}, {}, {}))
