// The few pieces that every part of the page is made of. Text only ever becomes text nodes.

export const $ = (id) => document.getElementById(id);

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const BANDS = {
  head: [3, "head: the most popular items, a third of all interactions"],
  mid: [2, "mid: the next third"],
  tail: [1, "tail: the last third, most of the catalogue"],
  cold: [0, "cold: never seen in training"],
};

export function popularity(item) {
  const [full, meaning] = BANDS[item.popularity];
  const label = `${item.popularity}, ${item.count.toLocaleString("en")} interactions`;
  const dots = [0, 1, 2].map((place) => h("i", { class: place < full ? "full" : "" }));
  return h("span", { class: "pop", role: "img", "aria-label": label, title: `${label} (${meaning})` }, ...dots);
}

const parts = (item) => /^(.*?)\s*(?:\((\d{4})\))?$/s.exec(item.title);

export const plainTitle = (item) => parts(item)[1] || item.title;

export function title(item) {
  const [, text, year] = parts(item);
  return h("span", { class: "title" }, text || item.title, year && text ? h("span", { class: "year" }, year) : null);
}

export const percent = (share) => `${Math.round(100 * share)} %`;
