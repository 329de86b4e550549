// Which items may be shown: a field for each filter column of the bundles.
import { $, h } from "./dom.js";
import { state } from "./state.js";

const HINTS = { integer: "from..to", number: "from..to", time: "2024-01-01..2024-06-30", text: "one, or another", list: "one, or another" };

export function showFilters(kinds, changed) {
  const names = Object.keys(kinds);
  $("filters").hidden = names.length === 0;
  $("columns").replaceChildren(...names.map((name) => h("label", {}, name, field(name, kinds[name], changed))));
  if (Object.keys(state.filters).length) $("filters").open = true;
}

function field(name, kind, changed) {
  const onchange = (event) => {
    const value = event.target.value.trim();
    if (value) state.filters[name] = value;
    else delete state.filters[name];
    changed();
  };
  const now = state.filters[name] || "";
  if (kind === "boolean") {
    const options = ["yes", "no"].map((value) => h("option", { value, selected: value === now }, value));
    return h("select", { onchange }, h("option", { value: "" }, "any"), ...options);
  }
  return h("input", { type: "text", value: now, placeholder: HINTS[kind], spellcheck: "false", onchange });
}

// The filter of a request over columns of these kinds; null for none.
export function conditions(kinds) {
  const given = Object.entries(state.filters).filter(([name]) => name in kinds);
  return given.length ? Object.fromEntries(given.map(([name, text]) => [name, condition(kinds[name], text)])) : null;
}

function condition(kind, text) {
  if (kind === "boolean") return text === "yes";
  if (kind === "text" || kind === "list") return text.split(",").map((part) => part.trim()).filter(Boolean);
  const value = (part) => (kind === "time" || part === "" || Number.isNaN(Number(part)) ? part : Number(part));
  const [from, to] = text.split("..").map((part) => part.trim());
  const limits = { ">=": value(from), "<=": value(to ?? from) };
  return Object.fromEntries(Object.entries(limits).filter(([, limit]) => limit !== ""));
}
