// The history: newest first, as it grows under the search field.
import { $, h, popularity, title } from "./dom.js";
import { item, state } from "./state.js";

export function showHistory({ drop, openSimilar, unread }) {
  const rows = state.history.toReversed().map((id) => {
    const entry = item(id);
    const light = (on) => () => {
      for (const row of document.querySelectorAll("#lists [data-because]"))
        row.classList.toggle("lit", on && row.dataset.because === id);
    };
    return h(
      "li",
      {
        "data-id": id, class: unread.has(id) ? "unread" : "",
        title: unread.has(id) ? "no item of this bundle" : undefined,
        onpointerenter: light(true), onpointerleave: light(false), onfocusin: light(true), onfocusout: light(false),
      },
      title(entry),
      popularity(entry),
      h("button", { type: "button", class: "quiet", "aria-label": `Similar to ${entry.title}`, title: "Similar items", onclick: () => openSimilar(id) }, "≈"),
      h("button", { type: "button", class: "quiet drop", "aria-label": `Remove ${entry.title}`, title: "Remove", onclick: () => drop(id) }, "✕"),
    );
  });
  $("history").replaceChildren(...rows);
  $("history-empty").hidden = rows.length > 0;
  $("clear").hidden = rows.length === 0;
  $("history-note").textContent = rows.length > 1 ? `${rows.length} items, newest first` : "";
}

export function lightHistory(id) {
  for (const row of $("history").children) row.classList.toggle("lit", row.dataset.id === id);
}
