// Keys outside of text fields, and walking through lists.

export function startKeyboard(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (walk(event)) return event.preventDefault();
    if (target.matches("input, select, textarea") || document.querySelector("dialog[open]")) return;
    const row = target.closest("[data-id]");
    const action = event.key === "s" && row ? () => actions.similar(row.dataset.id) : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

// Arrow keys move between the items of a list, and between lists at the same height.
function walk(event) {
  const list = event.target.closest("ol.items");
  if (!list || !event.key.startsWith("Arrow")) return false;
  const place = [...list.children].indexOf(event.target.closest("li"));
  if (event.key === "ArrowDown") focusRow(list, place + 1);
  else if (event.key === "ArrowUp") focusRow(list, place - 1);
  else {
    const lists = [...list.closest("main, dialog").querySelectorAll("ol.items")];
    const next = lists[lists.indexOf(list) + (event.key === "ArrowRight" ? 1 : -1)];
    if (next) focusRow(next, place);
  }
  return true;
}

function focusRow(list, place) {
  const row = list.children[Math.min(Math.max(place, 0), list.children.length - 1)];
  (row?.querySelector(".add:not([disabled])") || row?.querySelector(".more"))?.focus();
}

// Where the focus was in the lists, to restore it after they are drawn again.
export function rememberFocus() {
  const lists = () => [...document.querySelectorAll("#lists ol.items")];
  const list = document.activeElement?.closest("#lists ol.items");
  if (!list) return () => {};
  const which = lists().indexOf(list);
  const place = [...list.children].indexOf(document.activeElement.closest("li"));
  return () => lists()[which] && focusRow(lists()[which], place);
}
