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
    page.run("document.querySelector('#settings').open = true")
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


def test_a_new_conversation_leaves_the_old_one_in_the_list(page):
    converse(page, "first", "One.")
    page.run("document.querySelector('#new').click()")
    reload(page)
    assert texts(page, ".turn") == []
    assert texts(page, "#conversations .open") == ["New conversation", "first"]
    page.run("[...document.querySelectorAll('#conversations .open')].at(-1).click()")
    assert texts(page, ".turn") == ["first", "One."]


def test_a_conversation_is_renamed_and_deleted(page):
    converse(page, "first", "One.")
    press(page, "Rename")
    page.write("#conversations input", "\ue009a\ue000Numbers\ue007")  # all of it, Enter
    assert texts(page, "#conversations .open") == ["Numbers"]
    reload(page)
    assert texts(page, "#conversations .open") == ["Numbers"]
    page.run("window.confirm = () => true")
    press(page, "Delete")
    assert texts(page, ".turn") == []
    reload(page)
    assert texts(page, "#conversations .open") == ["New conversation"]


def test_a_conversation_is_saved_as_a_file(page):
    converse(page, "What is 1?", "**One.**")
    page.run(
        "URL.createObjectURL = blob => { window.saved = blob.text(); return '#'; };"
        "HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; };"
    )
    page.run("document.querySelector('#conversations .save').click()")
    page.run("saved.then(text => { window.savedText = text; })")
    assert page.until("window.savedText") == (
        "# What is 1?\n\n## You\n\nWhat is 1?\n\n## Model\n\n**One.**\n"
    )
    assert page.run("return window.savedAs") == "What is 1.md"


def test_an_answer_under_way_stays_in_its_conversation(page):
    begin(page, "first", "Half an")
    page.run("document.querySelector('#new').click()")
    page.until("document.querySelectorAll('#conversations .open').length === 2")
    assert texts(page, ".turn") == []
    page.run("[...document.querySelectorAll('#conversations .open')].at(-1).click()")
    assert texts(page, ".turn") == ["first", "Half an"]


def test_settings_are_sent_where_they_were_set(page):
    page.run("document.querySelector('#settings').open = true")
    for name, value in (("top_p", "0.9"), ("top_k", "40"), ("seed", "7"), ("max_tokens", "5")):
        page.write(f"#{name}", value)
    converse(page, "first", "One.")
    asked = page.run("return asked[0]")
    assert [asked[name] for name in ("top_p", "top_k", "seed", "max_tokens")] == [0.9, 40, 7, 5]
    assert asked["temperature"] == 0.5, "as it is shown: the model's own"
    assert "min_p" not in asked


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


def test_a_file_becomes_a_block_of_the_message(page):
    page.run(
        "const files = new DataTransfer();"
        "files.items.add(new File(['```\\nx = 1\\n'], 'a.py'));"
        "document.querySelector('#files').files = files.files;"
        "document.querySelector('#files').dispatchEvent(new Event('change'))"
    )
    page.until("document.querySelector('#text').value")
    typed = page.run("return document.querySelector('#text').value")
    assert typed == "a.py:\n````\n```\nx = 1\n````\n"


BUDGET = {
    "budget_bytes": 800 << 20,
    "planned_bytes": 790 << 20,
    "smallest_bytes": 300 << 20,
    "resident_bytes": 700 << 20,
    "pinned_bytes": 500 << 20,
    "streamed_bytes": 400 << 20,
    "follows": False,
}


def test_the_memory_is_shown_and_the_budget_changed(page):
    page.run(
        f"window.report = {json.dumps(BUDGET)}; window.posted = [];"
        "window.fetch = async (path, {method, body}) => {"
        "  if (method === 'POST') {"
        "    posted.push(JSON.parse(body));"
        "    report = {...report, budget_bytes: JSON.parse(body).memory_budget};"
        "  }"
        "  return new Response(JSON.stringify(report));"
        "}"
    )
    page.run("document.querySelector('#toggle-engine').click()")
    page.until("document.querySelector('#bar .pinned')")
    assert texts(page, "#legend dd") == ["500 MiB", "290 MiB", "10 MiB", "700 MiB", "400 MiB"]
    widths = page.run(
        "return ['pinned', 'rest'].map(kind =>"
        " document.querySelector('#bar .' + kind).getBoundingClientRect().width)"
    )
    assert widths[0] / widths[1] == pytest.approx(500 / 290, rel=0.02)
    page.run(
        "const budget = document.querySelector('#budget'); budget.value = 0;"
        "budget.dispatchEvent(new Event('input')); budget.dispatchEvent(new Event('change'))"
    )
    page.until("posted.length")
    assert page.run("return posted") == [{"memory_budget": 300 << 20}]
    page.until("document.querySelector('#budget-size').textContent === '300 MiB'")


def test_the_panel_tells_of_the_latest_answer(page):
    begin(page, "first", "")
    page.run(
        "const counted = (tokens, accepted, seconds, bytes, stalls) =>"
        " `# HELP edgespec_generated_tokens_total x.\\n"
        "edgespec_generated_tokens_total ${tokens}\\nedgespec_accepted_tokens_total ${accepted}\\n"
        "edgespec_decode_seconds_total ${seconds}\\nedgespec_read_bytes_total ${bytes}\\n"
        "edgespec_stall_seconds_total ${stalls}\\n`;"
        "window.counts = [counted(10, 0, 1, 0, 0), counted(50, 30, 9, 2 ** 31, 1.5)];"
        "const answers = window.fetch;"
        f"const report = {json.dumps(json.dumps(BUDGET))};"
        "window.fetch = async (path, options) =>"
        " path === 'metrics' ? new Response(counts.shift())"
        " : path === 'v1/budget' ? new Response(report) : answers(path, options);"
    )
    finish(page)
    page.run("document.querySelector('#toggle-engine').click()")
    page.until("document.querySelector('#bar .pinned')")
    ask(page, "second")
    page.until("window.asked.length === 2")
    page.run("more('Two.')")
    finish(page)
    page.until("document.querySelector('#latest').textContent")
    assert texts(page, "#latest") == [
        "Latest answer: 5.0 tokens a second, 4.0 a pass, 75 % guessed, "
        "2.0 GiB read, 1.5 s waited for them."
    ]


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


@pytest.mark.parametrize("kept", ["{", "null", '{"converses": true, "messages": 1}', "[]"])
def test_a_damaged_copy_is_none(page, kept):
    page.run(
        f"localStorage.setItem('edgespec conversation damaged', {kept!r});"
        "sessionStorage.setItem('edgespec current', 'damaged')"
    )
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
    page.run("document.querySelector('#settings').open = true")
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


OTHER = {"id": "other", "kind": "text", "status": {"value": "unloaded"}}
VECTORS = {"id": "vectors", "kind": "embedding", "status": {"value": "unloaded"}}


def test_a_reader_chooses_among_the_models_that_write(browser) -> None:
    with page_alone(True, OTHER, VECTORS) as address:
        browser.open(address)
        browser.until("document.querySelector('#model').options.length === 2")
        names = "return [...document.querySelector('#model').options].map(one => one.value)"
        assert browser.run(names) == ["other", "m"]
        browser.run(
            "const model = document.querySelector('#model'); model.value = 'm';"
            "model.dispatchEvent(new Event('change'))"
        )
        browser.until("document.title === 'm'")
        answering(browser, "Hello.")
        ask(browser, "Hi")
        browser.until("window.asked.length")
        assert browser.run("return window.asked[0].model") == "m"
        browser.run("window.end()")


def test_a_server_of_one_model_is_not_asked_for_it_by_name(page) -> None:
    assert page.run("return document.querySelector('#model').hidden")
    answering(page, "Hello.")
    ask(page, "Hi")
    page.until("window.asked.length")
    assert page.run("return window.asked[0].model") is None
    page.run("window.end()")
