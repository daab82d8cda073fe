from pathlib import Path

from tools.docs import all_pages, faults_of_page, stale_pages


def test_generated_pages_say_what_the_source_says() -> None:
    assert stale_pages() == [], "run make docs"


def test_every_page_has_one_title_and_links_that_lead_somewhere() -> None:
    assert [fault for page in all_pages() for fault in faults_of_page(page, page.read_text(encoding="utf-8"))] == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# There\n")
    text = "# Title\n[a](there.md) [b](there.md#part) [c](https://example.org) [d](nowhere.md)\n"
    assert len(faults_of_page(tmp_path / "page.md", text)) == 1


def test_a_second_title_is_found_but_not_in_a_code_block(tmp_path: Path) -> None:
    assert len(faults_of_page(tmp_path / "page.md", "# One\n# Two\n")) == 1
    assert faults_of_page(tmp_path / "page.md", "# One\n```\n# a comment\n```\n") == []
