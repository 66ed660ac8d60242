/* The page to chat: conversations with the server that it came from. */

import { ask, errorOf, events } from "./api.js";
import { Conversation, SAMPLING, attempt, exported, newId, readAll, remember, remembered, takeIn, titleOf }
  from "./conversation.js";
import * as engine from "./engine.js";
import { download, drawLibrary } from "./library.js";
import { addOrigins } from "./origins.js";
import { Shown, clear, copy, showError, staying, toEnd } from "./view.js";

const MOST_ATTACHED = 256 * 1024;  /* bytes of a file that becomes text of a message */
const MOST_CONTINUED = 256;  /* tokens; a text has no end of its own, and goes on when asked */
const THEMES = ["system", "light", "dark"];
const $ = id => document.getElementById(id);
const on = (id, kind, act) => $(id).addEventListener(kind, act);
const number = value => value.toLocaleString("en");
let conversation = new Conversation();
const alive = new Map();  /* conversations of this tab by id: the one that is shown, and those that are answered */
let model = {};        /* what the server tells of the model */
let named = "";        /* the model that requests name, where there are several */
let edited = null;     /* the message that is being edited */
let showing = null;    /* the answer that grows, on the page */

/* Draws the whole conversation, and what its latest answer came to. */
function draw() {
  const { path, growing, converses } = conversation;
  clear();
  showing = null;
  if (!path.length && !growing) showStart();
  for (const message of path) {
    const shown = new Shown(message, converses, message === growing?.message);
    shown.element.classList.toggle("edited", message.id === edited?.id);
    if (shown.isGrowing) showing = shown;
    else offer(shown);
  }
  if (growing) showing ||= new Shown(growing.message, converses, true);
  else showFailure();
  engine.watch(growing?.message || path.findLast(({ role }) => role === "assistant"));
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
  const mine = conversation, { failure } = mine, last = mine.path.at(-1);
  if (last?.role === "user") showError(failure || "This message has no answer yet.", "Ask again", () => answer(mine));
  else if (failure && last?.isCut) showError(failure, "Go on", () => answer(mine, mine.path.at(-1)));
  else if (failure) showError(failure);
}

/* What is here, and what can be tried. */
async function showStart() {
  const part = $("start").content.cloneNode(true), [title, fit] = part.querySelectorAll("h2, .fit");
  title.textContent = model.id || "";
  part.querySelector(conversation.converses ? ".beginnings" : ".ideas").remove();
  clear(part);
  fit.textContent = await engine.fit(model.size_bytes);
}

/* Keeps a conversation, and shows the list as it is then. */
async function keep(one = conversation) {
  list();
  const isKept = await one.keep();
  if (one === conversation) $("unkept").hidden = isKept;
  list();
}

const list = () => drawLibrary(conversation, alive, { open, rename, save, remove });

/* Takes in what another tab has kept. */
function heard(copy) {
  const mine = alive.get(copy.id), shown = mine?.head;
  if (mine && copy.messages) {
    mine.take(copy);
    if (shown !== mine.head) mine.failure = "";
    if (mine === conversation && !mine.growing) staying(draw);
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

const rename = (one, name) => keep(Object.assign(one, { name }));
const save = one => download(`${titleOf(one).replace(/[^\p{L}\p{N} _-]/gu, "").trim() || "conversation"}.md`, one.markdown);

async function remove(one) {
  if (one.messages.length && !confirm(`Delete “${titleOf(one)}”?`)) return;
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

/* Asks for what follows the newest message, or for the rest of `message`, an answer that was cut. */
async function answer(mine, message = null) {
  if (mine.growing) return;
  const { converses } = mine, controller = new AbortController(), begun = message?.content.length || 0;
  const asked = mine.path.filter(one => begun || one !== message);  /* reasoning alone cannot go on */
  message ||= { id: newId(), parent: mine.head, role: "assistant", content: "" };
  Object.assign(message, { reasoning: begun && message.reasoning || "", origins: begun && message.origins || [] });
  Object.assign(mine, { growing: { message, controller }, failure: "" });
  const meter = new Meter(mine, message);
  let reason = "";
  draw();
  toEnd();
  await engine.answerBegins();
  try {
    const options = { method: "POST", body: mine.request(asked, MOST_CONTINUED, named), signal: controller.signal };
    const path = converses ? "v1/chat/completions" : "v1/completions";
    const response = await ask(path, options, words => meter.says(words));
    if (!response.ok) throw new Error(await errorOf(response));
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      meter.hears(chunk);
      for (const choice of chunk.choices || []) {
        const { content, reasoning_content: thought } = choice.delta || { content: choice.text };
        if ((content || thought) && !mine.messages.includes(message)) mine.add(message);
        message.content += content || "";
        message.reasoning += thought || "";
        addOrigins(message.origins, choice.origins);
        if (content || thought) {
          meter.writes(choice.origins?.length || 1);
          mine.keepSoon();
          if (mine === conversation) showing.grow();
          engine.answerGrows();
        }
        reason = choice.finish_reason || reason;
      }
    }
    if (!reason) throw new Error("The answer was cut off: the connection to the server ended.");
    if (message.content.length === begun) throw new Error("The model answered nothing.");
    if (converses && reason === "length") throw new Error(meter.nTokens >= (model.context_length ?? Infinity)
      ? "The context is full: a new conversation has room."
      : "The answer was cut off: the server or its settings allow no more tokens or time.");
  } catch (error) {
    if (error.name !== "AbortError") mine.failure = error.message;
  }
  message.isCut = reason !== "stop";
  end(mine, meter);
}

function end(mine, meter) {
  const { message } = mine.growing;
  Object.assign(mine, { growing: null, changed: Date.now() });
  const old = mine.messages.findLast(one => one.parent === mine.head);
  if (old) mine.choose(old);  /* the version that was there, or what another tab asked */
  if (!meter.nTokens) mine.state = message.isCut && message.content && !mine.failure ? "stopped" : "";
  if (mine !== conversation)  /* what failed waits to be told; unless it was deleted */
    return (mine.failure ? alive.has(mine.id) : alive.delete(mine.id)) && keep(mine);
  if (!message.content || mine.head !== message.id) draw();
  else {  /* what is read stays as it is */
    showing.draw(false);
    offer(showing);
    showFailure();
    tell(mine);
    keep();
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
    const { processed, total } = read || {};
    if (read) this.says(`reading the prompt: ${number(processed)} of ${number(total)} tokens`, processed / total);
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
  const isRunning = document.body.classList.toggle("running", Boolean(mine.growing));
  $("send").hidden = isRunning;
  $("stop").hidden = !isRunning;
  $("state").textContent = mine.state;
  $("progress").hidden = !(isRunning && mine.share >= 0);
  $("progress").value = mine.share || 0;
}

/* Opens or closes the list on a narrow window, with the focus in what is seen. */
function showList(isOpen) {
  document.body.classList.toggle("listing", isOpen);
  $("open-library").setAttribute("aria-expanded", String(isOpen));
  $(isOpen ? "close-library" : "open-library").focus();
}

/* Another version of an answer; the old one stays. */
function regenerate({ parent }) {
  if (conversation.growing) return;
  endEditing();
  answer(Object.assign(conversation, { head: parent }));
}

function edit(message) {
  if (conversation.growing || !message) return;
  endEditing();
  edited = message;
  $("log").children[conversation.path.findIndex(({ id }) => id === message.id)].classList.add("edited");
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

on("form", "submit", event => {
  event.preventDefault();
  const text = conversation.converses ? $("text").value.trim() : $("text").value;
  if (conversation.growing) return;
  $("text").value = "";
  if (text) send(text);
  else if (!conversation.converses && conversation.head)
    answer(conversation, conversation.path.slice(-1).find(({ role }) => role === "assistant"));
});
/* On a phone Enter breaks the line: its keyboard has no Shift+Enter. */
on("text", "keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches) {
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
  else if ($("settings").open) {
    $("settings").open = false;
    $("settings").firstElementChild.focus();
  } else if (conversation.growing) conversation.growing.controller.abort();
  else endEditing();
});
document.addEventListener("pointerdown", ({ target }) => {
  if (!$("settings").contains(target)) $("settings").open = false;
});
on("stop", "click", () => conversation.growing?.controller.abort());
on("log", "click", ({ target }) => target.classList.contains("idea") && send(target.textContent));
on("new", "click", () => {
  const { converses, system, sampling } = conversation;
  open(Object.assign(new Conversation({ converses }), { system, sampling: { ...sampling } }));
});
on("open-library", "click", () => showList(true));
on("close-library", "click", () => showList(false));
on("search", "input", list);
on("toggle-engine", "click", () => engine.show($("engine").hidden));
on("toggle-guesses", "change", () => {  /* tints what was guessed, or shows answers as they are meant to be read */
  document.body.classList.toggle("guesses", $("toggle-guesses").checked);
  staying(draw);
});
on("export", "click", () => download("conversations.json", exported(), "application/json"));
on("import", "click", () => { $("imported").value = ""; $("imported").click(); });
on("imported", "change", async () => {
  await $("imported").files[0].text().then(takeIn).catch(error => showError(error.message));
  list();
});

/* Puts files into the message, each as a block of code in its language that its contents cannot end. */
async function attach(files) {
  for (const file of files) {
    const text = file.size > MOST_ATTACHED ? "" : await file.text().catch(() => null);
    if (file.size > MOST_ATTACHED) showError(`${file.name} is larger than 256 KiB: attach a part of it.`);
    else if (text === null) showError(`${file.name} cannot be read.`);
    else if (text.includes("\0")) showError(`${file.name} is no text.`);
    else {
      const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
      const fence = "`".repeat(longest + 1), ending = file.name.split(".").at(-1).toLowerCase();
      const typed = $("text").value, language = hljs.getLanguage(ending) ? ending : "";
      $("text").value = `${typed}${typed && "\n"}${file.name}:\n${fence}${language}\n${text.trimEnd()}\n${fence}\n`;
    }
  }
  $("text").focus();
}
on("attach", "click", () => { $("files").value = ""; $("files").click(); });
on("files", "change", () => attach([...$("files").files]));
for (const kind of ["dragover", "dragleave", "drop", "paste"]) {
  document.addEventListener(kind, event => {
    const given = event.dataTransfer || event.clipboardData;
    if (!given?.types.includes("Files") || (kind === "paste" && given.types.includes("text/plain"))) return;
    event.preventDefault();
    document.body.classList.toggle("dropping", kind === "dragover");
    if (["drop", "paste"].includes(kind)) attach([...given.files]);
  });
}
on("system", "input", () => keep(Object.assign(conversation, { system: $("system").value })));
for (const name of SAMPLING) {
  on(name, "input", () => {
    const { [name]: _, ...others } = conversation.sampling, value = $(name).valueAsNumber;
    keep(Object.assign(conversation, { sampling: value >= 0 ? { ...others, [name]: value } : others }));
  });
}
on("reset", "click", () => { keep(Object.assign(conversation, { sampling: {} })); showSettings(); });

/* Shows the conversation's settings; what it does not set is the model's own. */
function showSettings() {
  for (const name of SAMPLING) {
    $(name).value = conversation.sampling[name] ?? "";
    $(name).placeholder = model.sampling?.[name] ?? $(name).placeholder;
  }
  $("system").value = conversation.system;
}

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").title = $("theme").ariaLabel = `Theme: ${theme}`;
}
on("theme", "click", () => {
  showTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  attempt(() => localStorage.setItem("edgespec theme", document.documentElement.dataset.theme));
});

/* Talks with a model from now on: a conversation, or a text that goes on where it has no chat template. */
function use(one) {
  const converses = one.chat ?? true;
  model = one;
  $("name").textContent = document.title = one.id;
  $("text").placeholder = converses ? "Write a message" : "Write the beginning of a text";
  $("send").setAttribute("aria-label", converses ? "Send" : "Continue");
  $("note").hidden = converses;
  $("instructions").hidden = !converses;
  open(conversation.messages.length && converses === conversation.converses ? conversation : remembered(converses));
}

async function writingModels() {
  const { data } = await (await ask("v1/models", {}, words => { $("state").textContent = words; })).json();
  return data.filter(one => one.kind !== "embedding");
}

/* Begins with the model that is loaded; several models are a choice. */
async function begin() {
  const [models] = await Promise.all([writingModels(), readAll(heard)]);
  const first = models.find(one => one.status?.value === "loaded") || models[0];
  if (!first) throw new Error("This server has embedding models only: there is none to chat with.");
  if (models.length > 1) {
    named = first.id;
    $("model").replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === named)));
    $("model").hidden = false;
    $("name").classList.add("heard");
  }
  use(first);
}

/* What the model says of itself, which it knows once it is loaded. */
async function learn(isChosen = false) {
  const one = (await writingModels()).find(({ id }) => id === named);
  if (isChosen || one.chat === false && conversation.converses) return use(one);
  model = one;
  showSettings();
}

on("model", "change", () => {
  named = $("model").value;
  learn(true).catch(error => showError(error.message));
});
showTheme(attempt(() => localStorage.getItem("edgespec theme")) || "system");
begin().catch(error => showError(error.message, "Try again", () => location.reload()));
