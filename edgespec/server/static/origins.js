/* Who had guessed the tokens of an answer: runs of text, each with its source. Knows no server. */

const SOURCES = {
  target: "the model itself",
  draft: "the draft model",
  lookup: "words seen before",
  recycled: "its own earlier odds",
  grammar: "forced by the format",
};
const kindOf = by => (by in SOURCES ? by : "draft");

/* Adds the tokens of a chunk to the runs of an answer. */
export function addOrigins(runs, origins) {
  for (const { text, by } of origins || []) {
    const last = runs.at(-1);
    if (last && last[0] === kindOf(by)) last[1] += text;
    else runs.push([kindOf(by), text]);
  }
}

/* The runs as elements, in colours of their sources. */
export const tinted = runs => runs.map(([by, text]) => {
  const span = document.createElement("span");
  span.className = `by ${by}`;
  span.title = SOURCES[by];
  span.textContent = text;
  return span;
});

/* An explanation of the colours, with the share of each source in `answers`, which are runs. */
export function legend(answers) {
  const counts = new Map();
  let all = 0;
  for (const [by, text] of answers.flat()) {
    counts.set(by, (counts.get(by) || 0) + text.length);
    all += text.length;
  }
  return Object.entries(SOURCES).filter(([by]) => counts.has(by)).flatMap(([by, name]) => {
    const span = document.createElement("span");
    span.className = `by ${by}`;
    span.textContent = `${name} ${Math.round(100 * counts.get(by) / all)} %`;
    return [span, " "];
  });
}
