"""Conversations on the page: kept over reloads, listed, saved, and written again."""

import browser as browsers
from browser import answering, ask, begin, converse, finish, kept, press, reload, texts

pytestmark = browsers.needed


def test_a_conversation_survives_a_reload(page):
    converse(page, "first", "**One.**")
    converse(page, "second", "Two.")
    page.run("document.querySelector('#settings').open = true")
    page.write("#system", "Be brief.")
    kept(page, "Be brief.", "first", "**One.**", "second", "Two.")
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
    kept(page, "first", "Half an")
    reload(page)
    assert texts(page, ".assistant") == ["Half an"]


def test_a_reload_keeps_a_question_without_an_answer_which_can_be_asked_again(page):
    begin(page, "first", "")
    kept(page, "first")
    reload(page)
    assert texts(page, ".user") == ["first"]
    answering(page, "One.")
    page.run("document.querySelector('.again').click()")
    page.until("window.asked.length")
    finish(page)
    assert texts(page, ".turn") == ["first", "One."]


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
    kept(page, "first", "One.")
    reload(page)
    assert texts(page, "#conversations .open") == ["Numbers"]
    page.run("window.confirm = () => true")
    press(page, "Delete")
    page.until("!document.querySelector('.turn')")
    kept(page)
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


def test_an_answer_goes_on_while_another_conversation_is_read(page):
    begin(page, "first", "Half an")
    page.run("document.querySelector('#new').click()")
    page.until("document.querySelectorAll('#conversations .busy').length === 1")
    assert texts(page, ".turn") == []
    page.run("more(' answer.')")
    page.run("[...document.querySelectorAll('#conversations .open')].at(-1).click()")
    page.until("document.querySelector('.assistant')?.textContent.trim() === 'Half an answer.'")
    page.run("document.querySelector('#new').click(); more(' And more.'); end()")
    page.until("!document.querySelector('#conversations .busy')")
    assert texts(page, ".turn") == []
    page.run("[...document.querySelectorAll('#conversations .open')].at(-1).click()")
    assert texts(page, ".turn") == ["first", "Half an answer. And more."]


def test_a_damaged_copy_is_none(page):
    page.run(
        "return new Promise(resolve => {"
        "  indexedDB.open('edgespec').onsuccess = ({target: {result: database}}) => {"
        "    const transaction = database.transaction('conversations', 'readwrite');"
        "    transaction.objectStore('conversations').put({id: 'damaged', messages: [{}]});"
        "    transaction.oncomplete = () => { database.close(); resolve(); };"
        "  };"
        "})"
    )
    page.run("sessionStorage.setItem('edgespec current', 'damaged')")
    reload(page)
    assert texts(page, ".turn") == []
    converse(page, "first", "One.")
    assert texts(page, ".assistant") == ["One."]


def test_a_tab_loses_no_message_of_another(page):
    """A tab that was closed last had written its own copy, without what another had asked."""
    converse(page, "first", "One.")
    address = page.run("return location.href")
    with page.tab(address) as other:
        page.until("document.querySelectorAll('#conversations .open').length === 2")
        page.run("[...document.querySelectorAll('#conversations .open')].at(-1).click()")
        converse(page, "second", "Two.")
        converse(page, "third", "Three.")
        page.switch(other)
        page.until("document.querySelectorAll('.turn').length === 6")
        reload(page)
        assert texts(page, ".user") == ["first", "second", "third"]


def test_tabs_that_ask_at_once_keep_all_messages(page):
    converse(page, "first", "One.")
    begin(page, "here", "He")
    address = page.run("return location.href")
    with page.tab(address) as other:
        page.until("document.querySelectorAll('#conversations .open').length === 2")
        page.run("[...document.querySelectorAll('#conversations .open')].at(-1).click()")
        page.until("document.querySelectorAll('.turn').length === 4")
        converse(page, "there", "There.")
        page.switch(other)
        page.run("more('re.')")
        finish(page)
        kept(page, "first", "One.", "here", "Here.", "there", "There.")
        assert sorted(texts(page, ".user")) == ["first", "here", "there"]


def test_a_conversation_that_cannot_be_kept_says_so(page):
    assert page.run("return document.querySelector('#unkept').hidden")
    page.run(
        "IDBObjectStore.prototype.put = () => {  throw new DOMException('', 'QuotaExceededError');}"
    )
    converse(page, "first", "One.")
    page.until("!document.querySelector('#unkept').hidden")
    assert texts(page, ".assistant") == ["One."]


def test_a_stream_that_ends_early_is_shown_as_cut(page):
    begin(page, "first", "Half an")
    page.run("cut()")
    page.until("document.querySelector('.error')")
    assert texts(page, ".assistant") == ["Half an"]
    assert "cut off" in texts(page, ".error")[0]


def test_regenerate_asks_the_latest_question_again(page):
    converse(page, "first", "One.")
    converse(page, "second", "Two.")
    answering(page, "Another.")
    press(page, "Regenerate")
    page.until("asked.length")
    finish(page)
    assert [m["content"] for m in page.run("return asked[0].messages")] == [
        *("first", "One.", "second"),
    ]
    assert texts(page, ".assistant") == ["One.", "Another."]
    assert texts(page, ".place") == ["2 of 2"]
    page.run("document.querySelector('[aria-label=\"Earlier version\"]').click()")
    assert texts(page, ".assistant") == ["One.", "Two."]
    reload(page)
    assert texts(page, ".assistant") == ["One.", "Two."]
    page.run("document.querySelector('[aria-label=\"Later version\"]').click()")
    assert texts(page, ".assistant") == ["One.", "Another."]


def test_an_answer_that_cannot_be_had_again_stays(page):
    converse(page, "first", "One.")
    answering(page, None)
    press(page, "Regenerate")
    page.until("document.querySelector('.error')")
    assert texts(page, ".assistant") == ["One."]
    assert page.run("return document.querySelector('#text').value") == ""


def test_an_edited_question_begins_a_branch_beside_the_old_one(page):
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
    page.run("document.querySelector('[aria-label=\"Earlier version\"]').click()")
    assert texts(page, ".turn") == ["first", "One.", "second", "Two."]


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
