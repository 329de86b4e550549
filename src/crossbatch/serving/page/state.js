// The user of the page, kept in the address, so that a copied link shows the same page.

export const VIEWS = ["list", "interests"];
export const state = { history: [], k: 20, view: "list", seen: false, features: {}, filters: {} };

// Items by id, as far as the server has told of them.
const known = new Map();
export const remember = (items) => items.forEach((item) => known.set(item.id, item));
export const item = (id) => known.get(id) || { id, title: id, count: 0, popularity: "cold" };
export const isKnown = (id) => known.has(id);

export function readAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  const list = (values.get("history") || "").split(",").filter(Boolean);
  state.history = [...new Set(list.map(decode))].slice(-1000);
  state.k = [10, 20, 50, 100].includes(Number(values.get("k"))) ? Number(values.get("k")) : 20;
  state.view = VIEWS.includes(values.get("view")) ? values.get("view") : "list";
  state.seen = values.get("seen") === "1";
  state.features = {};
  state.filters = {};
  for (const [name, value] of values) {
    if (name.startsWith("u.")) state.features[name.slice(2)] = value;
    if (name.startsWith("f.")) state.filters[name.slice(2)] = value;
  }
}

export function address() {
  const values = new URLSearchParams();
  // Encoded twice: an id may hold a comma itself.
  if (state.history.length) values.set("history", state.history.map(encodeURIComponent).join(","));
  if (state.k !== 20) values.set("k", state.k);
  if (state.view !== "list") values.set("view", state.view);
  if (state.seen) values.set("seen", "1");
  for (const [name, value] of Object.entries(state.features)) values.set(`u.${name}`, value);
  for (const [name, value] of Object.entries(state.filters)) values.set(`f.${name}`, value);
  const hash = values.toString().replaceAll("%2C", ",");
  return hash ? `#${hash}` : location.pathname;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a hand-written address
  }
}
