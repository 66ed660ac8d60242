/* Who had guessed the tokens of an answer: runs of text with source, pass and number of tokens. Knows no server. */

const SOURCES = {
  target: "the model itself",
  draft: "the draft model",
  lookup: "words seen before",
  recycled: "its own earlier odds",
  grammar: "forced by the format",
};
const kindOf = by => (by in SOURCES ? by : "draft");

export function element(kind, className, text = "") {
  const made = Object.assign(document.createElement(kind), { className, textContent: text });
  if (kind === "button") made.type = "button";
  return made;
}

/* Adds the tokens of a chunk to the runs of an answer. */
export function addOrigins(runs, origins) {
  for (const { text, by, pass } of origins || []) {
    const last = runs.at(-1);
    if (last && last[0] === kindOf(by) && last[2] === pass) {
      last[1] += text;
      last[3] += 1;
    } else {
      runs.push([kindOf(by), text, pass, 1]);
    }
  }
}

/* The runs as elements, in colours of their sources. */
export const tinted = runs => runs.map(([by, text]) =>
  Object.assign(element("span", `by ${by}`, text), { title: SOURCES[by] }));

/* An explanation of the colours, with the share of each source in some runs. */
export function legend(runs) {
  const counts = new Map();
  let all = 0;
  for (const [by, { length }] of runs) {
    counts.set(by, (counts.get(by) || 0) + length);
    all += length;
  }
  return Object.entries(SOURCES).filter(([by]) => counts.has(by)).flatMap(([by, name]) =>
    [element("span", `by ${by}`, `${name} ${Math.round(100 * counts.get(by) / all)} %`), " "]);
}

/* The runs of each pass. */
export function passesOf(runs) {
  const passes = [];
  let latest;
  for (const run of runs) {
    if (run[2] === undefined) continue;
    if (run[2] !== latest) passes.push([]);
    latest = run[2];
    passes.at(-1).push(run);
  }
  return passes;
}

/* What came out of a pass, in words. */
export function told(pass) {
  const n = pass.reduce((sum, run) => sum + run[3], 0);
  const words = pass.map(([, text]) => text).join("").replace(/\s+/g, " ");
  const by = [...new Set(pass.map(([source]) => SOURCES[source]))].join(", ");
  return `${n} ${n === 1 ? "token" : "tokens"}: “${words}” (${by})`;
}
