// Similar items, and the list of keys.
import { similar } from "./api.js";
import { $, BANDS, h, popularity } from "./dom.js";
import { itemList } from "./results.js";
import { item, remember } from "./state.js";

const NEIGHBOURS = 15;
const KEYS = [
  ["/", "search; ↑ ↓ and Enter choose, Backspace in an empty field takes the newest back"],
  ["↑ ↓", "walk through a list; ← → change lists"],
  ["Enter", "add the item to the history"],
  ["s", "items similar to the one in focus"],
  ["v", "one list, or one per interest"],
  ["c", "clear the history"],
  ["t", "light or dark"],
  ["?", "this list"],
];

export async function openSimilar(id, bundles, { add, fail }) {
  const dialog = $("similar");
  const choose = (chosen) => {
    add(chosen);
    dialog.close();
  };
  try {
    const slots = Object.keys(bundles);
    const answers = await Promise.all(slots.map((slot) => similar(id, NEIGHBOURS, slot).catch((error) => {
      if (error.status === 404) return null; // the other bundle may not hold it
      throw error;
    })));
    const again = (other) => openSimilar(other, bundles, { add, fail });
    const parts = answers.map((answer, which) => {
      const name = bundles[slots[which]].name;
      if (answer === null) return h("p", { class: "message" }, `${name} does not hold this item.`);
      remember(answer.items);
      const list = itemList(answer.items, `Similar items of ${name}`, { add: choose, openSimilar: again });
      const heading = slots.length > 1 ? h("div", { class: "top" }, h("h3", {}, name)) : null;
      return h("section", { class: "panel" }, heading, list);
    });
    $("similar-title").replaceChildren("Similar to ", item(id).title);
    $("similar-lists").replaceChildren(h("div", { class: parts.length > 1 ? "pair" : "" }, ...parts));
    dialog.classList.toggle("wide", parts.length > 1);
    if (!dialog.open) dialog.showModal();
  } catch (error) {
    fail(error);
  }
}

export function startDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // the backdrop
  }
  $("key-list").append(...KEYS.flatMap(([keys, text]) => [
    h("dt", {}, ...keys.split(" ").flatMap((key) => [h("kbd", {}, key), " "])),
    h("dd", {}, text),
  ]));
  $("marks-note").textContent = "How often an item was chosen in training:";
  $("marks").append(...Object.entries(BANDS).map(([band, [, text]]) =>
    h("li", {}, popularity({ popularity: band, count: 0 }), text)));
}

export const openKeys = () => $("keys").showModal();
