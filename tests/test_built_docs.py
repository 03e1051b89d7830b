"""What ``make docs`` checks in the built pages: here in pages of a few words."""

import pytest
from tests.built_docs import BROWSER, broken_links, layout_failures, main, missing_names, search_failures

import rewire


@pytest.fixture
def site(tmp_path):
    (tmp_path / "api").mkdir()
    names = "".join(f'<dt id="rewire.{name}"></dt>' for name in rewire.__all__ if name != "nn")
    (tmp_path / "api" / "rewire.html").write_text(f'<span id="module-rewire.nn"></span>{names}')
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="#top"></a><a href="api/rewire.html#rewire.ggr"></a>'
        '<a href="https://example.org/nowhere"></a><a href="api/rewire.html"></a>'
    )
    return tmp_path


def test_links_that_lead_somewhere(site):
    assert list(broken_links(site)) == []


@pytest.mark.parametrize("link", ["nowhere.html", "#bottom", "api/rewire.html#rewire.gga", "_static/x.png"])
def test_a_link_that_leads_nowhere(site, link):
    page = site / "index.html"
    page.write_text(page.read_text() + (f'<img src="{link}">' if "png" in link else f'<a href="{link}"></a>'))
    (failure,) = broken_links(site)
    assert link in failure


def test_a_name_without_description(site):
    assert list(missing_names(site)) == []
    page = site / "api" / "rewire.html"
    page.write_text(page.read_text().replace('id="rewire.ggr"', ""))
    assert list(missing_names(site)) == ["the reference does not describe rewire.ggr"]


def test_a_site_without_an_index_for_its_search(site, capsys):
    assert list(search_failures(site)) == ["there is no searchindex.js"]
    with pytest.raises(SystemExit):
        main(site)
    assert "there is no searchindex.js" in capsys.readouterr().err


@pytest.mark.skipif(not BROWSER, reason="no chromium")
def test_pages_that_do_not_fit_their_window(tmp_path):
    pages = {
        "good": '<div style="overflow: auto"><p style="width: 2000px">wide</p></div>',
        "telephone": '<p style="width: 600px">wide</p>',
        "both": '<p style="width: 2000px">wide</p>',
        "picture": '<img src="broken.svg">',
        "home": '<div style="height: 700px"></div><div class="charts"><img src="square.svg" height="200"></div>',
    }
    for name, body in pages.items():
        (tmp_path / f"{name}.html").write_text(f'<body style="margin: 0">{body}</body>')
    (tmp_path / "broken.svg").write_text("no picture")
    (tmp_path / "square.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    assert sorted(layout_failures(tmp_path)) == [
        "both.html is 2000 pixels wide in a window of 1280",
        "both.html is 2000 pixels wide in a window of 390",
        "home.html does not show all of its pictures on the first screen",
        "picture.html does not show broken.svg",
        "picture.html does not show broken.svg",
        "telephone.html is 600 pixels wide in a window of 390",
    ]
