// Light or dark: the system's setting until the user chooses.
import { $ } from "./dom.js";

const KEY = "crossbatch-theme";

export function startTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = localStorage.getItem(KEY);
  if (kept) root.dataset.theme = kept;
  const toggle = () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    localStorage.setItem(KEY, root.dataset.theme);
  };
  $("theme").addEventListener("click", toggle);
  return toggle;
}
