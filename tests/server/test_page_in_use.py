"""The page as a reader uses it: what can be seen in which window, and what the buttons do."""

import json

import pytest

import browser as browsers
from browser import answering, ask, page_alone

pytestmark = browsers.needed

WINDOWS = [(1280, 800), (1920, 1080), (390, 844)]
LINES = "".join(f"Line {n} of a long text that goes on.\n\n" for n in range(60))
TABLE = (
    "| Language | Interpreter | Designed | Typing | Garbage collection |\n"
    "| --- | --- | --- | --- | --- |\n"
    "| Python | CPython, PyPy | Guido van Rossum | dynamic, optional annotations | references |\n"
    "| JavaScript | SpiderMonkey | Brendan Eich | dynamic | mark-and-sweep |\n"
)


@pytest.fixture(scope="module")
def browser():
    running = browsers.Browser()
    yield running
    running.close()


@pytest.fixture
def page(browser):
    """The page in a tab that keeps nothing of other tests."""
    with page_alone() as address:
        browser.resize(1280, 800)
        browser.open(address)
        browser.until("document.title === 'm'")
        yield browser


def rect(page, selector: str, edge: str) -> float:
    """An edge of the last element of a selector, in pixels of the window."""
    return page.run(
        f"return [...document.querySelectorAll('{selector}')].at(-1).getBoundingClientRect().{edge}"
    )


def drawn(page) -> None:
    """Wait for two frames: one that draws what came, one that has shown it."""
    page.run(
        "window.isDrawn = false;"
        "requestAnimationFrame(() => requestAnimationFrame(() => window.isDrawn = true))"
    )
    page.until("window.isDrawn")


def assert_end_is_seen(page, selector: str) -> None:
    bottom = rect(page, selector, "bottom")
    assert rect(page, "#log", "top") < bottom <= rect(page, "form", "top")
    assert rect(page, "form", "bottom") <= page.run("return innerHeight") + 0.5
    seen = page.run(
        f"const part = [...document.querySelectorAll('{selector}')].at(-1);"
        "const {left, bottom} = part.getBoundingClientRect();"
        "return part.contains(document.elementFromPoint(left + 20, bottom - 12))"
    )
    assert seen, "something lies over the newest text"


def begin(page, question: str, answer: str) -> None:
    """Ask, and let the answer go on."""
    answering(page, answer)
    ask(page, question)
    page.until("window.asked.length")
    drawn(page)


def finish(page) -> None:
    page.run("end()")
    page.until("!document.querySelector('#send').hidden")
    drawn(page)


def converse(page, question: str, answer: str) -> None:
    begin(page, question, answer)
    finish(page)


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


def reload(page) -> None:
    page.run("location.reload()")
    page.until("document.readyState === 'complete' && document.title === 'm'")


def texts(page, selector: str) -> list[str]:
    return page.run(
        f"return [...document.querySelectorAll('{selector}')].map(part => part.textContent.trim())"
    )


def test_a_conversation_survives_a_reload(page):
    converse(page, "first", "**One.**")
    converse(page, "second", "Two.")
    page.run("document.querySelector('#instructions').open = true")
    page.write("#system", "Be brief.")
    reload(page)
    assert texts(page, ".user") == ["first", "second"]
    assert texts(page, ".assistant") == ["One.", "Two."]
    assert page.run("return document.querySelector('#system').value") == "Be brief."
    converse(page, "third", "Three.")
    assert [m["content"] for m in page.run("return asked[0].messages")] == [
        *("Be brief.", "first", "**One.**", "second", "Two.", "third"),
    ]


def test_a_reload_keeps_what_was_answered_so_far(page):
    begin(page, "first", "Half an")
    reload(page)
    assert texts(page, ".assistant") == ["Half an"]


def test_a_reload_gives_a_question_without_an_answer_back(page):
    begin(page, "first", "")
    reload(page)
    assert texts(page, ".user") == []
    assert page.run("return document.querySelector('#text').value") == "first"


def test_reset_forgets_what_was_kept(page):
    converse(page, "first", "One.")
    page.run("document.querySelector('#reset').click()")
    reload(page)
    assert texts(page, ".turn") == []


@pytest.mark.parametrize("kept", ["{", "null", '{"converses": true, "messages": 1}', "[]"])
def test_a_damaged_copy_is_none(page, kept):
    page.run(f"addEventListener('pagehide', () => sessionStorage.setItem("
             f"'edgespec conversation', {kept!r}))")  # fmt: skip
    reload(page)
    assert texts(page, ".turn") == []
    converse(page, "first", "One.")
    assert texts(page, ".assistant") == ["One."]


def press(page, name: str, place: int = -1) -> None:
    page.run(f"[...document.querySelectorAll('[aria-label={name}]')].at({place}).click()")


def test_a_message_is_copied_as_it_was_written(page):
    page.run(
        "Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: async text => { window.copied = text; }}})"
    )
    converse(page, "first", "**One.**\n\n* two")
    press(page, "Copy")
    assert page.until("window.copied") == "**One.**\n\n* two"
    press(page, "Copy", 0)
    page.until("window.copied === 'first'")


def test_regenerate_asks_the_latest_question_again(page):
    converse(page, "first", "One.")
    converse(page, "second", "Two.")
    assert page.run("return document.querySelectorAll('[aria-label=Regenerate]').length") == 1
    answering(page, "Another.")
    press(page, "Regenerate")
    page.until("asked.length")
    finish(page)
    assert [m["content"] for m in page.run("return asked[0].messages")] == [
        *("first", "One.", "second"),
    ]
    assert texts(page, ".assistant") == ["One.", "Another."]


def test_an_answer_that_cannot_be_had_again_stays(page):
    converse(page, "first", "One.")
    answering(page, None)
    press(page, "Regenerate")
    page.until("document.querySelector('.error')")
    assert texts(page, ".assistant") == ["One."]
    assert page.run("return document.querySelector('#text').value") == ""


def test_an_edited_question_replaces_what_follows(page):
    converse(page, "first", "One.")
    converse(page, "second", "Two.")
    press(page, "Edit", 0)
    assert page.run("return document.querySelector('#text').value") == "first"
    answering(page, "Eins.")
    ask(page, "!")
    page.until("asked.length")
    finish(page)
    assert [m["content"] for m in page.run("return asked[0].messages")] == ["first!"]
    assert texts(page, ".turn") == ["first!", "Eins."]


def test_escape_leaves_a_message_as_it_is(page):
    converse(page, "first", "One.")
    press(page, "Edit")
    page.write("#text", "\ue00c")
    assert page.run("return document.querySelector('#text').value") == ""
    assert page.run("return document.querySelector('#editing').hidden")
    assert texts(page, ".turn") == ["first", "One."]


def test_escape_stops_an_answer_and_keeps_its_text(page):
    begin(page, "first", "Half an")
    page.write("#text", "\ue00c")
    page.until("!document.querySelector('#send').hidden")
    assert texts(page, ".turn") == ["first", "Half an"]
    assert texts(page, ".error") == []


def test_a_system_message_comes_first(page):
    page.run("document.querySelector('#instructions').open = true")
    page.write("#system", "Be brief.")
    converse(page, "first", "One.")
    assert page.run("return asked[0].messages") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "first"},
    ]


def test_the_state_tells_how_much_of_the_prompt_is_read_and_how_fast_it_writes(page):
    answering(page, "")
    ask(page, "first")
    page.until("asked.length")
    assert page.run("return asked[0].return_progress")
    page.run("sent(': waiting\\n\\n')")
    page.run(
        "tell({choices: [{delta: {}}],"
        "prompt_progress: {total: 2000, cache: 0, processed: 500, time_ms: 1}})"
    )
    page.until("document.querySelector('#state').textContent.includes('500 of 2,000 tokens')")
    assert page.run("return document.querySelector('#progress').value") == 0.25
    page.run("more('One '); setTimeout(() => more('two '), 50)")
    page.until("/\\d tokens a second/.test(document.querySelector('#state').textContent)")
    assert page.run("return document.querySelector('#progress').hidden")
    page.run("tell({choices: [], usage: {prompt_tokens: 2000, completion_tokens: 12}})")
    finish(page)
    state = page.run("return document.querySelector('#state').textContent")
    assert state.startswith("2,000 tokens read, 12 written, ")
    assert state.endswith(" tokens a second")
