"""The film that the tests of the page and of the server share."""

import pytest
from tests.film.films import recorded


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("film") / "run")
