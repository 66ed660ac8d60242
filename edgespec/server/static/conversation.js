/* Conversations, and their copies in the browser's storage. Knows no elements. */

const PREFIX = "edgespec conversation ";
const CURRENT = "edgespec current";   /* of this tab, so that a reload finds its conversation */
const TITLE_LENGTH = 40;
export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];

const isMessage = ({ role, content }) =>
  ["user", "assistant"].includes(role) && typeof content === "string";

export class Conversation {
  /* `kept` is what `keep` has kept. */
  constructor(kept = {}) {
    this.id = kept.id || `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;
    this.name = kept.name || "";          /* what a reader called it */
    this.changed = kept.changed || Date.now();
    this.messages = kept.messages || [];  /* role, content, an answer's reasoning, and who guessed it */
    this.system = kept.system || "";
    this.sampling = kept.sampling || {};  /* what a reader has set; the rest is the model's own */
    this.running = null;                  /* what aborts the request under way */
    this.growing = null;                  /* the answer so far */
  }

  get title() {
    const first = this.messages.find(message => message.role === "user")?.content.trim() || "New conversation";
    return this.name || (first.length > TITLE_LENGTH ? first.slice(0, TITLE_LENGTH) + "…" : first);
  }

  /* The body of the request for an answer to the latest message. */
  request(converses, temperature, mostContinued, model) {
    const body = { stream: true, stream_options: { include_usage: true }, return_progress: true,
      return_origins: true };
    Object.assign(body, this.sampling);
    if (model) body.model = model;
    if (temperature >= 0) body.temperature = temperature;
    if (converses) {
      body.messages = this.messages.map(({ role, content }) => ({ role, content }));
      if (this.system.trim()) body.messages.unshift({ role: "system", content: this.system });
    } else {
      body.prompt = this.messages.map(message => message.content).join("");
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

  /* Keeps a copy; a conversation without messages has none. */
  keep(converses) {
    const messages = [...this.messages];
    if (this.growing && this.growing.content) messages.push(this.growing);
    const { id, name, changed, system, sampling } = this;
    try {
      sessionStorage.setItem(CURRENT, id);
      const copy = JSON.stringify({ converses, id, name, changed, messages, system, sampling });
      if (messages.length || system) localStorage.setItem(PREFIX + id, copy);
    } catch {
      /* a storage that is full or forbidden: the conversation goes on without */
    }
  }

  forget() {
    try {
      localStorage.removeItem(PREFIX + this.id);
    } catch {
      /* likewise */
    }
  }
}

/* The conversations that were kept, the latest first; those of the other kind and damaged copies are
   not among them. */
export function kept(converses) {
  const found = [];
  try {
    for (let n = 0; n < localStorage.length; n++) {
      const key = localStorage.key(n);
      if (key.startsWith(PREFIX)) found.push(read(key, converses));
    }
  } catch {
    /* a storage that is forbidden */
  }
  return found.filter(Boolean).sort((one, other) => other.changed - one.changed);
}

/* The conversation that this tab had, else a new one. */
export function current(converses) {
  try {
    return read(PREFIX + sessionStorage.getItem(CURRENT), converses) || new Conversation();
  } catch {
    return new Conversation();
  }
}

function read(key, converses) {
  try {
    const copy = JSON.parse(localStorage.getItem(key));
    const isWhole = copy.converses === converses && copy.messages.every(isMessage);
    return isWhole ? new Conversation(copy) : null;
  } catch {
    return null;
  }
}
