"""The page as a reader sees it: in windows of all sizes, to the end of what is written."""

import json

import pytest

import browser as browsers
from browser import BUDGET, WINDOWS, assert_end_is_seen, begin, converse, drawn, finish, rect, texts

pytestmark = browsers.needed

LINES = "".join(f"Line {n} of a long text that goes on.\n\n" for n in range(60))
TABLE = (
    "| Language | Interpreter | Designed | Typing | Garbage collection |\n"
    "| --- | --- | --- | --- | --- |\n"
    "| Python | CPython, PyPy | Guido van Rossum | dynamic, optional annotations | references |\n"
    "| JavaScript | SpiderMonkey | Brendan Eich | dynamic | mark-and-sweep |\n"
)


@pytest.mark.parametrize("window", WINDOWS)
def test_the_newest_text_is_seen_and_followed(page, window):
    page.resize(*window)
    long_question = "\ue008\ue007\ue008".join(f"question {n}" for n in range(40))  # Shift+Enter
    begin(page, long_question, "")
    assert_end_is_seen(page, ".user")
    for _ in range(3):
        page.run(f"more({json.dumps(LINES)})")
        drawn(page)
        assert_end_is_seen(page, ".assistant")
    finish(page)
    assert_end_is_seen(page, ".assistant")
    begin(page, "and now?", "")
    assert_end_is_seen(page, ".user")
    page.run("more('Short.')")
    drawn(page)
    assert_end_is_seen(page, ".assistant")


@pytest.mark.parametrize("window", WINDOWS)
def test_an_error_is_seen(page, window):
    page.resize(*window)
    converse(page, "a", LINES)
    begin(page, "b", LINES)
    page.run("tell({error: {message: 'the server is shutting down'}})")
    page.until("document.querySelector('.error')")
    drawn(page)
    assert_end_is_seen(page, ".error")


@pytest.mark.parametrize("window", WINDOWS)
def test_nothing_is_wider_than_the_window(page, window):
    page.resize(*window)
    converse(page, "w" * 500, f"{'x' * 500}\n\n```\n{'y' * 500}\n```\n\n{TABLE}")
    assert page.run("return document.scrollingElement.scrollWidth <= innerWidth")
    assert rect(page, ".user", "right") <= window[0]
    assert rect(page, ".assistant", "right") <= window[0]


def test_a_reader_who_scrolled_up_is_left_alone_until_the_end(page):
    begin(page, "go on", LINES)
    page.run("document.querySelector('#log').scrollTop -= 300")
    drawn(page)
    before = page.run("return document.querySelector('#log').scrollTop")
    page.run(f"more({json.dumps(LINES)})")
    drawn(page)
    assert page.run("return document.querySelector('#log').scrollTop") == before
    finish(page)
    assert page.run("return document.querySelector('#log').scrollTop") == before
    page.run("document.querySelector('#log').scrollTop = 1e9")
    drawn(page)
    begin(page, "go on", LINES)
    assert_end_is_seen(page, ".assistant")


def test_a_window_that_changes_keeps_the_end(page):
    begin(page, "go on", LINES)
    for window in [(390, 844), (390, 420), (1280, 800)]:
        page.resize(*window)
        drawn(page)
        assert_end_is_seen(page, ".assistant")


@pytest.mark.parametrize("window", WINDOWS)
def test_words_of_a_table_stay_whole(page, window):
    page.resize(*window)
    converse(page, "a table", TABLE)
    broken = page.run("""
        const broken = [];
        for (const cell of document.querySelectorAll('.assistant :is(th, td)')) {
          const text = cell.firstChild;
          for (const {0: word, index} of text.data.matchAll(/[\\w]+/g)) {
            const range = document.createRange();
            range.setStart(text, index);
            range.setEnd(text, index + word.length);
            if (range.getClientRects().length > 1) broken.push(word);
          }
        }
        return broken""")
    assert broken == []
    assert page.run("return document.querySelectorAll('.assistant td').length") == 10


def test_a_task_shows_its_state(page):
    nasty = '<input type="text" value="x"> <form>'
    converse(
        page, "tasks", f"- [x] done\n- [ ] open\n\n  loose\n\n* [X] also done\n* none\n\n{nasty}"
    )
    boxes = page.run(
        "return [...document.querySelectorAll('.assistant input')].map("
        "box => [box.type, box.disabled, box.checked, box.closest('li').textContent.trim()])"
    )
    assert [(kind, disabled, checked) for kind, disabled, checked, _ in boxes] == [
        ("checkbox", True, True),
        ("checkbox", True, False),
        ("checkbox", True, True),
    ]
    assert [text.split("\n")[0] for *_, text in boxes] == ["done", "open", "also done"]


def test_reasoning_is_open_while_it_grows_and_folded_then(page):
    begin(page, "first", "")
    page.run("tell({choices: [{delta: {reasoning_content: 'Let me see.'}}]})")
    page.until("document.querySelector('.reasoning')?.open")
    page.run("more('One.')")
    drawn(page)
    assert not page.run("return document.querySelector('.reasoning').open")
    finish(page)
    assert texts(page, ".reasoning > div") == ["Let me see."]


def test_code_is_coloured_and_copied_as_it_was_written(page):
    code = "def f():\n    return '<b>'\n"
    converse(page, "code", f"```python\n{code}```\n")
    assert texts(page, ".hljs-keyword") == ["def", "return"]
    assert page.run("return document.querySelector('pre > code').textContent") == code
    assert page.run("return document.querySelector('.assistant b')") is None


@pytest.mark.parametrize("window", WINDOWS)
def test_the_panel_and_the_list_leave_nothing_beyond_the_window(page, window):
    page.resize(*window)
    page.run(f"window.fetch = async () => new Response({json.dumps(json.dumps(BUDGET))})")
    page.run("document.querySelector('#toggle-engine').click()")
    page.run("document.querySelector('#settings').open = true")
    page.until("document.querySelector('#bar .pinned')")
    assert page.run("return document.scrollingElement.scrollWidth <= innerWidth")
    for selector in ("#engine", "#settings", "#bar"):
        assert rect(page, selector, "right") <= window[0]
