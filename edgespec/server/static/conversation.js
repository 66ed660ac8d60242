/* Conversations, and their copies in the browser's database, which its tabs share: a tab adds what it has
   changed to what is there, and hears of what others keep. Knows no elements. */

const CURRENT = "edgespec current";   /* of this tab, so that a reload finds its conversation */
const STORE = "conversations";
const TITLE_LENGTH = 40;
const SOON_MS = 300;  /* between two copies of an answer that grows */
const FIELDS = ["name", "system", "sampling"];
export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];

const copies = new Map();  /* by id, as they were when they were read last */
const others = new BroadcastChannel("edgespec");
const database = new Promise((resolve, reject) => {
  const opening = indexedDB.open("edgespec");
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: "id" });
  opening.onsuccess = () => resolve(opening.result);
  opening.onerror = () => reject(opening.error);
});

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
const isMessage = ({ id, role, content }) =>
  typeof id === "string" && ["user", "assistant"].includes(role) && typeof content === "string";
const isWhole = copy => Array.isArray(copy?.messages) && copy.messages.every(isMessage);

/* The conversation that this tab has made `mine` of `before`, and others `theirs`: what either has
   changed, and every message that neither has removed. */
function merged(before, mine, theirs) {
  if (!isWhole(theirs)) return mine;
  const one = { ...theirs, changed: Math.max(mine.changed, theirs.changed) };
  for (const name of FIELDS) if (!same(mine[name], before[name])) one[name] = mine[name];
  const known = byId(before.messages), ours = byId(mine.messages), there = byId(theirs.messages);
  const isOurs = message => !same(message, known.get(message.id));
  one.messages = theirs.messages.filter(({ id }) => ours.has(id) || !known.has(id)).map(message => {
    const own = ours.get(message.id);
    return own && (isOurs(own) || same(own, message)) ? own : message;
  });
  one.messages.push(...mine.messages.filter(message => !there.has(message.id) && isOurs(message)));
  return one;
}

/* The title of a conversation, or of its copy. */
export function titleOf({ name, messages }) {
  const first = messages.find(message => message.role === "user")?.content.trim() || "New conversation";
  return name || (first.length > TITLE_LENGTH ? first.slice(0, TITLE_LENGTH) + "…" : first);
}

export class Conversation {
  /* `kept` is a copy; `given` are fields that no copy has yet. */
  constructor(kept = {}, given = {}) {
    this.id = kept.id || newId();
    this.converses = kept.converses ?? true;  /* false: a text that goes on */
    this.name = kept.name || "";          /* what a reader called it */
    this.changed = kept.changed || Date.now();
    this.messages = kept.messages || [];  /* id, role, content, an answer's reasoning, and who guessed it */
    this.system = kept.system || "";
    this.sampling = kept.sampling || {};  /* what a reader has set; the rest is the model's own */
    this.running = null;                  /* what aborts the request under way */
    this.before = structuredClone(this.copy);  /* as it was read or kept last */
    this.due = 0;
    Object.assign(this, given);
  }

  get copy() {
    const { id, converses, name, changed, messages, system, sampling } = this;
    return { id, converses, name, changed, messages, system, sampling };
  }

  get title() {
    return titleOf(this);
  }

  /* The body of the request for an answer to the last of some messages. */
  request(messages, temperature, mostContinued, model) {
    const body = { stream: true, stream_options: { include_usage: true }, return_progress: true,
      return_origins: true };
    Object.assign(body, this.sampling);
    if (model) body.model = model;
    if (temperature >= 0) body.temperature = temperature;
    if (this.converses) {
      body.messages = messages.map(({ role, content }) => ({ role, content }));
      if (this.system.trim()) body.messages.unshift({ role: "system", content: this.system });
    } else {
      body.prompt = messages.map(message => message.content).join("");
      body.max_tokens ??= mostContinued;
    }
    return JSON.stringify(body);
  }

  /* The conversation as Markdown, for a file. */
  get markdown() {
    const parts = [`# ${this.title}`];
    if (this.system.trim()) parts.push(`## System\n\n${this.system}`);
    for (const { role, content } of this.messages) {
      parts.push(`## ${role === "user" ? "You" : "Model"}\n\n${content}`);
    }
    return parts.join("\n\n") + "\n";
  }

  /* Keeps what this tab has changed, and takes in what others have; false if it cannot be kept. */
  async keep() {
    const { before } = this, mine = structuredClone(this.copy);
    const isEmpty = !mine.messages.length && !mine.system;
    if (same(mine, before) || isEmpty && !before.messages.length) return true;
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
    this.take(one, mine);
    copies.set(this.id, one);
    others.postMessage(this.id);
    return true;
  }

  keepSoon() {
    this.due ||= setTimeout(() => { this.due = 0; this.keep(); }, SOON_MS);
  }

  /* Takes in a copy, into which what this tab had `before` has gone. */
  take(copy, before = this.before) {
    Object.assign(this, merged(before, this.copy, copy));
    this.before = structuredClone(copy);
  }

  async forget() {
    copies.delete(this.id);
    try {
      await withStore("readwrite", store => store.delete(this.id));
      others.postMessage(this.id);
    } catch {
      /* there is no copy, either */
    }
  }
}

/* Reads all copies, and calls `onChange` with the copy that another tab has kept, or the id alone of one
   that it has deleted. */
export async function readAll(onChange) {
  try {
    for (const copy of await withStore("readonly", store => store.getAll())) {
      if (isWhole(copy)) copies.set(copy.id, copy);
    }
  } catch {
    return;  /* a database that is forbidden: conversations go on without */
  }
  others.onmessage = async ({ data: id }) => {
    const copy = await withStore("readonly", store => store.get(id));
    if (copy) copies.set(id, copy);
    else copies.delete(id);
    onChange(copy || { id });
  };
}

/* Copies of the conversations of one kind, the latest first. */
export const kept = converses => [...copies.values()].filter(copy => copy.converses === converses)
  .sort((one, other) => other.changed - one.changed);

export const restored = copy => new Conversation(structuredClone(copy));

/* Lets a reload of this tab find its conversation, and the question that has no answer yet. */
export function remember({ id }, question = "") {
  try {
    sessionStorage.setItem(CURRENT, JSON.stringify([id, question]));
  } catch {
    /* a storage that is forbidden */
  }
}

/* The conversation that this tab had, else a new one, and the question. */
export function remembered(converses) {
  try {
    const [id, question] = JSON.parse(sessionStorage.getItem(CURRENT));
    const copy = kept(converses).find(one => one.id === id);
    return [copy ? restored(copy) : new Conversation({ id, converses }), question];
  } catch {
    return [new Conversation({ converses }), ""];
  }
}
