"""Pages of measurements: each follows from its template and its recorded numbers."""

import pytest
from jinja2 import UndefinedError

from lab.pages import rendering
from lab.pages.rendering import Page, page, pages, rendered


@pytest.mark.parametrize("target", pages(), ids=lambda target: target.template)
def test_a_committed_page_follows_from_its_numbers(target):
    """Rule: nobody writes into a page; it is its template, rendered from the numbers beside it."""
    assert target.render() == target.written()


def test_every_record_of_a_page_has_a_template():
    """Rule: a benchmark's result is rendered, as are the numbers beside the evaluation's pages."""
    numbers = {path for folder in (rendering.RESULTS, rendering.EVALUATION) for path in folder.glob("*.json")}
    assert numbers == {target.numbers for target in pages()}


def test_the_path_of_a_template_names_its_page():
    """Rule: a template in a folder of the evaluation is a section of that page; its numbers lie beside the page."""
    section, result = page("evaluation/jobs/probing"), page("benchmarks/routes")
    assert section[1:] == (rendering.EVALUATION / "jobs.md", rendering.EVALUATION / "probing.json", "probing")
    assert result[1:] == (rendering.RESULTS / "routes.md", rendering.RESULTS / "routes.json", "")


def test_a_section_is_written_between_its_comments(tmp_path):
    """Rule: what is around a section stays, and a new one may begin empty."""
    path = tmp_path / "jobs.md"
    path.write_text("# Jobs\n\n<!-- begin a -->\n<!-- end a -->\n\n<!-- begin b -->\n\nold\n\n<!-- end b -->\n")
    for name in ("a", "b"):
        section = Page("", path, tmp_path / f"{name}.json", name)
        section.write(f"## {name}\n")
        assert section.written() == f"## {name}\n"
    expected = "".join(f"\n<!-- begin {name} -->\n\n## {name}\n\n<!-- end {name} -->\n" for name in ("a", "b"))
    assert path.read_text() == f"# Jobs\n{expected}"


def test_a_page_without_a_place_for_the_section_is_refused(tmp_path):
    """Rule: a section is not appended to a page that does not expect it."""
    (tmp_path / "jobs.md").write_text("# Jobs\n")
    with pytest.raises(ValueError, match="begin a"):
        Page("", tmp_path / "jobs.md", tmp_path / "a.json", "a").write("## a\n")


def test_a_number_that_was_not_recorded_is_an_error():
    """Rule: a missing number ends the program, instead of leaving a gap in a sentence."""
    with pytest.raises(UndefinedError, match="readers"):
        rendered("benchmarks/slow_readers", {"bytes_read": 1.0})
