"""The report in a browser: sorting, exact values on hover, choosing curves and layers, and the films inside."""

import json
import re
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from tests.film.films import recorded
from tests.lab.made_up import sweep, write
from tests.lab.report.test_report import RUN, browse

from rewire.film.format import NAME
from rewire.lab.report import films, hover, report
from rewire.lab.results import folder_of, read_records

# Appended to the page; what it finds becomes the page's text.
PROBE = """<script>(async () => {{
  const seen = {{}}, wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const until = async (test) => {{ for (let i = 0; i < 200 && !test(); i++) await wait(50); }};
  const point = (of) => {{
    const box = of.getBoundingClientRect();
    of.dispatchEvent(new PointerEvent("pointermove", {{bubbles: true, clientX: box.left, clientY: box.top}}));
    return tip.classList.contains("shown") ? tip.textContent : "";
  }};
  {actions}
  document.body.textContent = JSON.stringify(seen);
}})();</script>"""


def act(page, tmp_path, actions):
    """What a page finds when it carries out these actions."""
    probe = tmp_path / "probe.html"
    probe.write_text(page.read_text().replace("</body>", PROBE.format(actions=actions) + "</body>"))
    dom = browse(tmp_path, probe, "--virtual-time-budget=20000", "--dump-dom")
    return json.loads(re.search(r"<body[^>]*>(.*?)</body>", dom, re.DOTALL)[1].replace("&amp;", "&"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    sweep(directory)
    recorded(folder_of(directory, read_records(directory)[-1].run))
    return report.write_report(directory)


def test_tables_sort_within_their_blocks_and_back(page, tmp_path):
    seen = act(
        page,
        tmp_path,
        """
        const table = document.querySelector("#table1-digits table"), body = table.tBodies[0];
        const column = () => [...body.querySelectorAll("tr")].map((row) => value(row, 0)).filter((v) => v !== null);
        const head = table.querySelector("thead tr:last-child th");
        seen.columns = [column()], seen.states = [];
        for (let i = 0; i < 3; i++) {
          head.querySelector("button").click();
          seen.columns.push(column());
          seen.states.push(head.getAttribute("aria-sort"));
        }
        table.querySelector("thead .stub button").click();
        seen.names = [...body.querySelectorAll("tr th.stub")].map((th) => th.textContent.toLowerCase());
        """,
    )
    before, down, up, again = seen["columns"]
    assert len(before) > 2
    assert before != sorted(before)
    assert (down, up, again) == (sorted(before, reverse=True), sorted(before), before)
    assert seen["states"] == ["descending", "ascending", None]
    assert seen["names"] == sorted(seen["names"])


def test_exact_values_and_seeds_appear_on_hover_and_by_keyboard(page, tmp_path):
    seen = act(
        page,
        tmp_path,
        """
        seen.curve = point(document.querySelector("[id^=accuracy] .points circle"));
        seen.layer = point(document.querySelector("[id^=layers] .points circle"));
        seen.density = point(document.querySelector("[id^=density] .points circle"));
        const table = document.querySelector("#table1-digits table"), cells = table.querySelectorAll("td");
        seen.cell = point(cells[1]);
        point(document.querySelector("h1"));
        cells[0].focus();
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true}));
        seen.focused = [document.activeElement.dataset.note, tip.textContent, tip.classList.contains("shown")];
        seen.stops = table.querySelectorAll("td[tabindex]").length;
        """,
    )
    assert re.fullmatch(r".+, epoch 1: \d+\.\d\d% \(seed 0: \d+\.\d\d%(, seed \d: \d+\.\d\d%)*\)", seen["curve"])
    assert re.fullmatch(r".+, conv1: [\d.]+%, [\d,]+ weights \(seed 0: [\d,]+(, seed \d: [\d,]+)*\)", seen["layer"])
    assert re.fullmatch(r"conv1, epoch 0: [\d.]+% \(mean of seeds [\d, ]+\)", seen["density"])
    assert "seed 0" in seen["cell"]
    assert seen["focused"] == [seen["focused"][0], seen["focused"][0], True]
    assert "seed 0" in seen["focused"][0]
    assert seen["stops"] == 1


def test_methods_and_layers_can_be_chosen(page, tmp_path):
    seen = act(
        page,
        tmp_path,
        """
        const section = document.querySelector("[id^=density]");
        const buttons = [...section.querySelectorAll(".choose button")];
        const visible = () => [...new Set([...section.querySelectorAll("svg [data-series]:not(.faint)")]
          .map((one) => one.dataset.series))];
        seen.names = buttons.map((one) => one.textContent);
        buttons[1].click();
        seen.one = [visible(), buttons[1].getAttribute("aria-pressed")];
        buttons[1].click();
        seen.all = visible();
        const select = document.querySelector("details.layers select");
        const rows = () => [...document.querySelectorAll(".masks:not([hidden])")].map((one) => one.dataset.layer);
        seen.rows = [rows()];
        select.value = "fc1";
        select.dispatchEvent(new Event("change"));
        seen.rows.push(rows());
        seen.alt = document.querySelector(".masks:not([hidden]) img").alt;
        """,
    )
    assert seen["names"] == ["conv1", "conv2", "conv3", "fc1", "fc2"]
    assert seen["one"] == [["conv2"], "true"]
    assert seen["all"] == seen["names"]
    assert seen["rows"] == [["conv3"], ["fc1"]]
    assert re.fullmatch(r"Mask of fc1, .+: [\d,]+ weights, [\d.]+%", seen["alt"])


def test_films_play_inside_the_report(page, tmp_path):
    seen = act(
        page,
        tmp_path,
        """
        document.querySelector("details.film").open = true;
        await until(() => document.querySelector("iframe"));
        const inside = () => document.querySelector("iframe").contentDocument;
        await until(() => inside() && inside().body && inside().body.dataset.ready);
        seen.said = inside().getElementById("said").textContent;
        seen.most = inside().getElementById("time").max;
        seen.fetched = performance.getEntriesByType("resource").length;
        """,
    )
    assert "weights moved" in seen["said"]
    assert seen["most"] == "9"
    assert seen["fetched"] == 0


def test_without_a_script_everything_but_the_films_is_there(page):
    text = page.read_text().partition("<script")[0] + page.read_text().partition("</main>")[0].rpartition("<svg")[2]
    assert 'title="mean' in text  # of a cell
    assert "<title>" in text.partition("<svg")[2]  # of a point
    assert text.count('class="masks"') == 5


def test_a_report_without_films_has_no_section_for_them(tmp_path):
    write(tmp_path, RUN)
    assert 'id="films"' not in report.write_report(tmp_path).read_text()


def test_only_as_many_films_as_a_page_can_hold(tmp_path, monkeypatch):
    for seed in range(3):
        run = replace(RUN, seed=seed)
        folder = write(tmp_path, run)
        recorded(folder)
    size = (folder / NAME).stat().st_size
    monkeypatch.setattr(films, "MOST", 2 * size + size // 2)
    section = films.film_section(read_records(tmp_path), tmp_path)
    assert "The rewirings of 2 of 3 recorded runs. 1 more would make this page too large." in section
    monkeypatch.setattr(films, "MOST", 0)
    assert "The rewirings of 1 of 3 recorded runs." in films.film_section(read_records(tmp_path), tmp_path)


def test_a_curve_needs_a_text_for_each_point():
    (line,) = Figure().subplots().plot([1, 2, 3])
    with pytest.raises(ValueError, match="2 texts for 3 points of GGR: each needs one"):
        hover.describe_points(line, "GGR", ["a", "b"])


def test_names_cannot_break_out_of_a_figure():
    figure = Figure()
    (line,) = figure.subplots().plot([1, 2])
    hover.describe_points(line, '"><script>', ["</title><b>", ""])
    assert not re.search("<script>|<b>", hover.hover_points(figure))
