"""What ``make docs`` checks in the built pages: here in pages of a few words."""

import pytest
from tests.built_docs import broken_links, main, missing_names, search_failures

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
