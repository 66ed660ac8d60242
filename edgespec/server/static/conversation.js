/* Conversations, and their copies in the browser's database, which its tabs share: a tab adds what it has
   changed to what is there, and hears of what others keep. Messages are a tree, whose branches are versions of
   a question or an answer; none is ever removed. Knows no elements. */

const CURRENT = "edgespec current";   /* of this tab, so that a reload finds its conversation */
const STORE = "conversations";
const TITLE_LENGTH = 40;
const SOON_MS = 300;  /* between two copies of an answer that grows */
const FIELDS = ["name", "system", "sampling", "head"];
export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];

const copies = new Map();  /* by id, as they were when they were read last */
const others = new BroadcastChannel("edgespec");
const database = new Promise((resolve, reject) => {
  const opening = indexedDB.open("edgespec");
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: "id" });
  opening.onsuccess = () => resolve(opening.result);
  opening.onerror = () => reject(opening.error);
});
database.catch(() => {});  /* whoever keeps something is told */

/* What a storage that may be forbidden gives. */
export const attempt = act => { try { return act(); } catch { return null; } };

/* Does something with the store; what it gives is there when all of it is kept. */
async function withStore(mode, act) {
  const transaction = (await database).transaction(STORE, mode);
  return new Promise((resolve, reject) => {
    const request = act(transaction.objectStore(STORE));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

export const newId = () => `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const byId = messages => new Map(messages.map(message => [message.id, message]));
const isMessage = ({ id, role, content, origins = [] }) => typeof id === "string" && typeof content === "string"
  && ["user", "assistant"].includes(role) && Array.isArray(origins) && origins.every(run => typeof run?.[1] === "string");
const isWhole = copy => [copy?.id, copy?.name ?? "", copy?.system ?? ""].every(text => typeof text === "string")
  && Array.isArray(copy.messages) && copy.messages.every(one => one && isMessage(one));

/* Messages with their parents, which copies of a time without branches do not name. */
const threaded = messages => messages.map((one, place) =>
  ("parent" in one ? one : { ...one, parent: messages[place - 1]?.id ?? null }));

/* The conversation that this tab has made `mine` of `before`, and others `theirs`: all messages of both, and
   what either has changed. */
function merged(before, mine, theirs) {
  if (!isWhole(theirs)) return mine;
  const one = { ...mine, ...theirs, changed: Math.max(mine.changed, theirs.changed) };
  for (const name of FIELDS) if (!same(mine[name], before[name])) one[name] = mine[name];
  const known = byId(before.messages), all = byId([...theirs.messages, ...mine.messages]);
  for (const message of threaded(theirs.messages)) {
    if (same(all.get(message.id), known.get(message.id))) all.set(message.id, message);
  }
  one.messages = [...all.values()];
  return one;
}

/* The title of a conversation, or of its copy. */
export function titleOf({ name, messages }) {
  const first = messages.find(message => message.role === "user")?.content.trim() || "New conversation";
  return name || (first.length > TITLE_LENGTH ? first.slice(0, TITLE_LENGTH) + "…" : first);
}

export class Conversation {
  constructor(kept = {}) {
    this.id = kept.id || newId();
    this.converses = kept.converses ?? true;  /* false: a text that goes on */
    this.name = kept.name || "";          /* what a reader called it */
    this.changed = kept.changed || Date.now();
    /* id, parent, role, content; of answers also reasoning, origins, and whether they were cut */
    this.messages = threaded(kept.messages || []);
    this.head = kept.head ?? this.messages.at(-1)?.id ?? null;  /* the newest message of the branch that is shown */
    this.system = kept.system || "";
    this.sampling = kept.sampling || {};  /* what a reader has set; the rest is the model's own */
    this.growing = null;                  /* the answer under way: its message, and what aborts it */
    this.state = this.failure = "";       /* what the latest answer came to, for the reader */
    this.before = structuredClone(this.copy);  /* as it was read or kept last */
    this.due = 0;
  }

  get copy() {
    return Object.fromEntries(["id", "converses", "changed", "messages", ...FIELDS].map(name => [name, this[name]]));
  }

  /* Messages from the first one to the newest one of the branch that is shown. */
  get path() {
    const all = byId(this.messages), found = new Set();
    for (let one = all.get(this.head); one && !found.has(one); one = all.get(one.parent)) found.add(one);
    return [...found].reverse();
  }

  add(message) {
    Object.assign(this, { messages: [...this.messages, message], head: message.id, changed: Date.now() });
  }

  /* The versions of a message, itself among them. */
  versions({ parent, role }) {
    return this.messages.filter(one => one.parent === parent && one.role === role);
  }

  /* Shows the branch of a message to its newest end. */
  choose(message) {
    let next = message;  /* a file may hold circles */
    for (let n = this.messages.length; next && n > 0; n -= 1) {
      this.head = next.id;
      next = this.messages.findLast(({ parent }) => parent === this.head);
    }
  }

  /* The body of the request for what follows some messages. */
  request(messages, mostContinued, model) {
    const body = { stream: true, stream_options: { include_usage: true }, return_progress: true, return_origins: true };
    Object.assign(body, this.sampling, model && { model });
    if (this.converses) {
      body.messages = messages.map(({ role, content }) => ({ role, content }));
      if (this.system.trim()) body.messages.unshift({ role: "system", content: this.system });
    } else {
      body.prompt = messages.map(message => message.content).join("");
      body.max_tokens ??= mostContinued;
    }
    return JSON.stringify(body);
  }

  /* The branch that is shown as Markdown, for a file. */
  get markdown() {
    const parts = [`# ${titleOf(this)}`];
    if (this.system.trim()) parts.push(`## System\n\n${this.system}`);
    for (const { role, content } of this.path) parts.push(`## ${role === "user" ? "You" : "Model"}\n\n${content}`);
    return parts.join("\n\n") + "\n";
  }

  /* Keeps what this tab has changed, and takes in what others have; false if it cannot be kept. */
  async keep() {
    const { before } = this, mine = structuredClone(this.copy);
    const isEmpty = !mine.messages.length && !mine.system;
    if (this.isForgotten || same(mine, before) || isEmpty && !before.messages.length) return true;
    let one = mine;
    try {
      await withStore("readwrite", store => {
        const found = store.get(this.id);
        found.onsuccess = () => store.put(one = merged(before, mine, found.result));
        return found;
      });
    } catch {
      return false;
    }
    if (this.isForgotten) return true;  /* it was deleted meanwhile */
    this.take(one, mine);
    copies.set(this.id, one);
    others.postMessage(this.id);
    return true;
  }

  keepSoon() {
    this.due ||= setTimeout(() => { this.due = 0; this.keep(); }, SOON_MS);
  }

  /* Takes in a copy, into which what this tab had `before` has gone. The answer under way stays this tab's. */
  take(copy, before = this.before) {
    const own = byId(this.messages), growing = this.growing?.message.id;
    Object.assign(this, merged(before, this.copy, copy));
    this.messages = this.messages.map(one =>
      (one.id === growing || same(own.get(one.id), one) ? own.get(one.id) || one : one));
    this.before = structuredClone(copy);
  }

  async forget() {
    this.isForgotten = true;  /* what is under way keeps it no more */
    this.growing?.controller.abort();
    copies.delete(this.id);
    await withStore("readwrite", store => store.delete(this.id)).catch(() => {});  /* there is no copy, either */
    others.postMessage(this.id);
  }
}

/* Reads all copies, and calls `onChange` with one that another tab has kept, or the id alone if it was deleted. */
export async function readAll(onChange) {
  const all = await withStore("readonly", store => store.getAll()).catch(() => []);  /* they go on without a database */
  for (const copy of all) if (isWhole(copy)) copies.set(copy.id, copy);
  others.onmessage = async ({ data: id }) => {
    const copy = await withStore("readonly", store => store.get(id));
    if (copy) copies.set(id, copy);
    else copies.delete(id);
    onChange(copy || { id });
  };
}

/* Copies of the conversations of one kind in which a text occurs, the latest first. */
export const kept = (converses, wanted = "") => [...copies.values()]
  .filter(copy => copy.converses === converses && (!wanted || [copy.name, copy.system, ...copy.messages
    .map(one => one.content)].some(text => text?.toLowerCase().includes(wanted.toLowerCase()))))
  .sort((one, other) => other.changed - one.changed);

export const restored = copy => new Conversation(structuredClone(copy));

/* All conversations as text for a file, which `takeIn` reads. */
export const exported = () => JSON.stringify({ edgespec: 1, conversations: [...copies.values()] }, null, 1);

/* Keeps the conversations of a file beside what is there already. Throws an Error. */
export async function takeIn(text) {
  const found = attempt(() => JSON.parse(text).conversations.filter(isWhole));
  if (!found) throw new Error("This file holds no conversations: choose one that Export has saved.");
  for (const copy of found) {
    const one = restored(copy);
    one.before = { ...new Conversation({ id: one.id }).copy, messages: one.copy.messages };  /* what is there stays */
    if (!await one.keep()) throw new Error("The browser's storage is full or forbidden: delete some conversations.");
  }
}

/* Lets a reload of this tab find its conversation. */
export const remember = ({ id }) => attempt(() => sessionStorage.setItem(CURRENT, id));

/* The conversation that this tab had, else a new one. */
export function remembered(converses) {
  const id = attempt(() => sessionStorage.getItem(CURRENT)), copy = kept(converses).find(one => one.id === id);
  return copy ? restored(copy) : new Conversation({ converses });
}
