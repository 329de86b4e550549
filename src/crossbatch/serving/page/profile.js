// What else is known of the user: a field for each user feature of the model.
import { $, h } from "./dom.js";
import { state } from "./state.js";

export function showProfile(features, changed) {
  const names = Object.keys(features);
  $("profile").hidden = names.length === 0;
  $("features").replaceChildren(...names.map((name) => h("label", {}, name, field(name, features[name], changed))));
  if (Object.keys(state.features).length) $("profile").open = true;
}

function field(name, { kind, values }, changed) {
  const onchange = (event) => {
    const value = event.target.value.trim();
    if (value) state.features[name] = value;
    else delete state.features[name];
    changed();
  };
  const now = state.features[name] || "";
  if (kind === "categorical" && values.length) {
    const options = values.map((value) => h("option", { value, selected: value === now }, value));
    return h("select", { onchange }, h("option", { value: "" }, "unknown"), ...options);
  }
  return h("input", { type: "text", value: now, placeholder: kind, inputmode: kind === "numeric" ? "decimal" : "text", onchange });
}
