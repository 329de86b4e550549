// Lists of items: one per bundle, or one per interest.
import { BANDS, h, percent, plainTitle, popularity, title } from "./dom.js";
import { lightHistory } from "./history.js";
import { item, state } from "./state.js";

const COLORS = 8;

// One list of items.
//   others: places of items in the list beside it, by id; null without one
//   several: whether the user has more than one interest
export function itemList(items, label, { add, openSimilar, others = null, several = false }) {
  const best = Math.max(...items.map((entry) => entry.score), 1e-9);
  const rows = items.map((entry, place) => {
    const because = entry.because?.id;
    const light = (on) => () => {
      lightHistory(on ? because : null);
      for (const twin of document.querySelectorAll("ol.items > li"))
        twin.classList.toggle("twin", on && others !== null && twin.dataset.id === entry.id && others.has(entry.id));
    };
    const taken = state.history.includes(entry.id);
    return h(
      "li",
      {
        "data-id": entry.id, "data-because": because, class: several ? `c${entry.interest % COLORS}` : "",
        onpointerenter: light(true), onpointerleave: light(false), onfocusin: light(true), onfocusout: light(false),
      },
      h("span", { class: "rank" }, String(place + 1)),
      h(
        "div", { class: "what" },
        h("button", { type: "button", class: "add", disabled: taken, title: taken ? "in the history" : "Add to the history", onclick: () => add(entry.id) }, title(entry)),
        reason(entry, others, several),
      ),
      popularity(entry),
      h("span", { class: "score", title: "score" }, entry.score.toFixed(3), h("i", { "--share": Math.min(1, Math.max(0, entry.score / best)) })),
      h("button", { type: "button", class: "quiet more", title: "Similar items", "aria-label": `Similar to ${entry.title}`, onclick: () => openSimilar(entry.id) }, "≈"),
    );
  });
  return h("ol", { class: "items", "aria-label": label }, ...rows);
}

// The second line of a row: its place in the other list, and the item of the history behind it.
function reason(entry, others, several) {
  const parts = [];
  if (others !== null) {
    const place = others.get(entry.id);
    parts.push(place
      ? h("span", { class: "tag", title: `no. ${place} in the other list` }, `⇄ ${place}`)
      : h("span", { class: "tag only" }, "only here"));
  }
  if (entry.because) {
    const { id, similarity } = entry.because;
    if (several) parts.push(h("i", { class: "dot", title: `interest ${entry.interest + 1}` }));
    parts.push(h("span", { class: "cut", title: `cosine ${similarity.toFixed(2)}` }, `because of ${plainTitle(item(id))} · ${percent(similarity)}`));
  }
  return parts.length ? h("span", { class: "why" }, ...parts) : null;
}

// How the list divides over popular and rare items.
function bandsOf(items) {
  const counts = Object.keys(BANDS).map((band) => [band, items.filter((entry) => entry.popularity === band).length]);
  return counts.filter(([, count]) => count);
}

const mixText = (items) => bandsOf(items).map(([band, count]) => `${count} ${band}`).join(" · ");

function mix(items) {
  const text = mixText(items);
  const parts = bandsOf(items).map(([band, count]) => h("span", { class: band, "--share": count }));
  return h("div", { class: "mix", role: "img", "aria-label": `Popularity: ${text}`, title: text }, ...parts);
}

function panel(heading, note, list, { near = null, items = [], css = "" } = {}) {
  return h(
    "section", { class: `panel ${css}` },
    h("div", { class: "top" }, h("h3", {}, ...heading, note ? h("small", {}, note) : null), near, items.length ? mix(items) : null),
    list,
  );
}

function onePanel(answer, name, others, actions) {
  const several = (answer.interests || []).length > 1;
  const list = itemList(answer.items, `Recommendations of ${name}`, { ...actions, others, several });
  const heading = answer.popular ? "Most popular" : "Recommended";
  return panel([others === null ? heading : name], mixText(answer.items), list, { items: answer.items });
}

// The interests that the answer draws most from come first.
function interestPanels(answer, name, actions) {
  const share = (interest) => answer.items.filter((entry) => entry.interest === interest).length;
  const sorted = answer.interests.toSorted((a, b) => share(b.interest) - share(a.interest));
  const panels = sorted.map(({ interest, near, items }) => {
    const list = itemList(items, `Interest ${interest + 1} of ${name}`, actions);
    const names = near.map((id) => plainTitle(item(id))).join(" · ");
    const part = `${share(interest)} of ${answer.items.length}`;
    return panel(
      [h("i", { class: "dot" }), `Interest ${interest + 1}`],
      h("span", { title: `${part} recommendations answer to this interest` }, part),
      list,
      { near: names ? h("p", { class: "near" }, `near ${names}`) : null, items, css: `c${interest % COLORS}` },
    );
  });
  return h("div", { class: "interests" }, ...panels);
}

// What to show for the answers of one or two bundles, in the order of their slots.
export function panels(answers, actions) {
  const byInterest = state.view === "interests" && answers.some(({ answer }) => (answer.interests || []).length > 1);
  if (byInterest) {
    return answers.map(({ answer, name }) => h(
      "section", {},
      answers.length > 1 ? h("h2", {}, name) : null,
      answer.interests ? interestPanels(answer, name, actions) : onePanel(answer, name, null, actions),
    ));
  }
  const places = answers.map(({ answer }) => new Map(answer.items.map((entry, place) => [entry.id, place + 1])));
  const made = answers.map(({ answer, name }, which) =>
    onePanel(answer, name, answers.length > 1 ? places[1 - which] : null, actions));
  return [h("div", { class: answers.length > 1 ? "pair" : "" }, ...made)];
}

export function overlap(answers) {
  if (answers.length < 2) return "";
  const [first, second] = answers.map(({ answer }) => new Set(answer.items.map((entry) => entry.id)));
  const both = [...first].filter((id) => second.has(id)).length;
  return `${both} of ${Math.max(first.size, second.size)} items in both lists`;
}

export function startTiles(items, { add }) {
  const tile = (entry) => h("li", {}, h("button", { type: "button", onclick: () => add(entry.id) }, title(entry), h("small", {}, `chosen ${entry.count.toLocaleString("en")} times`)));
  return h(
    "div", { class: "start" },
    h("p", { class: "lead" }, "What did they like?"),
    h("p", { class: "hint" }, "Choose a few items, here or by their titles. The model reads them in the order in which you choose and answers at once."),
    h("ul", { class: "tiles", "aria-label": "Popular items" }, ...items.map(tile)),
  );
}
