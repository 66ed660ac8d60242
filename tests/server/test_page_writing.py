"""Writing on the page: files, keys, versions, finding, exporting; and reading what grows."""

from __future__ import annotations

import json

import pytest

import browser as browsers
from browser import (
    Browser,
    answering,
    ask,
    begin,
    console,
    converse,
    drawn,
    finish,
    press,
    reload,
    texts,
)

pytestmark = browsers.needed

TYPED = "return document.querySelector('#text').value"
FILES = (
    "const files = new DataTransfer();"
    "files.items.add(new File(['fn main() {}\\n'], 'main.rs'));"
    "files.items.add(new File(['plain\\n'], 'notes.xyz'));"
)
ATTACHED = "main.rs:\n```rs\nfn main() {}\n```\n\nnotes.xyz:\n```\nplain\n```\n"
BLOCKS = "First block.\n\n```diff\n- old\n+ new\n```\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n"
FORMULAS = r"""$$\boxed{x = 1}$$

\[\begin{pmatrix}1 & 2\\3 & 4\end{pmatrix}\]

\begin{align}
a &= b\\
c &= d
\end{align}

$\begin{cases}1 & x > 0\\0 & x \le 0\end{cases}$ and $\cancel{x}$, $\overline{AB}$
"""


def test_dropped_files_become_blocks_in_their_languages(page: Browser) -> None:
    for kind in ("dragover", "drop"):
        page.run(
            f"{FILES} document.body.dispatchEvent(new DragEvent('{kind}',"
            "{dataTransfer: files, bubbles: true, cancelable: true}))"
        )
    page.until("document.querySelector('#text').value.includes('notes')")
    assert page.run(TYPED) == ATTACHED
    assert not page.run("return document.body.classList.contains('dropping')")


def test_pasted_files_become_blocks_in_their_languages(page: Browser) -> None:
    page.run(
        f"{FILES} document.querySelector('#text').dispatchEvent(new ClipboardEvent('paste',"
        "{clipboardData: files, bubbles: true, cancelable: true}))"
    )
    page.until("document.querySelector('#text').value.includes('notes')")
    assert page.run(TYPED) == ATTACHED


def test_on_a_phone_enter_breaks_the_line_and_a_button_sends(page: Browser) -> None:
    page._devtools("Emulation.setTouchEmulationEnabled", {"enabled": True})
    page.resize(390, 844)
    answering(page, "One.")
    page.write("#text", "first\ue007second")
    assert page.run(TYPED) == "first\nsecond"
    page.run("document.querySelector('#send').click()")
    page.until("window.asked.length")
    page._devtools("Emulation.setTouchEmulationEnabled", {"enabled": False})
    finish(page)
    assert texts(page, ".user") == ["first\nsecond"]


def test_the_up_arrow_edits_the_latest_message(page: Browser) -> None:
    converse(page, "first", "One.")
    converse(page, "second", "Two.")
    page.write("#text", "\ue013")
    assert page.run(TYPED) == "second"
    answering(page, "Three.")
    ask(page, "!")
    page.until("window.asked.length")
    finish(page)
    assert texts(page, ".turn") == ["first", "One.", "second!", "Three."]
    assert texts(page, ".place") == ["2 of 2"]


def test_conversations_are_found_by_their_words(page: Browser) -> None:
    converse(page, "about apples", "Red.")
    page.run("document.querySelector('#new').click()")
    converse(page, "about pears", "GREEN.")
    page.write("#search", "green")
    page.until("document.querySelectorAll('#conversations li').length === 1")
    assert texts(page, "#conversations .open") == ["about pears"]
    page.write("#search", "!")
    page.until("!document.querySelector('#none').hidden")


def test_an_exported_file_brings_deleted_conversations_back(page: Browser) -> None:
    converse(page, "first", "One.")
    page.run(
        "URL.createObjectURL = blob => { blob.text().then(text => { window.saved = text; });"
        " return '#'; }; HTMLAnchorElement.prototype.click = () => {}; window.confirm = () => true;"
        "document.querySelector('#export').click()"
    )
    saved = page.until("window.saved")
    assert json.loads(saved)["conversations"][0]["messages"][1]["content"] == "One."
    press(page, "Delete")
    page.until("!document.querySelector('.turn')")
    page.run(
        "const files = new DataTransfer(); files.items.add(new File([window.saved], 'a.json'));"
        "document.querySelector('#imported').files = files.files;"
        "document.querySelector('#imported').dispatchEvent(new Event('change'))"
    )
    page.until("document.querySelectorAll('#conversations .open').length === 2")
    page.run("[...document.querySelectorAll('#conversations .open')].at(-1).click()")
    assert texts(page, ".turn") == ["first", "One."]


def test_another_file_is_not_imported(page: Browser) -> None:
    page.run(
        "const files = new DataTransfer(); files.items.add(new File(['{}'], 'a.json'));"
        "document.querySelector('#imported').files = files.files;"
        "document.querySelector('#imported').dispatchEvent(new Event('change'))"
    )
    page.until("document.querySelector('.error')")
    assert "holds no conversations" in texts(page, ".error")[0]


def test_a_file_with_a_circle_and_one_that_is_damaged_do_no_harm(page: Browser) -> None:
    loop = {"id": "a", "parent": "a", "role": "user", "content": "circle"}
    harm = {"id": "b", "parent": None, "role": "assistant", "content": "", "origins": "abc"}
    copies = [{"id": "one", "messages": [loop]}, {"id": "two", "messages": [harm]}]
    page.run(
        "const files = new DataTransfer(); files.items.add(new File(["
        f"{json.dumps(json.dumps({'conversations': copies}))}], 'a.json'));"
        "document.querySelector('#imported').files = files.files;"
        "document.querySelector('#imported').dispatchEvent(new Event('change'))"
    )
    page.until("document.querySelectorAll('#conversations .open').length === 2")
    page.run("[...document.querySelectorAll('#conversations .open')].at(-1).click()")
    assert texts(page, ".turn")[0] == "circle"
    answering(page, "One.")
    page.run("document.querySelector('.again').click()")
    page.until("window.asked.length")
    finish(page)
    assert texts(page, ".turn") == ["circle", "One."]


def test_a_full_store_is_told(page: Browser) -> None:
    page.run(
        "IDBObjectStore.prototype.put = () =>"
        " { throw new DOMException('full', 'QuotaExceededError'); }"
    )
    converse(page, "first", "One.")
    page.until("!document.querySelector('#unkept').hidden")
    assert texts(page, ".turn") == ["first", "One."]


def test_a_cut_answer_goes_on(page: Browser) -> None:
    begin(page, "first", "Half an")
    page.run("cut()")
    page.until("document.querySelector('.again')")
    answering(page, " answer.")
    page.run("document.querySelector('.again').click()")
    page.until("window.asked.length")
    finish(page)
    asked = page.run("return asked[0].messages.map(one => [one.role, one.content])")
    assert asked == [["user", "first"], ["assistant", "Half an"]]
    assert texts(page, ".turn") == ["first", "Half an answer."]
    assert not page.run("return document.querySelector('.error')")


def test_what_is_selected_stays_selected_while_the_answer_grows(page: Browser) -> None:
    begin(page, "go on", BLOCKS + "The last")
    page.run(
        "window.blocks = [...document.querySelectorAll('.block')];"
        "const last = blocks.at(-1).querySelector('p').firstChild;"
        "getSelection().setBaseAndExtent(blocks[0].querySelector('p').firstChild, 0, last, 8)"
    )
    page.run("more(' block grows.\\n\\nAnd one **more'); more('** follows.')")
    drawn(page)
    finish(page)
    assert page.run("return getSelection().toString()").endswith("The last")
    assert page.run(
        "const now = document.querySelectorAll('.block');"
        "return blocks.every((block, place) => block === now[place])"
    )
    assert texts(page, ".block")[-1] == "And one more follows."


def test_a_screen_reader_hears_whole_sentences(page: Browser) -> None:
    page.run(
        "window.said = []; new MutationObserver(() =>"
        " said.push(document.querySelector('#said').textContent))"
        ".observe(document.querySelector('#said'), {childList: true})"
    )
    begin(page, "go on", "One **two")
    for part in ("** three. Fo", "ur five.", " Six"):
        page.run(f"more({part!r})")
        drawn(page)
    finish(page)
    assert page.run("return said") == ["One two three.", "Four five.", "Six"]
    assert page.run("return document.querySelector('#log').closest('[aria-live]')") is None


def test_formulas_are_whole_and_the_console_has_no_errors(page: Browser) -> None:
    console(page)
    converse(page, "formulas", FORMULAS)
    assert page.run("return document.querySelectorAll('.assistant math').length") == 6
    boxed = "getComputedStyle(document.querySelector('.assistant math > mrow'))"
    assert page.run(f"return {boxed}.borderTopStyle") == "solid"
    assert page.run("return document.querySelectorAll('mtable').length") == 3
    assert console(page) == []


def test_code_has_its_language_and_copy_above_it_and_differences_colours(page: Browser) -> None:
    converse(page, "code", BLOCKS)
    assert texts(page, ".code-head span") == ["diff"]
    assert page.run("return document.querySelector('.copy-code').checkVisibility()")
    colours = page.run(
        "return ['deletion', 'addition'].map(kind =>"
        " getComputedStyle(document.querySelector('.hljs-' + kind)).color)"
    )
    assert len(set(colours)) == 2


def test_a_theme_is_chosen_and_kept(page: Browser) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    shown = {}
    for theme in ("light", "dark"):
        page.run("document.querySelector('#theme').click()")
        assert page.run("return document.querySelector('#theme').ariaLabel") == f"Theme: {theme}"
        shown[theme] = page.run(background)
    reload(page)
    assert page.run(background) == shown["dark"] != shown["light"]
    page.run("localStorage.clear()")


@pytest.mark.parametrize("streamed", [0, 1536])
def test_the_start_tells_how_the_model_fits(page: Browser, streamed: int) -> None:
    report = browsers.BUDGET | {"streamed_bytes": streamed << 20, "pinned_bytes": 512 << 20}
    page.run(
        f"window.fetch = async () => new Response({json.dumps(json.dumps(report))});"
        "document.querySelector('#new').click()"
    )
    told = "25 % stays, the rest streams" if streamed else "all of it stays in memory"
    page.until(f"document.querySelector('.fit')?.textContent.includes('{told}')")
    answering(page, "Cold.")
    page.run("document.querySelector('.idea').click()")
    page.until("window.asked?.length")
    finish(page)
    assert texts(page, ".user") == ["Explain how a refrigerator works, in five sentences."]
