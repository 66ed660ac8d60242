/* The list of conversations: find, open, rename, save as a file, delete. Knows no server. */

import { kept, restored, titleOf } from "./conversation.js";
import { element } from "./origins.js";
import { iconButton } from "./view.js";

const list = document.getElementById("conversations"), search = document.getElementById("search");

/* Draws the list. `alive` has conversations of this tab by id, `acts` functions of one: open, rename, save, remove. */
export function drawLibrary(current, alive, acts) {
  if (list.querySelector("input")) return;  /* a name is being typed */
  const wanted = search.value.trim(), all = kept(current.converses, wanted);
  if (!wanted && !all.some(one => one.id === current.id)) all.unshift(current);
  const focused = document.activeElement.closest?.("#conversations li")?.dataset.id;
  list.replaceChildren(...all.map(one => item(one, current, alive, acts)));
  document.getElementById("none").hidden = all.length > 0;
  if (focused) list.querySelector(`[data-id="${CSS.escape(focused)}"] button`)?.focus();
}

function item(copy, current, alive, acts) {
  const row = document.createElement("li"), mine = alive.get(copy.id);
  const its = () => mine || restored(copy);
  const open = element("button", "open", titleOf(mine || copy));
  open.title = open.textContent;
  open.addEventListener("click", () => acts.open(its()));
  row.dataset.id = copy.id;
  row.classList.toggle("busy", Boolean(mine?.growing));
  if (copy.id === current.id) {
    row.classList.add("current");
    open.setAttribute("aria-current", "page");
  }
  row.append(
    open,
    iconButton("Rename", "pencil", () => rename(row, its(), acts)),
    iconButton("Save as a file", "download", () => acts.save(its())),
    iconButton("Delete", "trash-2", () => acts.remove(its())),
  );
  return row;
}

function rename(row, conversation, acts) {
  const input = element("input", ""), before = titleOf(conversation);
  input.value = before;
  input.setAttribute("aria-label", "Name");
  input.addEventListener("keydown", event => {
    if (event.key === "Escape") input.value = before;
    if (!["Enter", "Escape"].includes(event.key)) return;
    event.stopPropagation();
    input.blur();
  });
  input.addEventListener("blur", () => {
    const name = input.value.trim();
    row.replaceChildren();
    acts.rename(conversation, name === before ? conversation.name : name);
  }, { once: true });
  row.replaceChildren(input);
  input.select();
}

/* Lets the browser save a text as a file. */
export function download(name, text, type = "text/markdown") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
