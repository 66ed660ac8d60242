/* The page to chat: conversations with the server that it came from. */

import { ask, errorOf, events } from "./api.js";
import { Conversation, SAMPLING, current } from "./conversation.js";
import * as engine from "./engine.js";
import { download, drawLibrary } from "./library.js";
import { addOrigins, legend } from "./origins.js";
import { Shown, clear, copy, showError, toEnd } from "./view.js";

const MOST_ATTACHED = 256 * 1024;  /* bytes of a file that becomes text of a message */
const MOST_CONTINUED = 256;  /* tokens; a text has no end of its own, and goes on when asked */
const $ = id => document.getElementById(id);
const number = value => value.toLocaleString("en");
let conversation = new Conversation();
let converses = true;  /* false for a model without a chat template, which continues text */
let named = "";        /* the model that requests name, where there are several */
let edited = null;     /* the place of the message that is being edited */
let contextLength = Infinity;
let defaults = { temperature: 0 };  /* the model's own sampling */

let showing = null;    /* the answer that grows, on the page */

/* Draws the whole conversation; only its latest answer can be written again. */
function draw() {
  clear();
  const { messages } = conversation;
  messages.forEach((message, place) => {
    const actions = { Copy: button => copy(message.content, button) };
    if (message.role === "user") actions.Edit = () => edit(place);
    else if (place === messages.length - 1) actions.Regenerate = regenerate;
    new Shown(message, converses).offer(actions);
  });
  drawLegend();
  keep();
}

function drawLegend() {
  const runs = [...conversation.messages, conversation.growing].map(message => message?.origins || []);
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

/* Keeps the conversation, and shows it in the list. */
function keep() {
  conversation.keep(converses);
  drawLibrary(conversation, converses, { open, rename, save, remove });
}

/* Shows another conversation; an answer under way ends. */
function open(other) {
  const { running } = conversation;
  if (other !== conversation) {
    conversation.keep(converses);
    conversation = other;
    if (running) running.abort();
  }
  endEditing();
  $("state").textContent = "";
  setRunning(false);
  showSettings();
  draw();
  toEnd();
  document.body.classList.remove("listing");
  $("text").focus();
}

function rename(one, name) {
  one.name = name;
  one.keep(converses);
  keep();
}

function save(one) {
  download(`${one.title.replace(/[^\p{L}\p{N} _-]/gu, "").trim() || "conversation"}.md`, one.markdown);
}

function remove(one) {
  if (one.messages.length && !confirm(`Delete “${one.title}”?`)) return;
  one.forget();
  if (one === conversation) {
    one.messages = [];
    one.system = "";
    open(new Conversation());
  } else keep();
}

/* Asks a question behind `earlier` messages, in place of those that were there. They come back if
   there is no answer. `mine` is the conversation; another may have taken its place since. */
async function converse(question, earlier, isRepeated = false) {
  const mine = conversation;
  const isCurrent = () => mine === conversation;
  const before = mine.messages;
  const answer = { role: "assistant", content: "", reasoning: "", origins: [] };
  mine.messages = [...earlier, { role: "user", content: question }];
  mine.running = new AbortController();
  mine.growing = answer;
  mine.changed = Date.now();
  draw();
  toEnd();
  const shown = showing = new Shown(answer, converses, true);
  const meter = new Meter();
  let isCut = false, failure = "";
  setRunning(true);
  await engine.answerBegins();
  try {
    const body = mine.request(converses, $("temperature").valueAsNumber, MOST_CONTINUED, named);
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
        answer.content += delta.content || "";
        answer.reasoning += delta.reasoning_content || "";
        addOrigins(answer.origins, choice.origins);
        if (delta.content || delta.reasoning_content) {
          meter.writes();
          shown.grow();
        }
        if (converses && choice.finish_reason === "length") isCut = true;
      }
    }
    if (!answer.content) failure = "The model answered nothing.";
  } catch (error) {
    if (error.name !== "AbortError") failure = error.message;
  }
  mine.running = mine.growing = null;
  if (answer.content) mine.messages = [...mine.messages, answer];
  else mine.messages = before;
  if (!isCurrent()) {  /* what there was of the answer stays in its conversation */
    if (mine.messages.length) mine.keep(converses);
    return keep();
  }
  setRunning(false);
  draw();
  if (failure) showError(failure);
  if (isCut && answer.content) {
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
    return `, ${((nWritten - 1) / seconds).toPrecision(2)} tokens a second`;
  }
}

/* Opens or closes the list on a narrow window, with the focus in what is seen. */
function list(isOpen) {
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
  const text = converses ? $("text").value.trim() : $("text").value;
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
  if (document.body.classList.contains("listing")) list(false);
  else if (conversation.running) stop();
  else endEditing();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", () => {
  const { system, sampling } = conversation;
  open(new Conversation({ system, sampling: { ...sampling } }));
});
$("open-library").addEventListener("click", () => list(true));
$("close-library").addEventListener("click", () => list(false));
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
  conversation.keep(converses);
});
for (const name of SAMPLING) {
  $(name).addEventListener("input", () => {
    const value = $(name).valueAsNumber;
    if (value >= 0) conversation.sampling[name] = value;
    else delete conversation.sampling[name];
    conversation.keep(converses);
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

addEventListener("pagehide", () => conversation.keep(converses));

/* A conversation, or a text that goes on where the model has no chat template. */
function setConverses(does) {
  converses = does;
  $("text").placeholder = does
    ? "Write a message; Enter sends, Shift+Enter breaks the line"
    : "Write the beginning of a text; Enter continues it, Shift+Enter breaks the line";
  $("send").textContent = does ? "Send" : "Continue";
  $("note").hidden = does;
  $("system").hidden = !does;
}

/* Talks with a model from now on. One that is not loaded says only then whether it converses. */
function use(model) {
  const did = converses;
  $("name").textContent = document.title = model.id;
  contextLength = model.context_length ?? Infinity;
  defaults = { temperature: 0, ...model.sampling };
  setConverses(model.chat ?? true);
  if (did !== converses) {
    conversation.running?.abort();
    conversation.keep(did);
    conversation = new Conversation();
  }
  if (!conversation.messages.length) conversation = current(converses);
  if (conversation.messages.at(-1)?.role === "user") giveBack(conversation.messages.pop().content);
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
  const models = await writingModels();
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
  if (model.chat === false && converses) return use(model);
  contextLength = model.context_length ?? Infinity;
  defaults = { temperature: 0, ...model.sampling };
}

$("model").addEventListener("change", chooseModel);
begin().catch(() => {});
