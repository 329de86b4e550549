// The page: a history on the left, the recommendations for it on the right.
import { findItems, health, itemsById, recommend, setToken } from "./api.js";
import { openKeys, openSimilar, startDialogs } from "./dialogs.js";
import { $, h } from "./dom.js";
import { conditions, showFilters } from "./filters.js";
import { showHistory } from "./history.js";
import { rememberFocus, startKeyboard } from "./keyboard.js";
import { showProfile } from "./profile.js";
import { overlap, panels, startTiles } from "./results.js";
import { startSearch } from "./search.js";
import { address, isKnown, item, readAddress, remember, state } from "./state.js";
import { startTheme } from "./theme.js";

const TILES = 24;
let bundles = {};
let answers = [];
let running = null;

const actions = { add, openSimilar: (id) => openSimilar(id, bundles, { add, fail }) };

function add(id) {
  change({ history: [...state.history.filter((other) => other !== id), id] });
}

const drop = (id) => change({ history: state.history.filter((other) => other !== id) });

function change(values) {
  Object.assign(state, values);
  history.pushState(null, "", address());
  ask();
}

function fail(error) {
  if (error.status === 401) {
    $("token-form").hidden = false;
    $("token").focus();
    return;
  }
  $("notice").textContent = error.message;
  $("notice").hidden = false;
}

// Ask all bundles at once; a newer question makes the answer to an older one worthless.
async function ask() {
  drawHistory();
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const late = setTimeout(() => $("lists").classList.add("waiting"), 150);
  try {
    const asked = Object.keys(bundles).map(async (slot) => ({
      name: bundles[slot].name,
      answer: await recommend({
        history: state.history, k: state.k, exclude_seen: !state.seen, explain: true, bundle: slot, user_features: featuresOf(slot),
        filter: conditions(bundles[slot].filters),
      }, signal),
    }));
    answers = await Promise.all(asked);
    for (const { answer } of answers) {
      remember(answer.items);
      for (const { items } of answer.interests || []) remember(items);
    }
    $("notice").hidden = true;
    await draw();
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  } finally {
    clearTimeout(late);
    if (!signal.aborted) $("lists").classList.remove("waiting");
  }
}

function featuresOf(slot) {
  const given = Object.entries(state.features).filter(([name]) => name in bundles[slot].user_features);
  return given.length ? Object.fromEntries(given) : null;
}

function drawHistory() {
  const unread = new Set(answers.length ? answers[0].answer.unknown : []);
  showHistory({ drop, unread, openSimilar: actions.openSimilar });
}

async function draw() {
  const restoreFocus = rememberFocus();
  const empty = !state.history.length && !Object.keys(state.features).length;
  const several = answers.some(({ answer }) => (answer.interests || []).length > 1);
  drawHistory();
  $("controls").hidden = empty;
  $("views").hidden = !several;
  for (const button of $("views").children) button.setAttribute("aria-pressed", String(button.dataset.view === state.view));
  $("k").value = String(state.k);
  $("seen").checked = state.seen;
  $("overlap").textContent = empty ? "" : overlap(answers);
  if (empty) {
    const { items } = await findItems("", TILES);
    remember(items);
    $("lists").replaceChildren(startTiles(items, actions));
  } else {
    $("lists").replaceChildren(...messages(), ...panels(answers, actions));
  }
  document.title = state.history.length ? `${item(state.history.at(-1)).title} · crossbatch` : "crossbatch";
  $("status").textContent = empty ? "" : answers.map(({ name, answer }) => `${answer.items.length} recommendations of ${name}`).join(", ");
  restoreFocus();
}

function messages() {
  const texts = answers.filter(({ answer }) => answer.unknown.length).map(({ name, answer }) => {
    const which = answer.unknown.slice(0, 3).map((id) => item(id).title).join(", ");
    const rest = answer.unknown.length > 3 ? ` and ${answer.unknown.length - 3} more` : "";
    const then = answer.popular ? " Nothing else is known, so these are the most popular items." : "";
    return [name, ` does not hold ${which}${rest}.${then}`];
  });
  const same = texts.length > 1 && new Set(texts.map(([, text]) => text)).size === 1;
  const shown = same ? [["Neither bundle", texts[0][1].replace("does not hold", "holds")]] : texts;
  return shown.map((parts) => h("p", { class: "message" }, ...parts));
}

function showBundles() {
  const entries = Object.values(bundles).map((bundle) => {
    const recall = bundle.metrics["recall@50"];
    const facts = [
      `${bundle.items.toLocaleString("en")} items`,
      bundle.interests > 1 ? `${bundle.interests} interests` : null,
      recall ? `recall@50 ${(100 * recall).toFixed(1)} %` : null,
    ];
    return h("li", { title: `${bundle.model}, version ${bundle.version}, serving since ${bundle.serving_since}` },
      h("b", {}, bundle.name), ` ${facts.filter(Boolean).join(" · ")}`);
  });
  $("bundles").replaceChildren(...entries);
  const problem = Object.values(bundles).find((bundle) => bundle.problem)?.problem;
  if (problem) fail(new Error(problem));
}

async function begin() {
  try {
    const facts = await health();
    if (facts.bundles === null) return fail({ status: 401 });
    bundles = facts.bundles;
    $("token-form").hidden = true;
    showBundles();
    await follow();
  } catch (error) {
    fail(error);
  }
}

// Show the history in the address: at the start, and on the browser's back button.
async function follow() {
  readAddress();
  for (const slot of Object.keys(bundles)) {
    const missing = state.history.filter((id) => !isKnown(id));
    if (missing.length) remember(await itemsById(missing, slot));
  }
  showProfile(Object.assign({}, ...Object.values(bundles).map((bundle) => bundle.user_features)), () => change({}));
  showFilters(Object.assign({}, ...Object.values(bundles).map((bundle) => bundle.filters)), () => change({}));
  await ask();
}

const toggleView = () => change({ view: state.view === "list" ? "interests" : "list" });
const clear = () => change({ history: [], features: {} });

startDialogs();
startSearch({ add, fail, dropLast: () => state.history.length && change({ history: state.history.slice(0, -1) }) });
const toggleTheme = startTheme();
startKeyboard({
  "/": () => $("search").focus(), "?": openKeys, c: clear, t: toggleTheme, v: toggleView, similar: actions.openSimilar,
});
$("help").addEventListener("click", openKeys);
$("clear").addEventListener("click", clear);
$("k").addEventListener("change", (event) => change({ k: Number(event.target.value) }));
$("seen").addEventListener("change", (event) => change({ seen: event.target.checked }));
$("views").addEventListener("click", (event) => event.target.dataset.view && change({ view: event.target.dataset.view }));
$("share").addEventListener("click", async () => {
  // Browsers lend the clipboard to safe origins only: this machine, or TLS.
  await navigator.clipboard?.writeText(location.href);
  $("share").textContent = navigator.clipboard ? "Copied" : "It is in the address bar";
  setTimeout(() => ($("share").textContent = "Copy link"), 1500);
});
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken($("token").value.trim());
  begin();
});
addEventListener("popstate", follow);
begin();
