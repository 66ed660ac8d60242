/* The list of conversations: open, rename, save as a file, delete. Knows no server. */

import { kept, restored, titleOf } from "./conversation.js";

const list = document.getElementById("conversations");

/* Draws the list. `acts` are functions of a conversation: open, rename, save, remove. */
export function drawLibrary(current, acts) {
  const all = kept(current.converses);
  if (!all.some(one => one.id === current.id)) all.unshift(current);
  list.replaceChildren(...all.map(one => item(one, current, acts)));
}

function item(copy, current, acts) {
  const row = document.createElement("li");
  const its = () => (copy.id === current.id ? current : restored(copy));
  const open = button(titleOf(copy.id === current.id ? current : copy), "open", () => acts.open(its()));
  if (copy.id === current.id) {
    row.className = "current";
    open.setAttribute("aria-current", "page");
  }
  row.append(
    open,
    button("✎", "rename", () => rename(row, its(), acts), "Rename"),
    button("⇩", "save", () => acts.save(its()), "Save as a file"),
    button("×", "remove", () => acts.remove(its()), "Delete"),
  );
  return row;
}

function rename(row, conversation, acts) {
  const input = document.createElement("input");
  input.value = conversation.title;
  input.setAttribute("aria-label", "Name");
  let isOver = false;
  const end = isWanted => {
    if (isOver) return;
    isOver = true;
    acts.rename(conversation, isWanted ? input.value.trim() : conversation.name);
  };
  input.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === "Escape") {
      event.stopPropagation();
      end(event.key === "Enter");
    }
  });
  input.addEventListener("blur", () => end(true));
  row.replaceChildren(input);
  input.select();
}

function button(text, name, act, label = "") {
  const made = document.createElement("button");
  made.type = "button";
  made.className = name;
  made.textContent = text;
  if (label) made.setAttribute("aria-label", label);
  made.title = label || text;
  made.addEventListener("click", act);
  return made;
}

/* Lets the browser save a text as a file. */
export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/markdown" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
