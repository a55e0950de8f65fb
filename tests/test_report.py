"""`report`: a page that needs nothing else, says what the simulator says, and works in a browser."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hremate as hr
from hremate.io import read_schedule, write_schedule
from hremate.partition.intervals import intervals
from hremate.report import report
from hremate.simulate import simulate

HOSTILE = '</script><script>alert(1)</script><!-- & "quoted" \' {{data}} \u2028 \ud800 é'


def training(names: str = "f") -> hr.Graph:
    """Base peak 50; running the first op again before the last reaches 40."""
    ops = [hr.Op(f"{names}0", 2.0, (), (("x0", 10),), phase="forward", type="mul", scope="net.0")]
    ops += [
        hr.Op(f"{names}{i}", 4.0, (f"x{i - 1}",), ((f"x{i}", 10),), 0, "forward", "add", "net.1")
        for i in (1, 2, 3)
    ]
    ops += [hr.Op("b3", 4.0, ("x3",), (("g3", 10),), phase="backward")]
    ops += [
        hr.Op(f"b{i}", 4.0, (f"x{i}", f"g{i + 1}"), ((f"g{i}", 10),), 1, phase="backward") for i in (2, 1, 0)
    ]
    return hr.Graph.from_ops(ops, name=f"training {names}")


GIVEN = hr.Schedule(range(8))
AGAIN = hr.Schedule([0, 1, 2, 3, 4, 5, 6, 0, 7])


def data(path: Path) -> dict[str, Any]:
    """The document inside a page."""
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    document: dict[str, Any] = json.loads(found[1])
    return document


# -- the page -------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_simulator(tmp_path: Path) -> None:
    graph = training()
    report(graph, {"given": GIVEN, "again": AGAIN}, tmp_path / "r.html", budget=41)
    document = data(tmp_path / "r.html")
    assert [s["label"] for s in document["schedules"]] == ["given", "again"]
    for told, schedule in zip(document["schedules"], (GIVEN, AGAIN), strict=True):
        expected = simulate(graph, schedule)
        assert told["memory"] == expected.memory.tolist()
        assert np.array(told["bands"]).sum(axis=0).tolist() == told["memory"]
        assert (told["peak"], told["peak_step"], told["time"]) == (
            expected.peak, expected.peak_step, expected.time,
        )  # fmt: skip
        assert (told["recomputes"], told["budget"]) == (expected.recomputes, 41)
    assert document["graph"]["base_peak"] == 51


def test_the_page_names_no_other_resource(tmp_path: Path) -> None:
    report(training(), GIVEN, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert re.findall(r"https?://|//[a-z]+\.|@import|url\(|<img|src=", text) == []
    assert re.findall(r"<link[^>]*>", text) == ['<link rel="icon" href="data:,">']
    assert "default-src 'none'" in text


def test_whatever_a_name_holds_it_is_data(tmp_path: Path) -> None:
    graph = training(HOSTILE)
    report(graph, {HOSTILE: AGAIN}, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2 and "<!--" not in text
    document = data(tmp_path / "r.html")
    assert document["ops"]["name"] == list(graph.op_names)
    assert document["schedules"][0]["label"] == HOSTILE


def test_schedules_may_be_results_files_and_paths(tmp_path: Path) -> None:
    graph = training()
    result = hr.solve(graph, 45, "beam")
    assert result.schedule is not None
    path = tmp_path / "s.json"
    write_schedule(result.schedule, path, graph, budget=45, method="beam")
    report(graph, [result, read_schedule(path), path, str(path), AGAIN, GIVEN], tmp_path / "r.html")
    told = data(tmp_path / "r.html")["schedules"]
    assert [s["label"] for s in told] == [
        "beam, 45 B", "beam, 45 B (2)", "beam, 45 B (3)", "beam, 45 B (4)", "schedule",
        "given order",
    ]  # fmt: skip
    assert [s["budget"] for s in told] == [45, 45, 45, 45, None, None]
    assert told[0]["status"] == "optimal" and told[0]["lower_bound"] == result.lower_bound
    report(graph, path, tmp_path / "r.html")
    assert [s["label"] for s in data(tmp_path / "r.html")["schedules"]] == ["beam, 45 B"]


def test_ops_are_grouped_by_block_scope_type_and_phase(tmp_path: Path) -> None:
    graph = training()
    tree = intervals(graph, 2, split=4)
    report(graph, GIVEN, tmp_path / "r.html", tree=tree)
    groupings = data(tmp_path / "r.html")["groupings"]
    labels = [g["label"] for g in groupings]
    assert labels == ["Block", "Scope, level 1", "Scope, level 2", "Op type", "Phase"]
    for grouping in groupings:
        assert len(grouping["group"]) == graph.n_ops
        assert sorted(set(grouping["group"])) == list(range(len(grouping["names"])))
    blocks = groupings[0]
    for k, block in enumerate(tree.blocks):
        assert {blocks["names"][blocks["group"][op]] for op in block.ops.tolist()} == {f"block {k}"}


def test_a_graph_without_types_scopes_and_phases_has_a_page_too(tmp_path: Path) -> None:
    graph = hr.Graph.from_ops([hr.Op("a", 0.0, (), (("x", 0),))])
    report(graph, hr.Schedule([0]), tmp_path / "r.html")
    assert [g["label"] for g in data(tmp_path / "r.html")["groupings"]] == ["Phase"]


@pytest.mark.parametrize(
    ("schedules", "error", "message"),
    [
        ([], hr.ScheduleError, "at least one"),
        ({}, hr.ScheduleError, "at least one"),
        ({"mine": hr.Schedule([7, 0])}, hr.ScheduleError, "mine: "),
        ("no such file", hr.FormatError, "no such file"),
    ],
)
def test_bad_schedules_are_errors_that_name_them(
    schedules: Any, error: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        report(training(), schedules, tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_file_of_another_graph_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_schedule(AGAIN, tmp_path / "s.json", training("other"), method="beam")
    with caplog.at_level(logging.WARNING, "hremate"):
        report(training(), tmp_path / "s.json", tmp_path / "r.html")
    assert "s.json was written for another graph" in caplog.text


def test_a_file_that_holds_no_schedule_of_the_graph_is_named(tmp_path: Path) -> None:
    write_schedule(AGAIN, tmp_path / "bad.json", training(), method="beam")
    content = json.loads((tmp_path / "bad.json").read_text())
    content["order"].reverse()
    (tmp_path / "bad.json").write_text(json.dumps(content))
    with pytest.raises(hr.ScheduleError, match=r"bad\.json: "):
        report(training(), [AGAIN, tmp_path / "bad.json"], tmp_path / "r.html")


# -- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium; the tests are skipped where it or selenium is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("needs the programs chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--window-size=1300,1000",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


class Page:
    """A report opened in the browser."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get_log("browser")  # forget those of the page before
        browser.get(path.as_uri())

    def all(self, css: str) -> list[Any]:
        found: list[Any] = self.browser.find_elements("css selector", css)
        return found

    def text(self, css: str) -> str:
        script = "return document.querySelector(arguments[0]).textContent"
        return str(self.browser.execute_script(script, css))

    def click(self, css: str) -> None:
        self.all(css)[0].click()

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.browser.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )

    def hover(self, share: float, chart: int = 0) -> str:
        """Move the pointer to a share of the width of a chart; the op that the page then shows."""
        from selenium.webdriver.common.action_chains import ActionChains

        self.frame()
        canvas = self.all(".chart canvas")[chart]
        left, right = (float(canvas.get_attribute(f"data-{side}")) for side in ("left", "right"))
        x = left + share * (right - left) - canvas.size["width"] / 2
        ActionChains(self.browser, duration=0).move_to_element_with_offset(canvas, round(x), 20).perform()
        return self.text("#detail-op")

    def keys(self, *keys: str) -> str:
        canvas = self.all(".chart canvas")[0]
        for key in keys:
            canvas.send_keys(key)
        return self.text("#detail-op")

    def no_errors(self) -> None:
        assert self.browser.get_log("browser") == []


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Page:
    report(training(), {"again": AGAIN, "given": GIVEN}, tmp_path / "r.html", budget=45)
    return Page(browser, tmp_path / "r.html")


def test_hovering_shows_the_op_that_runs_there(page: Page) -> None:
    graph, order = training(), AGAIN.order.tolist()
    names = [graph.op_names[op] for op in order]
    starts = np.concatenate([[0.0], np.cumsum(graph.time[AGAIN.order])])
    middles = (starts[1:] + starts[:-1]) / 2 / starts[-1]
    assert [page.hover(share) for share in middles] == names
    page.click("#by-step")
    assert [page.hover((i + 0.5) / len(order)) for i in range(len(order))] == names
    page.hover(7.5 / 9)
    assert "Recomputed" in page.text("#detail") and "run 2 of 2" in page.text("#detail")
    page.no_errors()


def test_the_live_tensors_are_those_of_the_step_and_at_most_ten(browser: Any, tmp_path: Path) -> None:
    ops = [hr.Op(f"f{i}", 1.0, (), ((f"x{i}", 10 + i),)) for i in range(15)]
    graph = hr.Graph.from_ops([*ops, hr.Op("end", 1.0, tuple(f"x{i}" for i in range(15)), (("y", 1),))])
    report(graph, hr.Schedule(range(16)), tmp_path / "r.html")
    page = Page(browser, tmp_path / "r.html")
    page.hover(2.5 / 16)
    assert [row.text.split()[0] for row in page.all(".live tr")] == ["x2", "x1", "x0"]
    page.hover(15.5 / 16)
    assert [row.text.split()[0] for row in page.all(".live tr")] == [f"x{i}" for i in range(14, 4, -1)]
    assert f"largest 10 of 16 · {sum(range(10, 25)) + 1} B" in page.text("#detail")
    page.no_errors()


def test_zoomed_in_hovering_still_shows_the_right_op(page: Page) -> None:
    page.click("#by-step")
    page.click("#zoom-in")  # of 9 steps, the middle half: 2.25 to 6.75
    assert page.hover((3.5 - 2.25) / 4.5) == "f3"
    assert page.hover((5.5 - 2.25) / 4.5) == "b2"
    page.click("#zoom-all")
    assert page.hover(8.5 / 9) == "b0"
    page.no_errors()


def test_the_keyboard_moves_by_steps_to_the_peak_and_to_recomputed_steps(page: Page) -> None:
    assert page.keys("\ue011") == "f0"  # Home
    assert page.keys("\ue014", "\ue014") == "f2"  # right
    assert page.keys("\ue012") == "f1"  # left
    assert page.keys("r") == "f0"
    assert page.all("#detail")[0].get_attribute("data-step") == "7"
    peak = simulate(training(), AGAIN).peak_step
    assert page.keys("p") == training().op_names[AGAIN.order[peak]]
    assert page.keys("\ue010") == "b0"  # End
    page.no_errors()


def test_two_schedules_lie_beside_each_other_and_either_can_be_read(page: Page) -> None:
    assert len(page.all(".chart canvas")) == 2
    page.click("#by-step")
    assert page.hover(7.5 / 9, chart=1) == "b0" and "given" in page.text("#detail")
    assert page.hover(7.5 / 9, chart=0) == "f0" and "again" in page.text("#detail")
    page.browser.execute_script(
        "const s = document.getElementById('second'); s.value = -1; s.dispatchEvent(new Event('change'))"
    )
    assert len(page.all(".chart canvas")) == 1
    assert page.hover(7.5 / 9) == "f0"
    page.no_errors()


def test_the_table_of_recomputed_ops_says_what_they_cost_and_finds_them(page: Page) -> None:
    (row,) = page.all("#again tbody tr")
    assert row.text.split()[:6] == ["f0", "mul", "net.0", "1", "2", "µs"]
    page.all("#filter")[0].send_keys("no such op")
    assert page.all("#again tbody tr") == []
    page.all("#filter")[0].clear()
    page.all("#filter")[0].send_keys("NET.0")
    page.click("#again tbody tr")
    assert page.text("#detail-op") == "f0"
    assert page.all("#detail")[0].get_attribute("data-step") == "7"
    page.no_errors()


def test_names_that_look_like_markup_are_shown_as_they_are(browser: Any, tmp_path: Path) -> None:
    hostile = '</script><script>document.title="broken"</script><b>&amp;'
    graph = training(hostile)
    report(graph, {hostile: AGAIN}, tmp_path / "r.html")
    page = Page(browser, tmp_path / "r.html")
    page.click("#by-step")
    assert page.hover(0.5 / 9) == f"{hostile}0"
    assert browser.title.startswith(f"training {hostile}") and page.text("h1") == f"training {hostile}"
    assert page.all("#detail b") == []
    page.no_errors()


def test_a_graph_of_thousands_of_ops_makes_few_nodes(browser: Any, tmp_path: Path) -> None:
    graph = hr.generate("chain", 5000)
    report(graph, hr.Schedule([*range(3000), *range(100), *range(3000, graph.n_ops)]), tmp_path / "r.html")
    page = Page(browser, tmp_path / "r.html")
    page.click("#by-step")
    steps = graph.n_ops + 100
    shown = page.hover(0.5)
    step = int(page.all("#detail")[0].get_attribute("data-step"))
    order = [*range(3000), *range(100), *range(3000, graph.n_ops)]
    assert abs(step - steps / 2) < 20 and shown == graph.op_names[order[step]]
    assert len(page.all("*")) < 1000
    assert len(page.all("#again tbody tr")) == 20
    page.click("#theme")
    page.frame()
    page.no_errors()


def test_dragging_pans_and_the_wheel_zooms_with_ctrl_only(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page.click("#by-step")
    page.click("#zoom-in")  # 2.25 to 6.75
    assert page.hover(0.5 / 4.5) == "f2"
    canvas = page.all(".chart canvas")[0]
    left, right = (float(canvas.get_attribute(f"data-{side}")) for side in ("left", "right"))
    by = round((right - left) / 4.5)
    ActionChains(page.browser, duration=0).click_and_hold().move_by_offset(by, 0).release().perform()
    assert page.hover(0.5 / 4.5) == "f1"  # 1.25 to 5.75

    def wheel(ctrl: str) -> None:
        page.browser.execute_script(
            "const c = arguments[0], r = c.getBoundingClientRect();"
            "c.dispatchEvent(new WheelEvent('wheel', {deltaY: 900, ctrlKey: arguments[1], cancelable: true,"
            " clientX: (r.left + r.right) / 2, clientY: r.top + 50}))",
            canvas, ctrl,
        )  # fmt: skip

    wheel("")
    assert page.hover(0.5 / 4.5) == "f1"
    for _ in range(8):
        wheel("yes")
    assert page.hover(0.5 / 9) == "f0" and page.hover(8.5 / 9) == "b0"
    page.no_errors()
