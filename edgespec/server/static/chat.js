/* The page to chat: conversations with the server that it came from. */

import { ask, errorOf, events } from "./api.js";
import { Conversation, SAMPLING, newId, readAll, remember, remembered } from "./conversation.js";
import * as engine from "./engine.js";
import { download, drawLibrary } from "./library.js";
import { addOrigins, legend } from "./origins.js";
import { Shown, clear, copy, showError, staying, toEnd } from "./view.js";

const MOST_ATTACHED = 256 * 1024;  /* bytes of a file that becomes text of a message */
const MOST_CONTINUED = 256;  /* tokens; a text has no end of its own, and goes on when asked */
const $ = id => document.getElementById(id);
const number = value => value.toLocaleString("en");
let conversation = new Conversation();
let named = "";        /* the model that requests name, where there are several */
let edited = null;     /* the place of the message that is being edited */
let contextLength = Infinity;
let defaults = { temperature: 0 };  /* the model's own sampling */

let showing = null;    /* the answer that grows, on the page */

/* Draws the whole conversation; only its latest answer can be written again. */
function draw() {
  clear();
  const { messages } = conversation, last = messages.length - 1;
  messages.forEach((message, place) => {
    const actions = { Copy: button => copy(message.content, button) };
    if (message.role === "user") actions.Edit = () => edit(place);
    else if (place === last) actions.Regenerate = regenerate;
    new Shown(message, conversation.converses).offer(actions);
  });
  drawLegend();
  keep();
}

function drawLegend() {
  const runs = conversation.messages.map(message => message.origins || []);
  $("guesses-legend").replaceChildren(...legend(runs));
}

/* Tints what was guessed, and by whom, or shows answers as they are meant to be read. */
function toggleGuesses() {
  const isOn = document.body.classList.toggle("guesses");
  $("toggle-guesses").setAttribute("aria-pressed", String(isOn));
  $("guesses-legend").hidden = !isOn;
  if (conversation.running) showing?.draw();
  else draw();
  drawLegend();
}

/* Keeps a conversation, and shows the list as it is then. */
async function keep(one = conversation) {
  list();
  const isKept = await one.keep();
  if (one === conversation) $("unkept").hidden = isKept;
  list();
}

function list() {
  drawLibrary(conversation, { open, rename, save, remove });
}

/* Takes in what another tab has kept. */
function heard(copy) {
  if (copy.id === conversation.id && copy.messages) {
    conversation.take(copy);
    if (!conversation.running && edited === null) staying(draw);
  }
  list();
}

/* Shows another conversation; an answer under way ends. */
function open(other) {
  if (other !== conversation) {
    conversation.running?.abort();
    keep(conversation);
    conversation = other;
  }
  endEditing();
  $("state").textContent = "";
  $("unkept").hidden = true;
  setRunning(false);
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
  if (one === conversation) open(fresh());
  else list();
}

const fresh = given => new Conversation({ converses: conversation.converses }, given);

/* Asks a question behind `earlier` messages. With the first word of the answer, both take the place of
   those that were there; without an answer these stay. `mine` is the conversation; another may have
   taken its place since. */
async function converse(question, earlier, isRepeated = false) {
  const mine = conversation, { converses } = mine;
  const isCurrent = () => mine === conversation;
  const replaced = mine.messages.filter(message => !earlier.includes(message)).map(({ id }) => id);
  const asked = { id: newId(), role: "user", content: question };
  const answer = { id: newId(), role: "assistant", content: "", reasoning: "", origins: [] };
  if (!isRepeated) remember(mine, question);
  mine.running = new AbortController();
  mine.changed = Date.now();
  keep();
  clear();
  for (const message of [...earlier, asked]) new Shown(message, converses);
  toEnd();
  const shown = showing = new Shown(answer, converses, true);
  const meter = new Meter();
  let reason = "", failure = "";
  setRunning(true);
  await engine.answerBegins();
  try {
    const body = mine.request([...earlier, asked], $("temperature").valueAsNumber, MOST_CONTINUED, named);
    const options = { method: "POST", body, signal: mine.running.signal };
    const response = await ask(converses ? "v1/chat/completions" : "v1/completions", options);
    if (!response.ok) throw new Error(await errorOf(response));
    for await (const chunk of events(response)) {
      if (!isCurrent()) break;
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.prompt_progress) meter.reads(chunk.prompt_progress);
      if (chunk.usage) meter.ends(chunk.usage);
      for (const choice of chunk.choices) {
        const delta = choice.delta || { content: choice.text };
        if (delta.content && !answer.content) {
          mine.messages = [...mine.messages.filter(({ id }) => !replaced.includes(id)), asked, answer];
          remember(mine);
        }
        answer.content += delta.content || "";
        answer.reasoning += delta.reasoning_content || "";
        addOrigins(answer.origins, choice.origins);
        if (delta.content || delta.reasoning_content) {
          meter.writes();
          shown.grow();
          mine.keepSoon();
        }
        reason = choice.finish_reason || reason;
      }
    }
    if (!reason && isCurrent()) failure = "The answer was cut off: the connection to the server ended.";
    else if (!answer.content) failure = "The model answered nothing.";
  } catch (error) {
    if (error.name !== "AbortError") failure = error.message;
  }
  mine.running = null;
  if (!isCurrent()) return keep(mine);  /* what there was of the answer stays in its conversation */
  remember(mine);
  setRunning(false);
  draw();
  if (failure) showError(failure);
  else if (converses && reason === "length") {
    showError(meter.nTokens >= contextLength
      ? "The context is full: a new conversation has room."
      : "The answer was cut off: the server allows no more tokens or time.");
  }
  engine.answerEnds();
  if (named) learn().catch(() => {});
  if (!meter.nTokens) $("state").textContent = answer.content ? "stopped" : "";
  if (!answer.content && !isRepeated) giveBack(question);
  $("text").focus();
}

/* A question that got no answer is not lost: it can be changed and asked again. */
function giveBack(question) {
  const typed = $("text").value;
  $("text").value = typed ? question + "\n" + typed : question;
}

/* Tells what the server does: how much of the prompt is read, and how fast it writes. */
class Meter {
  constructor() {
    this.nWritten = 0;
    this.nTokens = 0;
    this.beganMs = 0;
    $("progress").hidden = true;
    $("state").textContent = "waiting for the server";
  }

  reads({ processed, total }) {
    $("progress").hidden = false;
    $("progress").value = processed / total;
    $("state").textContent = `reading the prompt: ${number(processed)} of ${number(total)} tokens`;
  }

  writes() {
    $("progress").hidden = true;
    this.beganMs = this.beganMs || performance.now();
    this.nWritten += 1;
    $("state").textContent = `writing${this.speed(this.nWritten)}`;
  }

  ends({ prompt_tokens: nRead, completion_tokens: nWritten }) {
    this.nTokens = nRead + nWritten;
    $("state").textContent =
      `${number(nRead)} tokens read, ${number(nWritten)} written${this.speed(nWritten)}`;
  }

  /* The first token's time belongs to the prompt. */
  speed(nWritten) {
    const seconds = (performance.now() - this.beganMs) / 1000;
    if (!this.beganMs || nWritten < 2 || seconds <= 0) return "";
    return `, ${engine.rate((nWritten - 1) / seconds)} tokens a second`;
  }
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
  $("progress").hidden = true;
}

function stop() {
  if (conversation.running) conversation.running.abort();
}

function regenerate() {
  const { messages, running } = conversation;
  if (running || messages.length < 2) return;
  endEditing();
  converse(messages.at(-2).content, messages.slice(0, -2), true);
}

function edit(place) {
  if (conversation.running) return;
  endEditing();
  edited = place;
  $("log").children[place].classList.add("edited");
  $("editing").hidden = false;
  $("text").value = conversation.messages[place].content;
  $("text").focus();
}

function endEditing() {
  if (edited === null) return;
  edited = null;
  $("editing").hidden = true;
  $("text").value = "";
  for (const one of $("log").querySelectorAll(".edited")) one.classList.remove("edited");
}

$("form").addEventListener("submit", event => {
  event.preventDefault();
  const text = conversation.converses ? $("text").value.trim() : $("text").value;
  if (!text || conversation.running) return;
  const earlier = conversation.messages.slice(0, edited ?? undefined);
  endEditing();
  $("text").value = "";
  converse(text, earlier);
});
$("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (document.body.classList.contains("listing")) showList(false);
  else if (conversation.running) stop();
  else endEditing();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", () => {
  const { system, sampling } = conversation;
  open(fresh({ system, sampling: { ...sampling } }));
});
$("open-library").addEventListener("click", () => showList(true));
$("close-library").addEventListener("click", () => showList(false));
$("toggle-guesses").addEventListener("click", toggleGuesses);
$("toggle-engine").addEventListener("click", () => engine.show($("engine").hidden));
$("attach").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", async () => {
  for (const file of $("files").files) {
    if (file.size > MOST_ATTACHED) showError(`${file.name} is larger than 256 KiB: attach a part of it.`);
    else attach(file.name, await file.text());
  }
  $("files").value = "";
  $("text").focus();
});
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

/* Puts a file into the message, as a block of code that its contents cannot end. */
function attach(name, text) {
  if (text.includes("\0")) return showError(`${name} is no text.`);
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  const typed = $("text").value;
  $("text").value = `${typed}${typed && "\n"}${name}:\n${fence}\n${text.trimEnd()}\n${fence}\n`;
}

/* Shows the conversation's settings; what it does not set is the model's own. */
function showSettings() {
  for (const name of SAMPLING) {
    const value = conversation.sampling[name] ?? defaults[name];
    $(name).value = value === undefined ? "" : String(value);
  }
  $("system").value = conversation.system;
  $("settings").open = Boolean(conversation.system);
}

/* A conversation, or a text that goes on where the model has no chat template. */
function showKind(converses) {
  $("text").placeholder = converses
    ? "Write a message; Enter sends, Shift+Enter breaks the line"
    : "Write the beginning of a text; Enter continues it, Shift+Enter breaks the line";
  $("send").textContent = converses ? "Send" : "Continue";
  $("note").hidden = converses;
  $("system").hidden = !converses;
}

/* Talks with a model from now on. One that is not loaded says only then whether it converses. */
function use(model) {
  const converses = model.chat ?? true;
  $("name").textContent = document.title = model.id;
  contextLength = model.context_length ?? Infinity;
  defaults = { temperature: 0, ...model.sampling };
  showKind(converses);
  if (converses !== conversation.converses) {
    conversation.running?.abort();
    keep(conversation);
    conversation = new Conversation({ converses });
  }
  if (!conversation.messages.length) {
    let question;
    [conversation, question] = remembered(converses);
    if (question) giveBack(question);
  }
  remember(conversation);
  showSettings();
  draw();
  toEnd();
}

async function writingModels() {
  const { data } = await (await ask("v1/models")).json();
  return data.filter(model => model.kind !== "embedding");
}

/* Begins with the model that is loaded; several models are a choice. */
async function begin() {
  const [models] = await Promise.all([writingModels(), readAll(heard)]);
  const first = models.find(model => model.status?.value === "loaded") || models[0];
  if (models.length > 1) {
    named = first.id;
    $("model").replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === named)));
    $("model").hidden = false;
    $("name").hidden = true;
  }
  use(first);
}

async function chosen() {
  return (await writingModels()).find(model => model.id === named);
}

async function chooseModel() {
  named = $("model").value;
  use(await chosen());
}

/* What a model says of itself once it is loaded. */
async function learn() {
  const model = await chosen();
  if (model.chat === false && conversation.converses) return use(model);
  contextLength = model.context_length ?? Infinity;
  defaults = { temperature: 0, ...model.sampling };
}

$("model").addEventListener("change", chooseModel);
begin().catch(() => {});
