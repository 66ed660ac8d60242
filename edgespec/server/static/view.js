/* Shows messages in the log, and follows the newest text. Knows no server. */

import { ATTRIBUTES, FORMULAS, TAGS } from "./math.js";
import { tinted } from "./origins.js";

const NEAR_PX = 40;  /* a reader who is this near to the end follows the text */
const log = document.getElementById("log");
let follows = true;
let latestTop = 0;

/* What a model writes is Markdown; HTML in it is text. The sanitiser lets through what Markdown
   makes and nothing that loads or runs. */
const asText = token => token.text.replace(/[&<>]/g, sign => `&#${sign.charCodeAt(0)};`);
marked.use({ gfm: true, breaks: true, renderer: { html: asText, image: asText }, extensions: FORMULAS });
const ALLOWED = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6",
    "hr", "input", "li", "ol", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr",
    "ul", "#text", ...TAGS],
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "rel", "start", "target", "title", "type",
    ...ATTRIBUTES],
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
  }
});

const COLOURED = { ALLOWED_TAGS: ["span", "#text"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };

function showMarkdown(part, text, isWhole) {
  part.replaceChildren(DOMPurify.sanitize(marked.parse(text), ALLOWED));
  if (isWhole) part.querySelectorAll("pre > code").forEach(finishCode);
}

/* Colours a block of code, and gives it a button that copies it. */
function finishCode(code) {
  const text = code.textContent;
  const language = /language-([\w+#-]+)/.exec(code.className)?.[1];
  if (language && hljs.getLanguage(language)) {
    const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
    code.replaceChildren(DOMPurify.sanitize(value, COLOURED));
  }
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy-code";
  button.setAttribute("aria-label", "Copy");
  button.addEventListener("click", () => copy(text, button));
  code.parentElement.append(button);
}

const distance = () => log.scrollHeight - log.scrollTop - log.clientHeight;

export function toEnd() {
  follows = true;
  log.scrollTop = log.scrollHeight;
}

/* Only a reader moves the text down; it also moves when the log shrinks, which changes nothing. */
log.addEventListener("scroll", () => {
  follows = distance() < NEAR_PX || (follows && log.scrollTop >= latestTop);
  latestTop = log.scrollTop;
}, { passive: true });
new ResizeObserver(() => follows && toEnd()).observe(log);

function part(kind, text, parent) {
  const turn = document.createElement("div");
  turn.className = "turn " + kind;
  turn.textContent = text;
  parent.append(turn);
  return turn;
}

/* What a model thinks before it answers: open while it thinks, folded afterwards. */
function thoughts(parent) {
  const details = document.createElement("details");
  details.className = "turn reasoning";
  const summary = document.createElement("summary");
  summary.textContent = "Reasoning";
  details.append(summary, document.createElement("div"));
  parent.append(details);
  return details;
}

/* One message in the log. An answer may grow; it is drawn at most once a frame. */
export class Shown {
  constructor(message, converses, isGrowing = false) {
    this.message = message;
    this.isGrowing = isGrowing;
    this.converses = converses;
    this.element = document.createElement("article");
    this.element.className = "message";
    this.thought = this.said = null;
    this.isDue = false;
    log.append(this.element);
    this.draw();
  }

  grow() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.isDue = false;
    const { role, content, reasoning, origins } = this.message;
    const isTinted = document.body.classList.contains("guesses") && origins?.length;
    if (role === "user") {
      this.said = this.said || part("user", content, this.element);
    } else {
      if (reasoning) {
        this.thought = this.thought || thoughts(this.element);
        this.thought.lastChild.textContent = reasoning;
        this.thought.open = this.isGrowing && !content;
      }
      if (content) {
        this.said = this.said || part(this.converses ? "assistant" : "assistant plain", "", this.element);
        this.said.classList.toggle("tinted", Boolean(isTinted));
        if (isTinted) this.said.replaceChildren(...tinted(origins));
        else if (this.converses) showMarkdown(this.said, content, !this.isGrowing);
        else this.said.textContent = content;
      }
    }
    if (follows) toEnd();
  }

  /* Buttons under the message: `actions` are functions by name. */
  offer(actions) {
    const tools = document.createElement("div");
    tools.className = "tools";
    for (const [name, act] of Object.entries(actions)) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = name.toLowerCase();
      button.setAttribute("aria-label", name);
      button.addEventListener("click", () => act(button));
      tools.append(button);
    }
    this.element.append(tools);
    if (follows) toEnd();
  }
}

export function showError(text) {
  const element = document.createElement("article");
  element.className = "message";
  part("error", text, element);
  log.append(element);
  toEnd();
}

/* Draws anew without moving a reader who has scrolled up. */
export function staying(draw) {
  const { scrollTop } = log, did = follows;
  draw();
  if (!did) log.scrollTop = scrollTop;
}

export function clear() {
  log.replaceChildren();
}

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
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => button.setAttribute("aria-label", "Copy"), 1500);
}
