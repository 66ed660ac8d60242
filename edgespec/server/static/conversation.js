/* A conversation, and its copy in this tab's storage, which a reload leaves. Knows no elements. */

const NAME = "edgespec conversation";

const isMessage = ({ role, content }) =>
  ["user", "assistant"].includes(role) && typeof content === "string";

export class Conversation {
  /* `kept` is what `keep` has kept. */
  constructor(kept = {}) {
    this.messages = kept.messages || [];  /* role, content, and an answer's reasoning */
    this.system = kept.system || "";
    this.temperature = kept.temperature ?? null;  /* null: the model's own */
    this.running = null;                  /* what aborts the request under way */
    this.growing = null;                  /* the answer so far */
  }

  /* The body of the request for an answer to the latest message. */
  request(converses, temperature, mostContinued) {
    const body = { stream: true, stream_options: { include_usage: true }, return_progress: true };
    if (temperature >= 0) body.temperature = temperature;
    if (converses) {
      body.messages = this.messages.map(({ role, content }) => ({ role, content }));
      if (this.system.trim()) body.messages.unshift({ role: "system", content: this.system });
    } else {
      body.prompt = this.messages.map(message => message.content).join("");
      body.max_tokens = mostContinued;
    }
    return JSON.stringify(body);
  }

  keep(converses) {
    const messages = [...this.messages];
    if (this.growing && this.growing.content) messages.push(this.growing);
    const { system, temperature } = this;
    try {
      sessionStorage.setItem(NAME, JSON.stringify({ converses, messages, system, temperature }));
    } catch {
      /* a storage that is full or forbidden: the conversation goes on without */
    }
  }

  /* What was kept in this tab, unless it was of another kind; a damaged copy is none. */
  static kept(converses) {
    try {
      const kept = JSON.parse(sessionStorage.getItem(NAME));
      if (kept.converses === converses && kept.messages.every(isMessage)) return new Conversation(kept);
    } catch {
      /* likewise */
    }
    return new Conversation();
  }
}
