/* Under the hood: the passes of an answer as columns, its speed, and the memory budget as a bar with a slider. Asks
   the server only while a reader looks. */

import { ask, errorOf } from "./api.js";
import { element, legend, passesOf, told } from "./origins.js";

const EVERY_MS = 2000;
const MOST_PASSES = 400;  /* columns that are shown */
const CHART_PX = 96, LEAST_TOKENS = 4;  /* the chart's height, and the fewest tokens that fill it */
const MIB = 2 ** 20, GIB = 2 ** 30;
const $ = id => document.getElementById(id);
let timer = 0, isSliding = false;
let report = null;        /* the server's, of its memory */
let watched = null;       /* the answer whose passes are shown */
let nDrawn = 0, chosen = -1;  /* passes that are shown, and that whose words are */
let before = null, now = null;  /* the server's counters when the answer began, and the latest ones */

export const size = bytes => bytes >= GIB ? `${(bytes / GIB).toFixed(1)} GiB` : `${Math.round(bytes / MIB)} MiB`;

/* A speed in two digits, from 100 up in three. */
export const rate = value => value.toLocaleString("en",
  { minimumSignificantDigits: 2, maximumSignificantDigits: value < 100 ? 2 : 3 });

const isOpen = () => !$("engine").hidden;

/* The server's report of its memory; null where it has none, as of several models that share it. */
async function memory() {
  const response = await ask("v1/budget");
  return response.ok ? response.json() : null;
}

/* A sentence about weights and the budget. */
export async function fit(weights) {
  const told = await memory().catch(() => null), named = weights ? size(weights) : "The model";
  if (!told) return weights ? `${named} of weights.` : "";
  const { budget_bytes: budget, pinned_bytes: pinned, streamed_bytes: streamed } = told;
  return streamed
    ? `${named} in ${size(budget)} of memory: ${Math.round(100 * pinned / (pinned + streamed))} % stays, the rest streams.`
    : `${named} in a budget of ${size(budget)}: all of it stays in memory.`;
}

async function counters() {
  const lines = (await (await ask("metrics")).text()).matchAll(/^edgespec_(\w+) (\S+)$/gm);
  return Object.fromEntries([...lines].map(([, name, value]) => [name, Number(value)]));
}

async function refresh() {
  [report, now] = await Promise.all([memory(), counters()]).catch(() => [report, now]);  /* it may be gone */
  if (report) drawMemory();
  if (report && before) watched.gain = report.gain;  /* that of the answer which has been watched from its beginning */
  drawFigures();
}

export function show(isShown) {
  $("engine").hidden = !isShown;
  $("toggle-engine").setAttribute("aria-expanded", String(isShown));
  clearInterval(timer);
  if (!isShown) return;
  timer = setInterval(refresh, EVERY_MS);
  watch(watched);
  refresh();
}

/* Shows the passes of an answer, which may grow. */
export function watch(answer) {
  if (answer !== watched) before = null;
  [watched, nDrawn, chosen] = [answer, 0, -1];
  $("pass").textContent = "";
  drawAnswer();
}

/* Notes the counters where a reader looks, before an answer begins. */
export async function answerBegins() {
  if (isOpen()) before = await counters().catch(() => null);
}

export const answerGrows = () => isOpen() && requestAnimationFrame(drawAnswer);
export const answerEnds = () => isOpen() && refresh();

function drawAnswer() {
  if (!isOpen()) return;
  const passes = passesOf(watched?.origins || []).slice(-MOST_PASSES), chart = $("passes");
  const heights = passes.map(pass => pass.reduce((sum, run) => sum + run[3], 0));
  chart.style.fontSize = `${CHART_PX / Math.max(LEAST_TOKENS, ...heights)}px`;
  if (!nDrawn || passes.length < nDrawn || passes.length === MOST_PASSES) chart.replaceChildren();
  chart.children[nDrawn - 1]?.remove();  /* the latest one may have grown */
  const isAtEnd = chart.scrollWidth - chart.scrollLeft - chart.clientWidth < 20;
  for (const pass of passes.slice(chart.children.length)) chart.append(column(pass));
  if (isAtEnd) chart.scrollLeft = chart.scrollWidth;
  nDrawn = passes.length;
  chart.setAttribute("aria-label", `${passes.length} passes of the latest answer; arrow keys tell their words`);
  $("sources").replaceChildren(...legend(watched?.origins || []));
  if (!watched?.origins?.length) $("sources").textContent = "The next answer shows its passes.";
  drawFigures();
}

function column(pass) {
  const one = element("div", "column");
  for (const [by, , , n] of pass) {
    const block = element("i", `by ${by}`);
    block.style.height = `${n}em`;
    one.prepend(block);
  }
  one.dataset.words = told(pass);
  return one;
}

function choose(place) {
  const columns = $("passes").children;
  columns[chosen]?.classList.remove("chosen");
  chosen = Math.max(0, Math.min(place, columns.length - 1));
  columns[chosen]?.classList.add("chosen");
  $("pass").textContent = columns[chosen] ? `Pass ${chosen + 1}, ${columns[chosen].dataset.words}` : "";
}

$("passes").addEventListener("pointermove", ({ target }) => {
  const one = target.closest(".column");
  if (one) choose([...$("passes").children].indexOf(one));
});
$("passes").addEventListener("keydown", event => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  choose(chosen < 0 ? Infinity : chosen + step);
});

/* What the answer cost and brought. */
function drawFigures() {
  const passes = passesOf(watched?.origins || []), runs = passes.flat();
  const count = some => some.reduce((sum, run) => sum + run[3], 0);
  const all = count(runs), right = count(runs.filter(([by]) => by !== "target")), rows = [];
  if (watched?.speed) rows.push(["tokens a second", rate(watched.speed), "big"]);
  if (watched?.gain) rows.push(["without guesses", rate(watched.speed / watched.gain), "big"]);
  if (all) rows.push(["tokens a pass", (all / passes.length).toFixed(1)], ["guessed right", `${Math.round(100 * right / all)} %`]);
  const nRead = before && now ? now.read_bytes_total - before.read_bytes_total : 0;
  const waited = nRead > 0 ? now.stall_seconds_total - before.stall_seconds_total : 0;
  if (nRead > 0) rows.push(["read for it", size(nRead)], ["waited for that", `${waited.toFixed(1)} s`]);
  $("figures").replaceChildren(...rows.flatMap(row));
}

function row([label, text, kind = ""]) {
  return [element("dt", kind, label), element("dd", kind, text)];
}

/* What a machine without any paging would take, the most that a budget can bring. */
const whole = () => Math.max(report.budget_bytes, report.planned_bytes + report.streamed_bytes);

function drawMemory() {
  const { budget_bytes: budget, planned_bytes: planned, pinned_bytes: pinned, streamed_bytes, cache_bytes } = report;
  const parts = [
    ["weights that stay", pinned, "pinned"],
    ["context", cache_bytes, "cache"],
    ["program, draft, buffers", Math.max(0, planned - pinned - cache_bytes), "rest"],
    ["not needed", Math.max(0, budget - planned), "free"],
    ["weights read in each pass", streamed_bytes, "streamed"],
  ].filter(([, bytes]) => bytes > 0);
  $("parts").replaceChildren(...parts.map(([, bytes, kind]) => {
    const block = element("span", kind);
    block.style.width = `${100 * bytes / whole()}%`;
    return block;
  }));
  $("legend").replaceChildren(...[...parts, ["in memory now", report.resident_bytes, ""]]
    .flatMap(([label, bytes, kind]) => row([label, size(bytes), kind])));
  $("budget").disabled = report.follows;
  if (!isSliding) {
    $("budget").value = String(Math.round(1000 * budget / whole()));
    tellBudget(budget);
  }
}

function tellBudget(bytes) {
  $("budget-size").textContent = `Budget: ${size(bytes)}${report.follows ? ", with the free memory" : ""}`;
  $("budget").setAttribute("aria-valuetext", size(bytes));
}

/* The budget at the slider's place, if it may be set. */
const wanted = () => Math.round(Math.max(report.smallest_bytes,
  Math.min($("budget").value / 1000 * whole(), Math.max(report.most_bytes, report.budget_bytes))));

$("budget").addEventListener("input", () => {
  isSliding = Boolean(report);
  if (isSliding) tellBudget(wanted());
});
$("budget").addEventListener("change", async () => {
  if (!report) return;
  $("engine-note").textContent = "changing the budget";
  try {
    const response = await ask("v1/budget", { method: "POST", body: JSON.stringify({ memory_budget: wanted() }) });
    $("engine-note").textContent = response.ok ? "" : await errorOf(response);
  } catch (error) {
    $("engine-note").textContent = error.message;
  }
  isSliding = false;
  refresh();
});
