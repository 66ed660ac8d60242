/* The panel of memory and speed: the budget as a bar, what is in it, and a slider that changes it. */

import { ask, errorOf } from "./api.js";

const EVERY_MS = 2000;
const $ = id => document.getElementById(id);
const MIB = 2 ** 20, GIB = 2 ** 30;
let timer = 0;
let isSliding = false;
let known = null;

export const size = bytes =>
  bytes >= GIB ? `${(bytes / GIB).toFixed(1)} GiB` : `${Math.round(bytes / MIB)} MiB`;

/* A speed in two digits, from 100 up in three. */
export const rate = value => value.toLocaleString("en",
  { minimumSignificantDigits: 2, maximumSignificantDigits: value < 100 ? 2 : 3 });

export function show(isShown) {
  $("engine").hidden = !isShown;
  $("toggle-engine").setAttribute("aria-expanded", String(isShown));
  clearInterval(timer);
  if (isShown) {
    refresh();
    timer = setInterval(refresh, EVERY_MS);
  }
}

async function refresh() {
  try {
    const response = await ask("v1/budget");
    if (response.ok) draw(await response.json());
  } catch {
    /* the server is gone, which the next question tells */
  }
}

let before = null;  /* the server's counters when the latest answer began */

async function counters() {
  const response = await ask("metrics");
  if (!response.ok) return null;
  const lines = (await response.text()).matchAll(/^edgespec_(\w+) (\S+)$/gm);
  return Object.fromEntries([...lines].map(([, name, value]) => [name, Number(value)]));
}

/* Notes the counters where the panel is shown; `answerEnds` tells what has been added to them. */
export async function answerBegins() {
  before = null;
  try {
    if (!$("engine").hidden) before = await counters();
  } catch {
    /* the answer will tell */
  }
}

export async function answerEnds() {
  try {
    const after = before && await counters();
    if (after) $("latest").textContent = summary(name => after[name] - before[name]);
  } catch {
    /* likewise */
  }
}

/* A sentence about an answer; each pass wrote one token and those that had been guessed right. */
function summary(of) {
  const tokens = of("generated_tokens_total"), guessed = of("accepted_tokens_total");
  if (!(tokens > 0)) return "";
  const parts = [
    `${rate(tokens / of("decode_seconds_total"))} tokens a second`,
    `${(tokens / Math.max(1, tokens - guessed)).toFixed(1)} a pass`,
    `${Math.round(100 * guessed / tokens)} % guessed`,
  ];
  if (of("read_bytes_total") > 0) {
    parts.push(`${size(of("read_bytes_total"))} read, ${of("stall_seconds_total").toFixed(1)} s waited for them`);
  }
  return `Latest answer: ${parts.join(", ")}.`;
}

/* What a machine without any paging would take, the most that a budget can bring, if it may be set. */
const most = report => Math.max(report.budget_bytes,
  Math.min(report.most_bytes, report.planned_bytes + report.streamed_bytes));

function draw(report) {
  known = report;
  const { budget_bytes: budget, planned_bytes: planned, pinned_bytes: pinned } = report;
  const parts = [
    ["pinned", "weights that stay", pinned],
    ["rest", "context, draft, buffers, program", planned - pinned],
    ["free", "not needed", Math.max(0, budget - planned)],
  ];
  $("bar").replaceChildren(...parts.map(([kind, label, bytes]) => {
    const block = document.createElement("span");
    block.className = kind;
    block.style.flexGrow = String(bytes);
    block.title = `${label}: ${size(bytes)}`;
    return block;
  }), mark(report.resident_bytes / budget));
  $("bar").setAttribute("aria-label", `Memory budget of ${size(budget)}: `
    + parts.map(([, label, bytes]) => `${size(bytes)} ${label}`).join(", ")
    + `; ${size(report.resident_bytes)} in memory now`);
  $("legend").replaceChildren(...parts.flatMap(([kind, label, bytes]) => row(kind, label, size(bytes))),
    ...row("now", "in memory now", size(report.resident_bytes)),
    ...row("read", "read by each pass", size(report.streamed_bytes)));
  $("budget").disabled = report.follows;
  if (!isSliding) {
    const share = (budget - report.smallest_bytes) / (most(report) - report.smallest_bytes || 1);
    $("budget").value = String(Math.round(1000 * share));
    $("budget-size").textContent = size(budget);
  }
}

function mark(share) {
  const line = document.createElement("i");
  line.style.insetInlineStart = `${Math.min(100, 100 * share)}%`;
  return line;
}

function row(kind, label, text) {
  const term = document.createElement("dt"), value = document.createElement("dd");
  term.className = kind;
  term.textContent = label;
  value.textContent = text;
  return [term, value];
}

const wanted = () => Math.round(
  known.smallest_bytes + $("budget").value / 1000 * (most(known) - known.smallest_bytes));

$("budget").addEventListener("input", () => {
  isSliding = true;
  if (known) $("budget-size").textContent = size(wanted());
});
$("budget").addEventListener("change", async () => {
  if (!known) return;
  $("engine-note").textContent = "changing the budget";
  try {
    const body = JSON.stringify({ memory_budget: wanted() });
    const response = await ask("v1/budget", { method: "POST", body });
    $("engine-note").textContent = response.ok ? "" : await errorOf(response);
  } catch (error) {
    $("engine-note").textContent = error.message;
  }
  isSliding = false;
  refresh();
});
