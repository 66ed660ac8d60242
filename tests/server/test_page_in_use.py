"""The page as a reader uses it: what the buttons do, what is sent and what the panel tells."""

import json
import time

import pytest

import browser as browsers
from browser import BUDGET, answering, ask, begin, converse, finish, page_alone, press, texts

pytestmark = browsers.needed


def test_settings_are_sent_where_they_were_set(page):
    page.run("document.querySelector('#settings').open = true")
    for name, value in (("top_p", "0.9"), ("top_k", "40"), ("seed", "7"), ("max_tokens", "5")):
        page.write(f"#{name}", value)
    converse(page, "first", "One.")
    asked = page.run("return asked[0]")
    assert [asked[name] for name in ("top_p", "top_k", "seed", "max_tokens")] == [0.9, 40, 7, 5]
    assert "temperature" not in asked, "the model's own"
    assert "min_p" not in asked


def test_a_file_becomes_a_block_of_the_message(page):
    page.run(
        "const files = new DataTransfer();"
        "files.items.add(new File(['```\\nx = 1\\n'], 'a.py'));"
        "document.querySelector('#files').files = files.files;"
        "document.querySelector('#files').dispatchEvent(new Event('change'))"
    )
    page.until("document.querySelector('#text').value")
    typed = page.run("return document.querySelector('#text').value")
    assert typed == "a.py:\n````py\n```\nx = 1\n````\n"


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
    assert texts(page, "#legend dd") == [
        "500 MiB",
        "90 MiB",
        "200 MiB",
        "10 MiB",
        "400 MiB",
        "700 MiB",
    ]
    widths = page.run(
        "return ['pinned', 'streamed'].map(kind =>"
        " document.querySelector('#bar .' + kind).getBoundingClientRect().width)"
    )
    assert widths[0] / widths[1] == pytest.approx(500 / 400, rel=0.02)
    page.run(
        "const budget = document.querySelector('#budget'); budget.value = 0;"
        "budget.dispatchEvent(new Event('input')); budget.dispatchEvent(new Event('change'))"
    )
    page.until("posted.length")
    assert page.run("return posted") == [{"memory_budget": 300 << 20}]
    page.until("document.querySelector('#budget-size').textContent === 'Budget: 300 MiB'")


PASSES = [
    [("One", "target", 0)],
    [(" two", "draft", 1), (" three", "draft", 1), (" four", "target", 1)],
    [(" five", "lookup", 2), (".", "target", 2)],
]


def test_passes_of_an_answer_are_columns_that_tell_their_words(page):
    begin(page, "first", "")
    page.run(
        "const counted = bytes => `edgespec_read_bytes_total ${bytes}\\n"
        "edgespec_stall_seconds_total ${bytes / 2 ** 31}\\n`;"
        "window.counts = [0, 2 ** 31]; const answers = window.fetch;"
        f"const report = {json.dumps(json.dumps(BUDGET))};"
        "window.fetch = async (path, options) =>"
        " path === 'metrics' ? new Response(counted(counts[1] ? counts.shift() : counts[0]))"
        " : path === 'v1/budget' ? new Response(report) : answers(path, options);"
    )
    finish(page)
    page.run("document.querySelector('#toggle-engine').click()")
    page.until("document.querySelector('#parts .pinned')")
    page.run("counts = [0, 2 ** 31]")
    ask(page, "second")
    page.until("window.asked.length === 2")
    for tokens in PASSES:
        told = [{"text": text, "by": by, "pass": place} for text, by, place in tokens]
        text = "".join(text for text, *_ in tokens)
        page.run(
            f"tell({{choices: [{{delta: {{content: {text!r}}}, origins: {json.dumps(told)}}}]}})"
        )
    finish(page)
    page.until("document.querySelectorAll('.column').length === 3")
    heights = page.run(
        "return [...document.querySelectorAll('.column')].map(one =>"
        " [...one.children].reduce((sum, part) => sum + part.getBoundingClientRect().height, 0))"
    )
    assert heights[1] / heights[0] == pytest.approx(3, rel=0.05)
    assert heights[2] / heights[0] == pytest.approx(2, rel=0.05)
    page.run("document.querySelector('#passes').focus()")
    for _ in range(2):
        page.write("#passes", "\ue012")  # left
    assert texts(page, "#pass") == [
        "Pass 2, 3 tokens: “ two three four” (the draft model, the model itself)"
    ]
    page.until("/2.0 GiB/.test(document.querySelector('#figures').textContent)")
    figures = page.run("return document.querySelector('#figures').innerText.split('\\n')")
    shown = dict(zip(figures[::2], figures[1::2], strict=True))
    assert shown["tokens a pass"] == "2.0"
    assert shown["guessed right"] == "50 %"
    rates = [float(shown[name]) for name in ("tokens a second", "without guesses")]
    assert rates[0] / rates[1] == pytest.approx(1.5, rel=0.1)


def test_an_open_panel_does_not_flood_a_server_that_loads(page):
    page.run(
        "window.n = 0; window.fetch = async () => { n += 1; return new Response("
        '\'{"error": {"code": "loading", "message": "loading"}}\', {status: 503}); };'
        "document.querySelector('#toggle-engine').click()"
    )
    time.sleep(4.5)
    assert page.run("return n") <= 6


def test_a_closed_panel_asks_the_server_nothing(page):
    begin(page, "first", "One.")
    page.run(
        "window.paths = []; const answers = window.fetch; window.fetch = (path, options) =>"
        " { paths.push(path); return answers(path, options); };"
    )
    finish(page)
    ask(page, "second")
    page.until("window.asked.length === 2")
    finish(page)
    assert page.run("return paths") == ["v1/chat/completions"]


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
    page.run("sent(': waiting\\n\\n: m: reading weights 40%\\n\\n')")
    page.until("document.querySelector('#state').textContent === 'm: reading weights 40%'")
    assert page.run("return document.querySelector('#progress').value") == 0.4
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
