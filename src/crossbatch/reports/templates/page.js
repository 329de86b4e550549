"use strict";
// Three additions to a page that is complete without them: a theme button, instant tooltips (also by
// touch), and legends that single out or hide a series.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  button.hidden = false;
  button.addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  for (const title of document.querySelectorAll("svg title")) {
    title.parentNode.dataset.tip = title.textContent; // else the browser shows a second, slow one
    title.remove();
  }
  document.addEventListener("pointerover", (event) => {
    const owner = event.target.closest("[data-tip]");
    tip.hidden = !owner;
    if (!owner) return;
    tip.textContent = owner.dataset.tip;
    const box = owner.getBoundingClientRect();
    const left = Math.min(Math.max(box.left + box.width / 2, 90), innerWidth - 90);
    const above = box.top > 70;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above ? box.top - 10 : box.bottom + 10) + scrollY}px`;
    tip.className = above ? "above" : "below";
  });

  for (const item of document.querySelectorAll(".legend button")) {
    const chart = item.closest("figure");
    const same = () =>
      [...chart.querySelectorAll(".series")].filter((s) => s.dataset.series === item.dataset.series);
    item.addEventListener("click", () => {
      const hide = item.getAttribute("aria-pressed") === "true";
      item.setAttribute("aria-pressed", String(!hide));
      for (const series of same()) series.classList.toggle("off", hide);
    });
    const focus = (on) => {
      chart.classList.toggle("dimmed", on);
      for (const series of same()) series.classList.toggle("lit", on);
    };
    item.addEventListener("pointerenter", () => focus(true));
    item.addEventListener("pointerleave", () => focus(false));
  }
})();
