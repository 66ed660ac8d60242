"use strict";
/* The page to chat: one conversation with the server that it came from. */

const $ = id => document.getElementById(id);
let conversation = newConversation();
let key = "";
let converses = true;  /* false for a model without a chat template, which continues text */

function newConversation() {
  return { messages: [], running: null };
}

/* What a model writes is Markdown; HTML in it is text. The sanitiser lets through what Markdown
   makes and nothing that loads or runs. */
const asText = token => token.text.replace(/[&<>]/g, sign => `&#${sign.charCodeAt(0)};`);
marked.use({ gfm: true, breaks: true, renderer: { html: asText, image: asText } });
const ALLOWED = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6",
    "hr", "li", "ol", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
    "#text"],
  ALLOWED_ATTR: ["align", "href", "rel", "start", "target", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
DOMPurify.addHook("afterSanitizeAttributes", node => {
  if (node.nodeName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
});

function showMarkdown(part, text) {
  part.replaceChildren(DOMPurify.sanitize(marked.parse(text), ALLOWED));
}

function turn(kind, text) {
  const part = document.createElement("div");
  part.className = "turn " + kind;
  part.textContent = text;
  $("log").append(part);
  part.scrollIntoView({ block: "end" });
  return part;
}

/* Shows an answer as it grows, at most once a frame; a reader who scrolled up is left alone. */
class Shown {
  constructor() {
    this.reasoning = "";
    this.answer = "";
    this.thought = null;
    this.said = null;
    this.isDue = false;
  }

  add(delta) {
    this.reasoning += delta.reasoning_content || "";
    this.answer += delta.content || "";
    if (!this.isDue && (delta.reasoning_content || delta.content)) {
      this.isDue = true;
      requestAnimationFrame(() => this.draw());
    }
  }

  remove() {
    this.reasoning = "";
    if (this.thought) this.thought.remove();
  }

  draw() {
    this.isDue = false;
    const page = document.documentElement;
    const follows = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
    if (this.reasoning) {
      this.thought = this.thought || turn("reasoning", "");
      this.thought.textContent = this.reasoning;
    }
    if (this.answer) {
      this.said = this.said || turn(converses ? "assistant" : "assistant plain", "");
      if (converses) showMarkdown(this.said, this.answer);
      else this.said.textContent = this.answer;
    }
    if (follows) page.scrollTop = page.scrollHeight;
  }
}

async function ask(path, options = {}) {
  for (;;) {
    const headers = { "Content-Type": "application/json" };
    if (key) headers.Authorization = "Bearer " + key;
    const response = await fetch(path, { ...options, headers });
    if (response.status !== 401) return response;
    key = prompt("This server wants its API key:") || "";
    if (!key) return response;
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n\n")) >= 0) {
      const data = held.slice(6, end);
      held = held.slice(end + 2);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

const MOST_CONTINUED = 256;  /* tokens; a text has no end of its own, and goes on when asked */

function request(messages) {
  const body = { stream: true, stream_options: { include_usage: true } };
  if (converses) {
    body.messages = messages;
  } else {
    body.prompt = messages.map(message => message.content).join("");
    body.max_tokens = MOST_CONTINUED;
  }
  const temperature = $("temperature").valueAsNumber;
  if (temperature >= 0) body.temperature = temperature;
  return JSON.stringify(body);
}

/* One question and its answer. `mine` is their conversation, which Reset may have replaced since. */
async function converse(question) {
  const mine = conversation;
  const isCurrent = () => mine === conversation;
  const asked = turn("user", question);
  const shown = new Shown();
  mine.running = new AbortController();
  mine.messages.push({ role: "user", content: question });
  setRunning(true);
  $("state").textContent = "";
  try {
    const options = { method: "POST", body: request(mine.messages), signal: mine.running.signal };
    const response = await ask(converses ? "v1/chat/completions" : "v1/completions", options);
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const chunk of events(response)) {
      if (!isCurrent()) return;
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) {
        $("state").textContent = chunk.usage.prompt_tokens + " tokens read, "
          + chunk.usage.completion_tokens + " written";
      }
      for (const choice of chunk.choices) {
        shown.add(choice.delta || { content: choice.text });
        if (converses && choice.finish_reason === "length") shown.isCut = true;
      }
    }
    if (isCurrent() && !shown.answer) turn("error", "The model answered nothing.");
  } catch (error) {
    if (isCurrent() && error.name !== "AbortError") turn("error", error.message);
  }
  if (!isCurrent()) return;
  mine.running = null;
  if (shown.answer) {
    shown.draw();
    mine.messages.push({ role: "assistant", content: shown.answer });
    if (shown.isCut) turn("error", "The context is full: Reset begins a new conversation.");
  } else {
    mine.messages.pop();
    asked.remove();
    shown.remove();
    giveBack(question);
  }
  setRunning(false);
  $("text").focus();
}

/* A question that got no answer is not lost: it can be changed and asked again. */
function giveBack(question) {
  const typed = $("text").value;
  $("text").value = typed ? question + "\n" + typed : question;
}

function setRunning(isRunning) {
  $("send").hidden = isRunning;
  $("stop").hidden = !isRunning;
}

$("form").addEventListener("submit", event => {
  event.preventDefault();
  const text = converses ? $("text").value.trim() : $("text").value;
  if (!text || conversation.running) return;
  $("text").value = "";
  converse(text);
});
$("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
$("stop").addEventListener("click", () => conversation.running && conversation.running.abort());
$("reset").addEventListener("click", () => {
  const { running } = conversation;
  conversation = newConversation();
  if (running) running.abort();
  $("log").replaceChildren();
  $("state").textContent = "";
  setRunning(false);
  $("text").focus();
});

function continueText() {
  converses = false;
  $("text").placeholder = "Write the beginning of a text; Enter continues it, Shift+Enter breaks the line";
  $("send").textContent = "Continue";
  $("note").hidden = false;
}

ask("v1/models").then(response => response.json()).then(models => {
  const model = models.data[0];
  $("name").textContent = model.id;
  document.title = model.id;
  $("temperature").value = String(model.sampling.temperature ?? 0);
  if (!model.chat) continueText();
}).catch(() => {});
