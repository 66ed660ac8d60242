/* Talks with the server that the page came from. Knows requests and events, and no elements. */

let key = "";

/* The response; asks for the API key where the server wants one. */
export async function ask(path, options = {}) {
  for (;;) {
    const headers = { "Content-Type": "application/json" };
    if (key) headers.Authorization = "Bearer " + key;
    const response = await fetch(path, { ...options, headers });
    if (response.status !== 401) return response;
    key = prompt("This server wants its API key:") || "";
    if (!key) return response;
  }
}

/* The contents of a response's events; comments, which keep the connection alive, are skipped. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n\n")) >= 0) {
      const event = held.slice(0, end);
      held = held.slice(end + 2);
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/* The error of a response that is no stream; a proxy's has no JSON. */
export async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}
