// The search field: a combobox whose list follows the typing.
import { findItems } from "./api.js";
import { $, h, popularity, title } from "./dom.js";
import { remember, state } from "./state.js";

const LIMIT = 40;
const PAUSE = 90; // ms without a key before the server is asked

export function startSearch({ add, dropLast, fail }) {
  const field = $("search");
  const list = $("found");
  let options = [];
  let active = -1;
  let timer = 0;
  let running = null;
  let fresh = false; // whether the list is that of what the field says

  const close = () => {
    list.hidden = true;
    active = -1;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  };
  const choose = (place) => {
    add(options[place].id);
    field.value = "";
    close();
  };
  const point = (place) => {
    active = place;
    for (const [number, row] of [...list.querySelectorAll("[role=option]")].entries()) {
      row.setAttribute("aria-selected", String(number === place));
      if (number === place) row.scrollIntoView({ block: "nearest" });
    }
    if (place >= 0) field.setAttribute("aria-activedescendant", `found-${place}`);
    else field.removeAttribute("aria-activedescendant");
  };
  const show = (items, searched) => {
    options = items;
    fresh = true;
    const rows = items.map((item, place) => {
      const taken = state.history.includes(item.id);
      return h(
        "li",
        {
          role: "option", id: `found-${place}`, "aria-selected": "false", class: taken ? "taken" : "",
          onpointerdown: (event) => { event.preventDefault(); choose(place); },
          onpointermove: () => active !== place && point(place),
        },
        title(item),
        taken ? h("small", {}, "in the history") : null,
        popularity(item),
      );
    });
    const text = searched ? (items.length ? null : `Nothing is called “${searched}”.`) : "Most popular";
    list.replaceChildren(...(text ? [h("li", { class: "head", role: "presentation" }, text)] : []), ...rows);
    list.hidden = false;
    field.setAttribute("aria-expanded", "true");
    point(searched && items.length ? 0 : -1);
  };
  const ask = async () => {
    running?.abort();
    running = new AbortController();
    const searched = field.value.trim();
    try {
      const { items } = await findItems(searched, searched ? LIMIT : 12, running.signal);
      remember(items);
      if (document.activeElement === field) show(items, searched);
    } catch (error) {
      if (error.name !== "AbortError") fail(error);
    }
  };

  // Users who type faster than the server answers mean what they typed, not what they see.
  const chooseFirst = async () => {
    clearTimeout(timer);
    await ask();
    if (fresh && field.value.trim() && options.length) choose(0);
  };

  field.addEventListener("input", () => {
    fresh = false;
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE);
  });
  field.addEventListener("focus", ask);
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    const last = options.length - 1;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (list.hidden) ask();
      else if (event.key === "ArrowDown") point(active >= last ? 0 : active + 1);
      else point(active <= 0 ? last : active - 1);
    } else if (event.key === "Enter" && !fresh && field.value.trim()) chooseFirst();
    else if (event.key === "Enter" && !list.hidden && active >= 0) choose(active);
    else if (event.key === "Escape" && !list.hidden) close();
    else if (event.key === "Escape") field.blur();
    else if (event.key === "Backspace" && !field.value) dropLast();
    else return;
    event.preventDefault();
  });
}
