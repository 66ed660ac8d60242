"""The page as a reader sees it: formulas, guessed words, contrast in both themes, by keyboard."""

from __future__ import annotations

import pytest

import browser as browsers
from browser import answering, ask, in_theme, page_alone, pressed, walk_to

pytestmark = browsers.needed

FORMULAS = r"""Roots of $ax^2 + bx = 0$ for $5 or $10, \(e^{i\pi}\):

$$x = \frac{-b}{a}$$

\[\sum_k k\]

`$not$` and $\unknownmacro{x}$ and $<img src=x onerror=alert(1)>$
"""
EVERYTHING = FORMULAS + "\n```python\ndef f(x):\n    return 1 + 'a'  # b\n```\n> quoted `code`\n"
ORIGINS = [("The ", "target"), ("sum ", "draft"), ("of two", "lookup"), ("!", "recycled")]

CONTRAST = r"""
const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
const rgba = color => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].map(v => v / 255);
};
const over = (front, back, alpha) =>
  front.slice(0, 3).map((v, i) => v * alpha + back[i] * (1 - alpha));
const luminance = color => color.map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const chain = element => element ? [...chain(element.parentElement), element] : [];
const canvasColor = rgba(getComputedStyle(document.documentElement).colorScheme.includes("dark")
  && matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#ffffff");
const found = [];
const measure = (element, color) => {
  let back = canvasColor.slice(0, 3), opacity = 1;
  for (const one of chain(element)) {
    const style = getComputedStyle(one), paint = rgba(style.backgroundColor);
    opacity *= Number(style.opacity);
    back = over(paint, back, paint[3] * opacity);
  }
  const paint = rgba(color);
  const text = over(paint, back, paint[3] * opacity);
  const [high, low] = [luminance(text), luminance(back)].sort((a, b) => b - a);
  const name = element.tagName + "." + element.className + "#" + element.id;
  found.push([(high + .05) / (low + .05), name]);
};
for (const element of document.querySelectorAll("body *")) {
  if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
  const before = getComputedStyle(element, "::before").content;
  const hasText = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const isField = element.value && element.type !== "range";
  if (hasText || (before.startsWith('"') && before.length > 2) || isField)
    measure(element, getComputedStyle(element).color);
  if (element.placeholder) measure(element, getComputedStyle(element, "::placeholder").color);
}
return found.filter(([ratio]) => ratio < 4.5);
"""


@pytest.fixture(scope="module")
def browser():
    running = browsers.Browser()
    yield running
    running.close()


@pytest.fixture
def page(browser):
    with page_alone() as address:
        browser.resize(1280, 800)
        browser.open(address)
        browser.until("document.title === 'm'")
        yield browser


def converse(page, text: str, origins: list[tuple[str, str]] | None = None) -> None:
    answering(page, text)
    ask(page, "Go on")
    page.until("window.asked.length")
    for part, by in origins or []:
        page.run(
            f"tell({{choices: [{{delta: {{content: {part!r}}},"
            f" origins: [{{text: {part!r}, by: {by!r}}}]}}]}})"
        )
    page.run("end()")
    page.until("!document.querySelector('#send').hidden")


def test_formulas_are_drawn_and_prices_are_text(page):
    converse(page, FORMULAS)
    shown = page.run("return [...document.querySelectorAll('.assistant math')].length")
    assert shown == 5
    assert page.run("return document.querySelectorAll('math[display=block]').length") == 2
    text = page.run("return document.querySelector('.assistant').textContent")
    assert "for $5 or $10" in text
    assert r"$\unknownmacro{x}$" in text
    assert page.run("return document.querySelector('.assistant code').textContent") == "$not$"


def test_a_formula_brings_no_markup(page):
    converse(page, r"$\href{javascript:alert(1)}{x}$ $<img src=x>$ \(\text{<b>bold</b>}\)")
    assert page.run("return document.querySelectorAll('.assistant :is(a, img, b)').length") == 0


def test_a_list_begins_with_its_number_and_columns_are_aligned(page):
    converse(page, "3. three\n4. four\n\n| a | b |\n| --- | --: |\n| 1 | 2 |\n")
    assert page.run("return document.querySelector('.assistant ol').start") == 3
    assert page.run("return document.querySelectorAll('.assistant td')[1].align") == "right"


def test_a_displayed_fraction_is_larger_than_one_in_a_line(page):
    converse(page, "$\\frac{a}{b}$\n\n$$\\frac{a}{b}$$")
    inline, displayed = page.run(
        "return [...document.querySelectorAll('mfrac')].map(e => e.getBoundingClientRect().height)"
    )
    assert displayed > 1.2 * inline


def test_guessed_words_are_tinted_by_source_and_as_they_were_then(page):
    converse(page, "", ORIGINS)
    assert page.run("return document.querySelectorAll('.assistant .by').length") == 0
    page.run("document.querySelector('#toggle-engine').click()")
    page.run("document.querySelector('#toggle-guesses').click()")
    spans = "[...document.querySelectorAll('.assistant .by')]"
    assert page.run(f"return {spans}.map(e => [e.textContent, e.className.slice(3)])") == [
        list(origin) for origin in ORIGINS
    ]
    colours = page.run(f"return {spans}.map(e => getComputedStyle(e).backgroundColor)")
    assert len(set(colours)) == 4
    legend = page.run("return document.querySelector('#sources').textContent")
    assert "the draft model 27 %" in legend
    page.run("document.querySelector('#toggle-guesses').click()")
    assert page.run("return document.querySelector('.assistant').textContent.trim()") == (
        "The sum of two!"
    )


def test_guesses_survive_a_reload(page):
    converse(page, "", ORIGINS)
    page.run("document.title = ''; location.reload()")
    page.until("document.title === 'm'")
    page.run("document.querySelector('#toggle-guesses').click()")
    assert page.run("return document.querySelectorAll('.assistant .by.lookup').length") == 1


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa(page, theme, width):
    in_theme(page, theme)
    page.resize(width, 844)
    converse(page, EVERYTHING, ORIGINS)
    page.run("document.querySelector('#settings').open = true")
    assert page.run(CONTRAST) == []
    page.run("document.querySelector('#toggle-guesses').click()")
    page.run("document.querySelector('#engine').hidden = false")
    page.run("document.querySelector('#open-library').click()")
    assert page.run(CONTRAST) == []
    in_theme(page, "")


def test_everything_can_be_done_by_keyboard(page):
    page.run("localStorage.clear(); window.confirm = () => true; window.copied = ''")
    page.run(
        "Object.defineProperty(navigator, 'clipboard',"
        " {value: {writeText: async text => { window.copied = text }}})"
    )
    converse(page, "One.")
    walk_to(page, "Copy")
    pressed(page, "Enter")
    assert page.until("window.copied") == "Go on"
    walk_to(page, "Edit")
    pressed(page, "Enter")
    assert page.run("return document.querySelector('#text').value") == "Go on"
    pressed(page, "Escape")
    assert page.run("return document.querySelector('#text').value") == ""
    walk_to(page, "Regenerate")
    answering(page, "Two")
    pressed(page, "Enter")
    page.until("window.asked.length")
    pressed(page, "Escape")
    page.until("!document.querySelector('#send').hidden")
    assert page.run("return document.querySelector('.assistant').textContent.trim()") == "Two"
    walk_to(page, "Under the hood")
    pressed(page, "Enter")
    walk_to(page, "Colour the words of answers likewise")
    pressed(page, " ")
    assert page.run("return document.body.classList.contains('guesses')")
    assert not page.run("return document.querySelector('#engine').hidden")
    walk_to(page, "Rename")
    pressed(page, "Enter")
    page.run("document.activeElement.value = 'Numbers'")
    pressed(page, "Enter")
    assert page.run("return document.querySelector('#conversations .open').textContent") == (
        "Numbers"
    )
    page.run("HTMLAnchorElement.prototype.click = function () { window.saved = this.download }")
    walk_to(page, "Save as a file")
    pressed(page, "Enter")
    assert page.until("window.saved") == "Numbers.md"
    walk_to(page, "Delete")
    pressed(page, "Enter")
    assert page.run("return document.querySelectorAll('.message').length") == 0


def test_what_has_the_focus_is_seen(page):
    converse(page, "One.")
    page.run("document.querySelector('#new').focus()")
    unseen = []
    for _ in range(16):
        pressed(page, "Tab")
        named, style, opacity = page.run(
            "const e = document.activeElement;"
            "const s = getComputedStyle(e.id === 'text' ? e.closest('#composer') : e);"
            "return [e.id || e.className || e.tagName, s.outlineStyle, s.opacity]"
        )
        if named != "BODY" and (style == "none" or float(opacity) < 1):
            unseen.append(named)
    assert unseen == []


def test_the_list_of_a_narrow_window_takes_the_focus_and_gives_it_back(page):
    page.resize(390, 844)
    page.run("document.querySelector('#open-library').click()")
    assert page.run("return document.activeElement.id") == "close-library"
    pressed(page, "Escape")
    assert page.run("return document.activeElement.id") == "open-library"
    assert not page.run("return document.body.classList.contains('listing')")
