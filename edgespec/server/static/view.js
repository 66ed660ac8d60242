/* Shows messages in the log, and follows the newest text. Knows no server. */

import { ATTRIBUTES, FORMULAS, TAGS, lookRight } from "./math.js";
import { element, tinted } from "./origins.js";

const NEAR_PX = 40;  /* a reader who is this near to the end follows the text */
const SENTENCE_END = /[.!?…。！？:]["”')\]*_`]*\s|\n/g;
const log = document.getElementById("log");
let follows = true, latestTop = 0;

/* What a model writes is Markdown; HTML in it is text. The sanitiser lets nothing through that loads or runs. */
const escaped = text => text.replace(/[&<>"]/g, sign => `&#${sign.charCodeAt(0)};`);
const asText = ({ text }) => escaped(text);

/* A block of code under a line that names its language and copies it. */
function code({ text, lang = "" }) {
  const [language] = lang.split(/[\s{]/, 1), isKnown = hljs.getLanguage(language);
  const shown = isKnown ? hljs.highlight(text, { language, ignoreIllegals: true }).value : escaped(text);
  return `<div class="code"><div class="code-head"><span>${escaped(language || "text")}</span>`
    + `<button class="copy-code" type="button">Copy</button></div><pre><code>${shown}\n</code></pre></div>`;
}

marked.use({ gfm: true, breaks: true, renderer: { html: asText, image: asText, code }, extensions: FORMULAS });
const ALLOWED = {
  ALLOWED_TAGS: [..."a blockquote br button code del div em h1 h2 h3 h4 h5 h6 hr input li ol p pre span strong".split(" "),
    ..."table tbody td th thead tr ul #text".split(" "), ...TAGS],
  ALLOWED_ATTR: [..."align checked class disabled href rel start target title type".split(" "), ...ATTRIBUTES],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "start", ...ATTRIBUTES],  /* hold no addresses */
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
DOMPurify.addHook("afterSanitizeAttributes", node => {
  if (node.nodeName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  } else if (node.nodeName === "INPUT") {  /* the box of a task, which shows its state */
    node.setAttribute("type", "checkbox");
    node.setAttribute("disabled", "");
    node.setAttribute("aria-label", node.hasAttribute("checked") ? "done" : "open");
  } else if (["PRE", "TABLE"].includes(node.nodeName) || node.className === "formula") {
    node.setAttribute("tabindex", "0");  /* they may scroll, also by keyboard */
  }
});

/* Makes a tree like another one and touches nothing that is so already: what is selected stays selected. */
function patch(old, made) {
  const there = [...old.childNodes], wanted = [...made.childNodes];
  there.slice(wanted.length).forEach(node => node.remove());
  wanted.forEach((node, place) => {
    const one = there[place];
    if (!one) old.append(node);
    else if (one.nodeType !== node.nodeType || !one.cloneNode().isEqualNode(node.cloneNode()) && one.nodeType !== 3) {
      one.replaceWith(node);
    } else if (one.nodeType !== 3) patch(one, node);
    else if (node.data.startsWith(one.data)) one.appendData(node.data.slice(one.data.length));
    else one.data = node.data;
  });
}

export function toEnd() {
  follows = true;
  log.scrollTop = log.scrollHeight;
}

/* Only a reader moves the text down; it also moves when the log shrinks, which changes nothing. */
log.addEventListener("scroll", () => {
  follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PX || (follows && log.scrollTop >= latestTop);
  latestTop = log.scrollTop;
}, { passive: true });
new ResizeObserver(() => follows && toEnd()).observe(log);
log.addEventListener("click", ({ target }) => {
  if (target.classList.contains("copy-code")) copy(target.closest(".code").querySelector("code").textContent, target);
});

export function iconButton(label, picture, act) {
  const button = element("button", `icon ${label.toLowerCase()}`);
  const svg = document.getElementById("icon").content.firstElementChild.cloneNode(true);
  svg.firstElementChild.setAttribute("href", `#i-${picture}`);
  button.append(svg);
  button.title = button.ariaLabel = label;
  button.addEventListener("click", () => act(button));
  return button;
}

const part = (kind, text, parent) => parent.appendChild(element("div", "turn " + kind, text));

/* One message in the log. An answer may grow; it is drawn at most once a frame, and its finished blocks once. */
export class Shown {
  constructor(message, converses, isGrowing = false) {
    const blocks = [], nHeard = message.content.length;  /* blocks of Markdown, and characters said aloud */
    Object.assign(this, { message, converses, isGrowing, blocks, nHeard, thought: null, said: null, due: 0 });
    this.element = log.appendChild(element("article", `message from-${message.role}`));
    this.draw();
  }

  grow() {
    this.due ||= requestAnimationFrame(() => this.draw());
  }

  /* Draws what there is; an answer that has ended has `isGrowing` false. */
  draw(isGrowing = this.isGrowing) {
    Object.assign(this, { due: 0, isGrowing });
    const { role, content, reasoning, origins } = this.message;
    const isTinted = document.body.classList.contains("guesses") && origins?.length > 0;
    this.element.classList.toggle("growing", this.isGrowing);
    if (role === "user") {
      this.said ||= part("user", content, this.element);
    } else {
      if (reasoning) {
        this.thought ||= this.element.appendChild(element("details", "turn reasoning"));
        if (!this.thought.firstChild) this.thought.append(element("summary", "", "Reasoning"), element("div", ""));
        this.thought.lastChild.textContent = reasoning;
        this.thought.open = this.isGrowing && !content;
      }
      if (content) {
        this.said ||= part(this.converses ? "assistant" : "assistant plain", "", this.element);
        this.said.classList.toggle("tinted", isTinted);
        if (isTinted || !this.converses) this.drawText(isTinted ? tinted(origins) : [content]);
        else this.drawBlocks(content);
      }
      if (this.isGrowing || this.nHeard < content.length) this.speak(content);
    }
    if (follows) toEnd();
  }

  drawText(nodes) {
    const made = new DocumentFragment();
    made.append(...nodes);
    if (this.blocks.splice(0).length) this.said.replaceChildren();
    patch(this.said, made);
  }

  /* A block whose text is the same is drawn again only at the end, when links of the whole text are known. */
  drawBlocks(text) {
    let tokens;
    try { tokens = marked.lexer(text); } catch { return this.drawText([text]); }  /* it is nested too deeply */
    const { links } = tokens, blocks = tokens.filter(({ type }) => type !== "space");
    if (!this.blocks.length) this.said.replaceChildren();
    blocks.forEach((token, place) => {
      const known = this.blocks[place], { raw } = token;
      if (this.isGrowing && raw === known?.raw) return;
      const html = marked.parser(Object.assign([token], { links }));
      this.blocks[place] = { raw, html };
      if (html === known?.html) return;
      const made = DOMPurify.sanitize(html, ALLOWED);
      lookRight(made);
      patch(this.said.children[place] || this.said.appendChild(element("div", "block")), made);
    });
    while (this.said.children.length > blocks.length) this.said.lastChild.remove();
    this.blocks.length = blocks.length;
  }

  /* Lets a screen reader say the sentences that have ended, and at the end the rest. */
  speak(content) {
    const ends = [...content.slice(this.nHeard).matchAll(SENTENCE_END)];
    const end = this.isGrowing ? this.nHeard + (ends.length ? ends.at(-1).index + ends.at(-1)[0].length : 0) : content.length;
    const words = content.slice(this.nHeard, end).replace(/[*_`#|]+/g, "").trim();
    if (words) document.getElementById("said").textContent = words;
    this.nHeard = end;
  }

  /* Buttons under the message: `actions` have names, icons and functions; of `versions` another may be chosen. */
  offer(actions, versions = [], choose = () => {}) {
    const tools = element("div", "tools");
    if (versions.length > 1) {
      const place = versions.findIndex(({ id }) => id === this.message.id), to = step => () => choose(versions[place + step]);
      const [back, on] = [iconButton("Earlier version", "chevron-left", to(-1)), iconButton("Later version", "chevron-right", to(1))];
      back.disabled = place === 0;
      on.disabled = place === versions.length - 1;
      tools.append(back, element("span", "place", `${place + 1} of ${versions.length}`), on);
    }
    for (const action of actions) tools.append(iconButton(...action));
    this.element.append(tools);
    if (follows) toEnd();
  }
}

/* An error at the end of the log, and a button with which a reader mends it. */
export function showError(text, name = "", act = null) {
  const message = log.appendChild(element("article", "message")), button = element("button", "again", name);
  part("error", text, message).role = "alert";
  button.addEventListener("click", act);
  if (act) message.append(button);
  toEnd();
}

/* Draws anew without moving a reader who has scrolled up. */
export function staying(draw) {
  const { scrollTop } = log, did = follows;
  draw();
  if (!did) log.scrollTop = scrollTop;
}

export const clear = (...parts) => log.replaceChildren(...parts);

/* Copies a text, also where a page that came without TLS has no clipboard of its own. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 1500);
}
