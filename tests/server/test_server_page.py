"""The page of the server in a real browser: conversations, markup, errors."""

import httpx
import pytest

import browser as browsers
from browser import answering, ask
from edgespec.server.guarding import Guard
from server_running import TEMPLATE, pair, serving

pytestmark = browsers.needed


@pytest.fixture(scope="module")
def session():
    with pair() as loaded:
        yield loaded


def test_a_conversation_in_the_browser(browser, session):
    with serving(session, Guard("127.0.0.1")) as address:
        browser.open(address)
        browser.until("document.title === 'pair'")
        browser.write("#text", "write gcd\ue007")  # Enter
        browser.until("document.querySelector('.assistant')?.textContent")
        browser.until("!document.querySelector('#send').hidden")
        shown = browser.run("return document.querySelector('.assistant').innerText")
    with session.chat([{"role": "user", "content": "write gcd"}]) as generation:
        first = next(event.text for event in generation if event.text.strip())
    assert shown.split()[0].startswith(first.split()[0])


def test_what_the_model_writes_is_never_markup(browser, session):
    with serving(session) as address:
        browser.open(address)
        browser.until("document.title === 'pair'")
        browser.write("#text", "<img src=x onerror=alert(1)>\ue007")
        browser.until("!document.querySelector('#send').hidden")
        assert browser.run("return document.querySelector('.user').textContent").startswith("<img")
        assert browser.run("return document.querySelectorAll('#log img').length") == 0


@pytest.fixture
def page(browser, session):
    """The page, open; `answering` decides what it is told."""
    with serving(session, sampling={"temperature": 0.6}) as address:
        browser.open(address)
        browser.until("document.title === 'pair'")
        yield browser


def test_markdown_is_shown_and_html_is_text(page):
    nasty = "<img src=x onerror=alert(1)> [x](javascript:alert(1)) ![i](http://a.test/b.png)"
    answering(page, f"# Title\n\n* one **two**\n\n```py\na < b\n```\n\n{nasty} [y](http://a.test)")
    ask(page, "go on")
    page.until("document.querySelector('.assistant a[href]')")
    shown = "document.querySelector('.assistant')"
    assert page.run(f"return {shown}.querySelector('h1').textContent") == "Title"
    assert page.run(f"return {shown}.querySelector('li strong').textContent") == "two"
    assert page.run(f"return {shown}.querySelector('pre code').textContent") == "a < b\n"
    assert "<img src=x onerror=alert(1)>" in page.run(f"return {shown}.textContent")
    tags = page.run(f"return [...{shown}.querySelectorAll('*')].map(part => part.nodeName)")
    assert {"IMG", "SCRIPT"}.isdisjoint(tags)
    links = page.run(f"return [...{shown}.querySelectorAll('a')].map(part => part.outerHTML)")
    assert not any("javascript" in link for link in links)
    assert any('rel="noopener noreferrer"' in link for link in links)


def test_text_becomes_elements_by_the_sanitiser_alone(page):
    refused = page.run(
        "try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; }"
    )
    assert refused


def test_a_model_without_a_chat_template_continues_text(browser, session):
    session.use_chat_template(None)
    try:
        with serving(session) as address:
            browser.open(address)
            browser.until("!document.querySelector('#note').hidden")
            assert browser.run("return document.querySelector('#send').ariaLabel") == "Continue"
            ask(browser, "def f(")
            browser.until("document.querySelector('#state').textContent")
            browser.until("!document.querySelector('#send').hidden")
            shown = browser.run("return document.querySelector('.assistant').textContent")
            answering(browser, "")
            ask(browser, " x")
            asked = browser.until("asked[0]")
    finally:
        session.use_chat_template(TEMPLATE)
    assert shown == session.generate("def f(", max_tokens=256).text
    assert asked["prompt"] == f"def f({shown} x"


def test_a_new_conversation_during_an_answer_has_nothing_of_it(page):
    answering(page, "abandoned")
    ask(page, "first")
    page.until("document.querySelector('.assistant')")
    page.run("document.querySelector('#new').click(); try { more('late') } catch {}")
    answering(page, "second answer")
    ask(page, "second")
    page.until("document.querySelector('.assistant')")
    assert page.run("return asked[0].messages") == [{"role": "user", "content": "second"}]
    assert page.run("return document.querySelector('#log').textContent") == "secondsecond answer\n"


@pytest.mark.parametrize("how", ["fails", "is stopped"])
def test_a_question_without_an_answer_stays_and_can_be_asked_again(page, how):
    answering(page, None if how == "fails" else "")
    ask(page, "precious")
    if how == "is stopped":
        page.until("!document.querySelector('#stop').hidden")
        page.run("document.querySelector('#stop').click()")
    page.until("document.querySelector('.again')")
    errors = page.run("return [...document.querySelectorAll('.error')].map(e => e.textContent)")
    assert errors == ["the server is gone" if how == "fails" else "This message has no answer yet."]
    assert page.run("return document.querySelectorAll('.user').length") == 1


def test_sampling_is_the_models_until_it_is_changed(page):
    answering(page, "Yes.")
    page.until("document.querySelector('#temperature').placeholder === '0.6'")
    page.run("document.querySelector('#settings').open = true")
    page.write("#temperature", "1.5")
    ask(page, "hot?")
    assert page.until("asked[0]")["temperature"] == 1.5


def test_stop_ends_the_answer(browser, session):
    with serving(session) as address:
        browser.open(address)
        browser.until("document.title === 'pair'")
        browser.write("#text", "go on\ue007")
        browser.run("document.querySelector('#stop').click()")
        browser.until("!document.querySelector('#send').hidden")
        for _ in range(1000):
            if httpx.get(f"{address}/health").json()["requests_in_progress"] == 0:
                return
        raise AssertionError("the answer goes on")
