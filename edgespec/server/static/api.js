/* Talks with the server that the page came from. Knows requests and events, and no elements. */

let key = "";

/* The response; asks for the API key where the server wants one. With `onWait` it waits while the server's model is
   loaded, whose words about that it is told. */
export async function ask(path, options = {}, onWait = null) {
  for (;;) {
    const headers = { "Content-Type": "application/json" };
    if (key) headers.Authorization = "Bearer " + String.fromCharCode(...new TextEncoder().encode(key));  /* UTF-8 */
    const response = await fetch(path, { ...options, headers }).catch(error => {
      throw error instanceof TypeError ? new Error("The server does not answer. Is it still running?") : error;
    });
    if (response.status === 503 && onWait) {
      const { error } = await response.clone().json().catch(() => ({}));
      if (error?.code !== "loading") return response;
      onWait(error.message);
      await new Promise(resolve => setTimeout(resolve, 1000));
      options.signal?.throwIfAborted();
    } else if (response.status === 401) {
      key = prompt("This server wants its API key:") || "";
      if (!key) return response;
    } else {
      return response;
    }
  }
}

/* The contents of a response's events, and its comments, which tell how far a model is loaded. A connection that
   breaks ends them as one that was closed does. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch(error => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n\n")) >= 0) {
      const event = held.slice(0, end);
      held = held.slice(end + 2);
      if (event.startsWith(": ")) yield { comment: event.slice(2) };
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/* The error of a response that is no stream; a proxy's has no JSON. */
export const errorOf = response => response.json().then(({ error }) => error.message)
  .catch(() => `The server answered with status ${response.status}.`);
