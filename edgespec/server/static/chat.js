/* The page to chat: conversations with the server that it came from. */

import { ask, errorOf, events } from "./api.js";
import { Conversation, SAMPLING, attempt, exported, newId, readAll, remember, remembered, takeIn } from "./conversation.js";
import * as engine from "./engine.js";
import { download, drawLibrary } from "./library.js";
import { addOrigins, element } from "./origins.js";
import { Shown, clear, copy, showError, staying, toEnd } from "./view.js";

const MOST_ATTACHED = 256 * 1024;  /* bytes of a file that becomes text of a message */
const MOST_CONTINUED = 256;  /* tokens; a text has no end of its own, and goes on when asked */
const THEMES = ["system", "light", "dark"];
const IDEAS = ["Explain how a refrigerator works, in five sentences.",
  "Write a Python function that tells whether a word is a palindrome, with tests.",
  "Compare tea and coffee in a table: origin, caffeine, taste."];
const BEGINNINGS = ["def is_palindrome(word):\n", "Once upon a time", "The three most important inventions are"];
const $ = id => document.getElementById(id);
const number = value => value.toLocaleString("en");
let conversation = new Conversation();
const alive = new Map();  /* conversations of this tab by id: the one that is shown, and those that are answered */
let model = {};        /* what the server tells of the model */
let named = "";        /* the model that requests name, where there are several */
let edited = null;     /* the message that is being edited */
let showing = null;    /* the answer that grows, on the page */

/* Draws the whole conversation, and what its latest answer came to. */
function draw() {
  const { path, growing } = conversation;
  clear();
  showing = null;
  if (!path.length && !growing) showStart();
  for (const message of path) {
    const shown = new Shown(message, conversation.converses, message === growing?.message);
    if (message === growing?.message) showing = shown;
    else offer(shown);
  }
  if (growing) showing ||= new Shown(growing.message, conversation.converses, true);
  else if (conversation.failure) showFailure();
  else if (path.at(-1)?.role === "user") showError("This message has no answer yet.", "Ask again", () => answer(conversation));
  engine.watch(growing?.message || path.findLast(({ role }) => role === "assistant") || null);
  setRunning(Boolean(growing));
  tell(conversation);
  keep();
}

function offer(shown) {
  const { message } = shown, mine = conversation;
  const actions = [["Copy", "copy", button => copy(message.content, button)]];
  if (message.role === "user") actions.push(["Edit", "pencil", () => edit(message)]);
  else actions.push(["Regenerate", "refresh-cw", () => regenerate(message)]);
  shown.offer(actions, mine.versions(message), version => {
    if (mine.growing) return;
    mine.failure = "";
    mine.choose(version);
    staying(draw);
  });
}

function showFailure() {
  const mine = conversation, last = mine.path.at(-1);
  if (last?.role === "user") showError(mine.failure, "Ask again", () => answer(mine));
  else if (last?.isCut) showError(mine.failure, "Go on", () => answer(mine, last));
  else showError(mine.failure);
}

/* What is here, and what can be tried. */
async function showStart() {
  const part = $("start").content.cloneNode(true), fit = part.querySelector(".fit");
  part.querySelector("h2").textContent = model.id || "";
  part.querySelector("ul").append(...(conversation.converses ? IDEAS : BEGINNINGS).map(idea => {
    const item = document.createElement("li"), button = element("button", "idea", idea);
    button.type = "button";
    button.addEventListener("click", () => send(idea));
    item.append(button);
    return item;
  }));
  clear(part);
  const memory = await engine.memory().catch(() => null), { size, rate } = engine;
  const named = model.size_bytes ? size(model.size_bytes) : "The model";
  if (!memory) fit.textContent = model.size_bytes ? `${named} of weights.` : "";
  else if (memory.streamed_bytes) {
    const share = memory.pinned_bytes / (memory.pinned_bytes + memory.streamed_bytes);
    fit.textContent = `${named} in ${size(memory.budget_bytes)} of memory: ${Math.round(100 * share)} % stays, the rest streams.`;
  } else fit.textContent = `${named} in a budget of ${size(memory.budget_bytes)}: all of it stays in memory.`;
  if (memory?.plain_token_s) fit.textContent += ` About ${rate(1 / memory.plain_token_s)} tokens a second, more with guesses.`;
}

/* Tints what was guessed, and by whom, or shows answers as they are meant to be read. */
function toggleGuesses() {
  document.body.classList.toggle("guesses", $("toggle-guesses").checked);
  staying(draw);
}

/* Keeps a conversation, and shows the list as it is then. */
async function keep(one = conversation) {
  list();
  const isKept = await one.keep();
  if (one === conversation) $("unkept").hidden = isKept;
  list();
}

function list() {
  drawLibrary(conversation, alive, { open, rename, save, remove });
}

/* Takes in what another tab has kept. */
function heard(copy) {
  const mine = alive.get(copy.id);
  if (mine && copy.messages) {
    const shown = mine.head;
    mine.take(copy);
    if (mine === conversation && !mine.growing && edited === null) {
      if (shown !== mine.head) mine.failure = "";
      staying(draw);
    }
  }
  list();
}

/* Shows another conversation; an answer under way goes on. */
function open(other) {
  endEditing();
  keep(conversation);
  if (!conversation.growing) alive.delete(conversation.id);
  conversation = other;
  alive.set(other.id, other);
  $("unkept").hidden = true;
  showSettings();
  remember(conversation);
  draw();
  toEnd();
  document.body.classList.remove("listing");
  $("text").focus();
}

function rename(one, name) {
  one.name = name;
  keep(one);
}

function save(one) {
  download(`${one.title.replace(/[^\p{L}\p{N} _-]/gu, "").trim() || "conversation"}.md`, one.markdown);
}

async function remove(one) {
  if (one.messages.length && !confirm(`Delete “${one.title}”?`)) return;
  await one.forget();
  alive.delete(one.id);
  if (one === conversation) open(new Conversation({ converses: one.converses }));
  else list();
}

/* Sends a message: the next one, or another version of one that was there. */
function send(text) {
  const parent = edited ? edited.parent : conversation.head;
  endEditing();
  conversation.add({ id: newId(), parent, role: "user", content: text });
  answer(conversation);
}

/* Asks for what follows the newest message, or for the rest of an answer that was cut: `message` grows wherever
   the reader is meanwhile. */
async function answer(mine, message = null) {
  if (mine.growing) return;
  const asked = mine.path, { converses } = mine, controller = new AbortController();
  const begun = message?.content.length || 0;
  message ||= { id: newId(), parent: mine.head, role: "assistant", content: "", reasoning: "", origins: [] };
  mine.growing = { message, controller };
  mine.failure = "";
  const meter = new Meter(mine, message);
  let reason = "";
  draw();
  toEnd();
  await engine.answerBegins();
  try {
    const options = { method: "POST", body: mine.request(asked, MOST_CONTINUED, named), signal: controller.signal };
    const response = await ask(converses ? "v1/chat/completions" : "v1/completions", options, words => meter.says(words));
    if (!response.ok) throw new Error(await errorOf(response));
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      meter.hears(chunk);
      for (const choice of chunk.choices || []) {
        const delta = choice.delta || { content: choice.text };
        if ((delta.content || delta.reasoning_content) && !mine.messages.includes(message)) mine.add(message);
        message.content += delta.content || "";
        message.reasoning += delta.reasoning_content || "";
        addOrigins(message.origins, choice.origins);
        if (delta.content || delta.reasoning_content) grow(mine, meter, choice.origins?.length || 1);
        reason = choice.finish_reason || reason;
      }
    }
    if (!reason) mine.failure = "The answer was cut off: the connection to the server ended.";
    else if (message.content.length === begun) mine.failure = "The model answered nothing.";
    else if (converses && reason === "length") {
      mine.failure = meter.nTokens >= (model.context_length ?? Infinity)
        ? "The context is full: a new conversation has room."
        : "The answer was cut off: the server or its settings allow no more tokens or time.";
    }
  } catch (error) {
    if (error.name !== "AbortError") mine.failure = error.message;
  }
  message.isCut = reason !== "stop";
  end(mine, meter);
}

function grow(mine, meter, nTokens) {
  meter.writes(nTokens);
  mine.keepSoon();
  if (mine !== conversation) return;
  if (!showing) draw();
  showing.grow();
  engine.answerGrows();
}

function end(mine, meter) {
  const { message } = mine.growing;
  mine.growing = null;
  mine.changed = Date.now();
  const old = mine.messages.findLast(one => one.parent === mine.head);
  if (old) mine.choose(old);  /* there is no other version: the one that was there stays */
  if (!meter.nTokens) mine.state = message.isCut && message.content ? "stopped" : "";
  if (mine !== conversation) {
    alive.delete(mine.id);
    keep(mine);
    return;
  }
  if (message.content && mine.path.includes(message)) {  /* what is read stays as it is */
    showing.end();
    offer(showing);
    if (mine.failure) showFailure();
    setRunning(false);
    tell(mine);
    keep();
  } else {
    draw();
  }
  engine.answerEnds();
  if (named) learn().catch(() => {});
}

/* Tells what the server does: how much of the prompt is read, and how fast it writes. */
class Meter {
  constructor(mine, message) {
    Object.assign(this, { mine, message, nTokens: 0, nWritten: 0, nFirst: 0, beganMs: 0 });
    this.says("waiting for the server");
  }

  says(words, share = -1) {
    Object.assign(this.mine, { state: words, share });
    tell(this.mine);
  }

  hears({ comment, prompt_progress: read, usage }) {
    if (comment && comment !== "waiting") this.says(comment, parseFloat(/(\d+)%/.exec(comment)?.[1]) / 100);
    if (read) {
      const { processed, total } = read;
      this.says(`reading the prompt: ${number(processed)} of ${number(total)} tokens`, processed / total);
    }
    if (!usage) return;
    const { prompt_tokens: nRead, completion_tokens: nWritten } = usage;
    this.nTokens = nRead + nWritten;
    this.says(`${number(nRead)} tokens read, ${number(nWritten)} written${this.speed(nWritten)}`);
  }

  writes(nTokens) {
    this.beganMs ||= performance.now();
    this.nFirst ||= nTokens;
    this.nWritten += nTokens;
    this.says(`writing${this.speed(this.nWritten)}`);
  }

  /* The first tokens' time belongs to the prompt. */
  speed(nWritten) {
    const seconds = (performance.now() - this.beganMs) / 1000;
    if (!this.beganMs || nWritten <= this.nFirst || seconds <= 0) return "";
    this.message.speed = (nWritten - this.nFirst) / seconds;
    return `, ${engine.rate(this.message.speed)} tokens a second`;
  }
}

function tell(mine) {
  if (mine !== conversation) return;
  $("state").textContent = mine.state;
  $("progress").hidden = !(mine.growing && mine.share >= 0);
  $("progress").value = mine.share || 0;
}

/* Opens or closes the list on a narrow window, with the focus in what is seen. */
function showList(isOpen) {
  document.body.classList.toggle("listing", isOpen);
  $("open-library").setAttribute("aria-expanded", String(isOpen));
  $(isOpen ? "close-library" : "open-library").focus();
}

function setRunning(isRunning) {
  document.body.classList.toggle("running", isRunning);
  $("send").hidden = isRunning;
  $("stop").hidden = !isRunning;
}

const stop = () => conversation.growing?.controller.abort();

/* Another version of an answer; the old one stays. */
function regenerate({ parent }) {
  if (conversation.growing) return;
  endEditing();
  conversation.head = parent;
  answer(conversation);
}

function edit(message) {
  if (conversation.growing || !message) return;
  endEditing();
  edited = message;
  const place = conversation.path.findIndex(({ id }) => id === message.id);
  $("log").children[place].classList.add("edited");
  $("editing").hidden = false;
  $("text").value = message.content;
  $("text").focus();
}

function endEditing() {
  if (edited === null) return;
  edited = null;
  $("editing").hidden = true;
  $("text").value = "";
  for (const one of $("log").querySelectorAll(".edited")) one.classList.remove("edited");
}

/* On a phone Enter breaks the line: its keyboard has no Shift+Enter. */
const isPhone = () => matchMedia("(pointer: coarse)").matches;

$("form").addEventListener("submit", event => {
  event.preventDefault();
  const text = conversation.converses ? $("text").value.trim() : $("text").value;
  if (!text || conversation.growing) return;
  $("text").value = "";
  send(text);
});
$("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isPhone()) {
    event.preventDefault();
    $("form").requestSubmit();
  } else if (event.key === "ArrowUp" && !$("text").value) {
    event.preventDefault();
    edit(conversation.path.findLast(({ role }) => role === "user"));
  }
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (document.body.classList.contains("listing")) showList(false);
  else if ($("settings").open) closeSettings();
  else if (conversation.growing) stop();
  else endEditing();
});

function closeSettings() {
  $("settings").open = false;
  $("settings").firstElementChild.focus();
}

document.addEventListener("pointerdown", ({ target }) => {
  if (!$("settings").contains(target)) $("settings").open = false;
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", () => {
  const { converses, system, sampling } = conversation, other = new Conversation({ converses });
  open(Object.assign(other, { system, sampling: { ...sampling } }));
});
$("open-library").addEventListener("click", () => showList(true));
$("close-library").addEventListener("click", () => showList(false));
$("search").addEventListener("input", list);
$("toggle-guesses").addEventListener("change", toggleGuesses);
$("toggle-engine").addEventListener("click", () => engine.show($("engine").hidden));
$("export").addEventListener("click", () => download("conversations.json", exported(), "application/json"));
$("import").addEventListener("click", () => $("imported").click());
$("imported").addEventListener("change", async () => {
  try {
    for (const file of $("imported").files) await takeIn(await file.text());
  } catch (error) {
    showError(error.message);
  }
  $("imported").value = "";
  list();
});

/* Files come into the message by choice, by dropping and by pasting them. */
async function attachAll(files) {
  for (const file of files) {
    if (file.size > MOST_ATTACHED) showError(`${file.name} is larger than 256 KiB: attach a part of it.`);
    else attach(file.name, await file.text());
  }
  $("text").focus();
}

$("attach").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", async () => {
  await attachAll($("files").files);
  $("files").value = "";
});
$("text").addEventListener("paste", event => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  attachAll(event.clipboardData.files);
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, event => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.toggle("dropping", kind === "dragover");
    if (kind === "drop") attachAll(event.dataTransfer.files);
  });
}

/* Puts a file into the message, as a block of code in its language that its contents cannot end. */
function attach(name, text) {
  if (text.includes("\0")) return showError(`${name} is no text.`);
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1), ending = name.split(".").at(-1).toLowerCase();
  const language = hljs.getLanguage(ending) ? ending : "";
  const typed = $("text").value;
  $("text").value = `${typed}${typed && "\n"}${name}:\n${fence}${language}\n${text.trimEnd()}\n${fence}\n`;
}

$("system").addEventListener("input", () => {
  conversation.system = $("system").value;
  keep();
});
for (const name of SAMPLING) {
  $(name).addEventListener("input", () => {
    const value = $(name).valueAsNumber;
    if (value >= 0) conversation.sampling[name] = value;
    else delete conversation.sampling[name];
    keep();
  });
}
$("reset").addEventListener("click", () => {
  conversation.sampling = {};
  showSettings();
  keep();
});

/* Shows the conversation's settings; what it does not set is the model's own. */
function showSettings() {
  for (const name of SAMPLING) {
    $(name).value = conversation.sampling[name] ?? "";
    const own = model.sampling?.[name];
    if (own !== undefined) $(name).placeholder = String(own);
  }
  $("system").value = conversation.system;
}

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").title = `Theme: ${theme}`;
  $("theme").setAttribute("aria-label", $("theme").title);
}

$("theme").addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  showTheme(theme);
  attempt(() => localStorage.setItem("edgespec theme", theme));
});

/* A conversation, or a text that goes on where the model has no chat template. */
function showKind(converses) {
  $("text").placeholder = converses ? "Write a message" : "Write the beginning of a text";
  $("send").setAttribute("aria-label", converses ? "Send" : "Continue");
  $("note").hidden = converses;
  $("instructions").hidden = !converses;
}

/* Talks with a model from now on. One that is not loaded says only then whether it converses. */
function use(one) {
  const converses = one.chat ?? true;
  model = one;
  $("name").textContent = document.title = one.id;
  showKind(converses);
  if (!conversation.messages.length || converses !== conversation.converses) open(remembered(converses));
  else open(conversation);
}

async function writingModels() {
  const { data } = await (await ask("v1/models")).json();
  return data.filter(one => one.kind !== "embedding");
}

/* Begins with the model that is loaded; several models are a choice. */
async function begin() {
  const [models] = await Promise.all([writingModels(), readAll(heard)]);
  const first = models.find(one => one.status?.value === "loaded") || models[0];
  if (models.length > 1) {
    named = first.id;
    $("model").replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === named)));
    $("model").hidden = false;
    $("name").classList.add("heard");
  }
  use(first);
}

/* What a model says of itself once it is loaded. */
async function learn() {
  const one = (await writingModels()).find(({ id }) => id === named);
  if (one.chat === false && conversation.converses) return use(one);
  model = one;
  showSettings();
}

$("model").addEventListener("change", async () => {
  named = $("model").value;
  use((await writingModels()).find(({ id }) => id === named));
});
showTheme(attempt(() => localStorage.getItem("edgespec theme")) || "system");
begin().catch(error => showError(error.message, "Try again", () => location.reload()));
