"use strict";
/* What every page uses: elements, numbers, colours, light and dark, copying. */
const lab = (() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const json = (id) => JSON.parse(byId(id).textContent);
  const VIRIDIS = [
    "#440154",
    "#482878",
    "#3e4989",
    "#31688e",
    "#26828e",
    "#1f9e89",
    "#35b779",
    "#6ece58",
    "#b5de2b",
    "#fde725",
  ];

  /** An element with a text, which is never read as HTML, and attributes; `on...` are listeners. */
  function element(name, text, attributes = {}, children = []) {
    const made = document.createElement(name);
    if (text !== undefined && text !== null) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== undefined && value !== null) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  /** Let the keyboard reach what is wider than its place: the arrows then scroll it. */
  function reach(host, label) {
    host.setAttribute("role", "region");
    host.setAttribute("aria-label", label);
    const wide = new ResizeObserver(() =>
      host.scrollWidth > host.clientWidth ? host.setAttribute("tabindex", "0") : host.removeAttribute("tabindex"),
    );
    for (const watched of [host, ...host.children]) wide.observe(watched);
    return host;
  }

  const scroll = (label, child) => reach(element("div", null, { class: "scroll" }, [child]), label);

  /** A number as metrics.jsonl holds it, in a few digits. */
  function number(value, digits = 4) {
    if (value === null || value === undefined || value === "") return "-";
    const v = Number(value);
    if (Number.isNaN(v)) return typeof value === "number" || value === "NaN" ? "NaN" : String(value);
    if (!Number.isFinite(v)) return v > 0 ? "∞" : "-∞";
    if (Number.isInteger(v) && Math.abs(v) < 1e7) return String(v);
    if (v !== 0 && (Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3)) {
      return v
        .toExponential(digits - 2)
        .replace(/\.?0+e/, "e")
        .replace("e+", "e");
    }
    return String(+v.toPrecision(digits));
  }

  const percent = (v) => (Number.isFinite(Number(v)) ? `${+(100 * v).toPrecision(3)}%` : number(v));

  /** [r, g, b] of a place in 0..1 on a ramp of colours from dark to light. */
  function ramp(place, colours = VIRIDIS) {
    const at = Math.min(Math.max(place, 0), 1) * (colours.length - 1),
      k = Math.min(Math.floor(at), colours.length - 2);
    return [1, 3, 5].map((i) => {
      const a = parseInt(colours[k].slice(i, i + 2), 16),
        b = parseInt(colours[k + 1].slice(i, i + 2), 16);
      return Math.round(a + (b - a) * (at - k));
    });
  }

  const listeners = [];
  const themed = (action) => listeners.push(action);
  const dark = () =>
    root.classList.contains("dark") ||
    (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  const stored = (action) => {
    try {
      return action();
    } catch {
      return null;
    }
  };

  function theme(name) {
    root.classList.remove("dark", "light");
    if (name) root.classList.add(name);
    listeners.forEach((action) => action());
  }

  /** The button that changes between light and dark. */
  function themeButton(button) {
    const kept = stored(() => localStorage.getItem("gradlab-theme"));
    if (kept === "dark" || kept === "light") theme(kept);
    const relabel = () => button.setAttribute("aria-label", dark() ? "light colours" : "dark colours");
    button.addEventListener("click", () => {
      const name = dark() ? "light" : "dark";
      theme(name);
      stored(() => localStorage.setItem("gradlab-theme", name));
      relabel();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      listeners.forEach((action) => action());
      relabel();
    });
    relabel();
  }

  /** On paper: light, and no wider than a sheet, whatever the window was. */
  function printable() {
    let was = false;
    addEventListener("beforeprint", () => {
      was = dark();
      document.body.style.width = "700px";
      if (was) theme("light");
      dispatchEvent(new Event("resize"));
    });
    addEventListener("afterprint", () => {
      document.body.style.width = "";
      if (was) theme("dark");
      dispatchEvent(new Event("resize"));
    });
  }

  /** The objects in JSON lines. */
  const lines = (text) =>
    text
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line));

  /** A number, which may be a string where it is not finite; null of none. */
  const value = (v) => (v === null || v === undefined ? null : Number(v));

  /** Copy a text; pages from disk may have no clipboard, then by a selection. */
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = element("textarea", text, { style: "position:fixed;opacity:0" });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  function copyButton(text, label = "copy") {
    const button = element("button", label, { type: "button", class: "copy", "aria-label": `copy: ${text}` });
    button.addEventListener("click", async () => {
      await copy(text);
      button.textContent = "copied";
      setTimeout(() => {
        button.textContent = label;
      }, 1500);
    });
    return button;
  }

  return {
    byId,
    css,
    json,
    lines,
    value,
    element,
    reach,
    scroll,
    number,
    percent,
    ramp,
    VIRIDIS,
    dark,
    theme,
    themed,
    themeButton,
    printable,
    copy,
    copyButton,
  };
})();
