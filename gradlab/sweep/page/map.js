"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const canvas = byId("map"), pen = canvas.getContext("2d"), tip = byId("tip");
  const nx = data.x.labels.length, ny = data.y.labels.length;
  const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
  const LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a8a8a"];
  const state = { slice: 0, metric: 0, cursor: null, chosen: null };
  let at = new Map(), box = null;

  const slice = () => data.slices[state.slice];
  const metric = () => data.metrics[state.metric];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (v) => v === null || v === undefined ? "-" : v === "inf" ? "∞" : typeof v !== "number" ? String(v)
    : v !== 0 && (Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3) ? v.toExponential(2) : String(+v.toPrecision(4));
  const percent = (v) => typeof v === "number" ? `${+(100 * v).toPrecision(3)}%` : number(v);
  const shown = (m, v) => m.share ? percent(v) : number(v);

  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  // --- what is where -------------------------------------------------------------------------------------------

  function index() {
    at = new Map();
    for (const cell of slice().cells) at.set(cell.at[0] * nx + cell.at[1], cell);
  }

  /** The point that a place shows: its own, or in a sparse map its nearest; undefined where nothing was run. */
  function cellAt(row, column) {
    const own = at.get(row * nx + column), source = slice().source;
    return own || (source ? slice().cells[source[row * nx + column]] : undefined);
  }

  function colour(value) {
    if (state.metric === 0) return data.outcomes[value].colour;
    if (value === "inf") return css("--lost");
    const { low, high, log } = metric();
    const scale = log ? Math.log : (v) => v;
    if (log && value <= 0) return VIRIDIS[0];
    const part = high > low ? (scale(value) - scale(low)) / (scale(high) - scale(low)) : 0.5;
    const place = Math.min(Math.max(part, 0), 1) * (VIRIDIS.length - 1), k = Math.min(Math.floor(place), VIRIDIS.length - 2);
    const mixed = [1, 3, 5].map((i) => {
      const [a, b] = [VIRIDIS[k], VIRIDIS[k + 1]].map((c) => parseInt(c.slice(i, i + 2), 16));
      return Math.round(a + (b - a) * (place - k));
    });
    return `rgb(${mixed.join(",")})`;
  }

  // --- the map -------------------------------------------------------------------------------------------------

  function layout() {
    const width = Math.max(canvas.parentElement.clientWidth, 200);
    pen.font = "12px system-ui, sans-serif";
    const widest = (labels) => Math.max(...labels.map((text) => pen.measureText(text).width), 0);
    const left = widest(data.y.labels) + (data.y.name ? 34 : 10), bottom = widest(data.x.labels) + 34;
    const across = width - left - 10, up = Math.min(Math.max(ny === 1 ? 60 : (across * ny) / nx, 60), 640);
    box = { left, top: 6, across, up, w: across / nx, h: up / ny, width, height: up + bottom + 8 };
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(box.height * ratio);
    canvas.style.height = `${box.height}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  const X = (column) => box.left + column * box.w;
  const Y = (row) => box.top + box.up - row * box.h;

  function hatching() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const p = tile.getContext("2d");
    p.strokeStyle = css("--hatch");
    p.beginPath();
    for (const shift of [-8, 0, 8]) { p.moveTo(shift, 8); p.lineTo(shift + 8, 0); }
    p.stroke();
    return pen.createPattern(tile, "repeat");
  }

  function draw() {
    layout();
    pen.clearRect(0, 0, box.width, box.height);
    const hatched = hatching();
    const gap = Math.min(box.w, box.h) > 12 ? 1 : 0, lettered = state.metric === 0 && Math.min(box.w, box.h) >= 16;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let row = 0; row < ny; row++) for (let column = 0; column < nx; column++) {
      const cell = cellAt(row, column), value = cell ? cell.values[state.metric] : null;
      const own = at.has(row * nx + column);
      pen.globalAlpha = own || !cell ? 1 : 0.62;
      pen.fillStyle = value === null ? hatched : colour(value);
      const [x, y] = gap ? [X(column), Y(row + 1)] : [Math.floor(X(column)), Math.floor(Y(row + 1))];
      pen.fillRect(x, y, gap ? box.w - gap : Math.ceil(box.w), gap ? box.h - gap : Math.ceil(box.h));
      pen.globalAlpha = 1;
      if (lettered && own && value !== null) {
        const outcome = data.outcomes[value];
        pen.fillStyle = outcome.light ? "#fff" : "#000";
        pen.font = "11px system-ui, sans-serif";
        pen.fillText(outcome.letter, X(column) + box.w / 2, Y(row) - box.h / 2);
      }
    }
    for (const [width, style] of [[5, "#fff"], [2.5, "#000"]]) {
      pen.lineWidth = width;
      pen.strokeStyle = style;
      pen.lineCap = "round";
      pen.beginPath();
      for (const [x0, y0, x1, y1] of slice().boundary) { pen.moveTo(X(x0), Y(y0)); pen.lineTo(X(x1), Y(y1)); }
      pen.stroke();
    }
    axes();
    for (const [place, width] of [[state.cursor, 2], [state.chosen, 4]]) if (place) {
      pen.lineWidth = width;
      pen.strokeStyle = css("--focus");
      pen.strokeRect(X(place[1]), Y(place[0] + 1), box.w, box.h);
    }
  }

  function axes() {
    pen.fillStyle = css("--ink");
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const every = (count, room) => Math.max(1, Math.ceil((count * 16) / room));
    for (let j = 0; j < nx; j += every(nx, box.across)) {
      pen.save();
      pen.translate(X(j + 0.5), box.top + box.up + 6);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "right";
      pen.fillText(data.x.labels[j], 0, 0);
      pen.restore();
    }
    pen.textAlign = "right";
    if (data.y.name) for (let i = 0; i < ny; i += every(ny, box.up)) pen.fillText(data.y.labels[i], box.left - 6, Y(i + 0.5));
    pen.textAlign = "center";
    pen.font = "bold 13px system-ui, sans-serif";
    pen.fillText(data.x.name, box.left + box.across / 2, box.height - 10);
    pen.save();
    pen.translate(12, box.top + box.up / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(data.y.name, 0, 0);
    pen.restore();
  }

  function legend() {
    const parts = [];
    const key = (background, text, letter = "", light = false) => {
      const swatch = element("span", letter, { class: "swatch" }), made = element("span", undefined, { class: "key" });
      swatch.style.background = background;
      if (light) swatch.style.color = "#fff";
      made.append(swatch, text);
      parts.push(made);
    };
    const seen = slice().cells.map((cell) => cell.values[state.metric]);
    if (state.metric === 0) {
      data.outcomes.forEach((o, i) => {
        const count = seen.filter((v) => v === i).length;
        if (count) key(o.colour, `${o.name} (${count}): ${o.means}`, o.letter, o.light);
      });
    } else {
      const { low, high, log, capped } = metric();
      const ramp = element("span", undefined, { class: "ramp" });
      ramp.style.background = `linear-gradient(90deg, ${VIRIDIS.join(",")})`;
      parts.push(element("span", shown(metric(), low)), ramp, element("span", shown(metric(), high) + (capped ? " and more" : "")));
      if (log) parts.push(element("span", "(logarithmic)", { class: "quiet" }));
      if (seen.includes("inf")) key("var(--lost)", "lost");
    }
    if (slice().cells.length < nx * ny) {
      const text = slice().source ? "paler: not run, as its nearest" : "hatched: not run";
      parts.push(element("span", `${text} (${slice().cells.length} of ${nx * ny} were run)`, { class: "quiet" }));
    }
    byId("legend").replaceChildren(...parts);
  }

  // --- one point -----------------------------------------------------------------------------------------------

  const name = ([row, column]) => [`${data.x.name} = ${data.x.labels[column]}`].concat(
    data.y.name ? [`${data.y.name} = ${data.y.labels[row]}`] : []).join(", ");

  function told(place) {
    const cell = cellAt(...place);
    if (!cell) return `${name(place)}\nnot run`;
    const own = at.has(place[0] * nx + place[1]);
    const lines = [name(own ? place : cell.at) + (own ? "" : " (the nearest that was run)")];
    const verdicts = [...new Set(cell.jobs.map((j) => data.jobs[j].verdict))];
    lines.push(`${data.outcomes[cell.values[0]].name}: ${verdicts.join(", ")}`);
    data.metrics.forEach((m, i) => { if (i && cell.values[i] !== null && (m.name !== "stable" || cell.jobs.length > 1)) lines.push(`${m.title}: ${shown(m, cell.values[i])}`); });
    lines.push(`${cell.jobs.length > 1 ? "jobs" : "job"} ${cell.jobs.map((j) => data.jobs[j].job).join(", ")}`);
    return lines.join("\n");
  }

  function details() {
    const place = state.chosen, cell = place && cellAt(...place), parts = [];
    if (!cell) {
      parts.push(element("p", place ? `${name(place)}: not run` : "Choose a point to see its runs.", { class: "quiet" }));
    } else {
      parts.push(element("h2", name(cell.at)));
      const jobs = cell.jobs.map((j) => data.jobs[j]);
      parts.push(curve(jobs, 1, "training loss"), curve(jobs, 2, "gradient norm, before clipping"));
      jobs.forEach((job, i) => parts.push(...run(job, jobs.length > 1 ? LINES[i % LINES.length] : null)));
    }
    byId("details").replaceChildren(...parts);
  }

  function run(job, stroke) {
    const title = element("h3", `job ${job.job}${job.seed === null ? "" : `, seed ${job.seed}`}: ${job.verdict}`);
    if (stroke) {
      const swatch = element("span", "", { class: "swatch" });
      swatch.style.background = stroke;
      title.prepend(swatch, " ");
    }
    const link = element("a", `${data.folder}/${job.job}`, { href: job.job.split("/").map(encodeURIComponent).join("/") + "/" });
    const path = element("code");
    path.append(link);
    const table = element("table"), scroll = element("div", undefined, { class: "scroll" });
    data.numbers.forEach((label, i) => {
      const row = element("tr");
      row.append(element("td", label), element("td", number(job.numbers[i])));
      table.append(row);
    });
    scroll.append(table);
    return [title, element("p", `${data.outcomes[job.outcome].name}: ${job.why}`), path, scroll];
  }

  /** A line a job over its attempts, logarithmic where all values are positive. */
  function curve(jobs, which, title) {
    const W = 560, H = 190, left = 58, right = 8, top = 20, bottom = 22, space = "http://www.w3.org/2000/svg";
    const add = (parent, tag, attributes, text) => {
      const made = document.createElementNS(space, tag);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (text !== undefined) made.textContent = text;
      parent.append(made);
      return made;
    };
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    svg.setAttribute("class", "curve");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", title);
    const values = jobs.flatMap((job) => job.curves[which]).filter((v) => v !== null);
    add(svg, "text", { x: left, y: 13 }, values.length ? title : `${title}: nothing was measured`);
    if (!values.length) return svg;
    const last = Math.max(...jobs.map((job) => job.curves[0].at(-1) || 1));
    let low = Math.min(...values), high = Math.max(...values);
    const log = low > 0, scale = log ? Math.log10 : (v) => v;
    if (scale(high) - scale(low) < 1e-9) [low, high] = log ? [low / 2, high * 2] : [low - 1, high + 1];
    const x = (v) => left + ((W - left - right) * v) / last;
    const y = (v) => H - bottom - ((H - top - bottom) * (scale(v) - scale(low))) / (scale(high) - scale(low));
    for (const part of [0, 0.5, 1]) {
      const value = log ? 10 ** (scale(low) + part * (scale(high) - scale(low))) : low + part * (high - low);
      add(svg, "line", { x1: left, x2: W - right, y1: y(value), y2: y(value) });
      add(svg, "text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(+value.toPrecision(3)));
    }
    add(svg, "text", { x: left, y: H - 6 }, "0");
    add(svg, "text", { x: W - right, y: H - 6, "text-anchor": "end" }, `update ${last}`);
    jobs.forEach((job, k) => {
      let path = "", drawing = false;
      job.curves[which].forEach((v, i) => {
        if (v !== null) path += `${drawing ? "L" : "M"}${x(job.curves[0][i]).toFixed(1)} ${y(v).toFixed(1)}`;
        drawing = v !== null;
      });
      add(svg, "path", { d: path, stroke: LINES[k % LINES.length] });
    });
    return svg;
  }

  // --- rows, recommendation ------------------------------------------------------------------------------------

  function words() {
    const { says, command, lines } = slice();
    byId("recommended").hidden = !says;
    byId("says").textContent = `Recommended: ${says}`;
    byId("command").textContent = command;
    byId("copy").hidden = !command;
    byId("rows").hidden = !lines.length;
    const table = element("table"), head = element("tr"), names = ["stable up to", "unstable from", "learns up to", "sensitivity", "lowest loss", "at"];
    for (const text of [data.y.name, ...names]) head.append(element("th", text, { scope: "col" }));
    const top = element("thead");
    top.append(head);
    table.append(top);
    lines.forEach((line, i) => {
      const row = element("tr");
      row.append(element("td", data.y.labels[i]), ...line.map((v) => element("td", number(v))));
      table.append(row);
    });
    byId("table").replaceChildren(table);
  }

  // --- what the reader does ------------------------------------------------------------------------------------

  function place(event) {
    const rect = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - rect.left - box.left) / box.w);
    const row = Math.floor((box.top + box.up - (event.clientY - rect.top)) / box.h);
    return column >= 0 && column < nx && row >= 0 && row < ny ? [row, column] : null;
  }

  function point(where, say) {
    state.cursor = where;
    tip.hidden = !where;
    if (where) {
      tip.textContent = told(where);
      const x = X(where[1] + 1) + 8, wide = tip.offsetWidth;
      tip.style.left = `${x + wide > box.width ? Math.max(X(where[1]) - wide - 8, 0) : x}px`;
      tip.style.top = `${Math.max(Math.min(Y(where[0] + 1), box.height - tip.offsetHeight), 0)}px`;
      if (say) byId("live").textContent = tip.textContent;
    }
    draw();
  }

  function choose(where) {
    state.chosen = where;
    details();
    draw();
    remember();
  }

  function remember() {
    const parts = new URLSearchParams();
    if (state.metric) parts.set("metric", metric().name);
    if (state.slice) parts.set("slice", state.slice);
    if (state.chosen) parts.set("at", state.chosen.join(","));
    try { history.replaceState(null, "", `#${parts}`); } catch { /* a browser that keeps files from it */ }
  }

  function recall() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const numbers = (parts.get("at") || "").split(",").map(Number);
    state.slice = Math.min(Math.max(Number(parts.get("slice")) || 0, 0), data.slices.length - 1);
    state.metric = Math.max(data.metrics.findIndex((m) => m.name === parts.get("metric")), 0);
    const inside = numbers.length === 2 && numbers[0] >= 0 && numbers[0] < ny && numbers[1] >= 0 && numbers[1] < nx;
    state.chosen = inside && numbers.every(Number.isInteger) ? numbers : null;
    show();
  }

  function show() {
    byId("metric").value = state.metric;
    byId("slice").value = state.slice;
    index();
    words();
    legend();
    details();
    draw();
  }

  canvas.addEventListener("mousemove", (event) => point(place(event), false));
  canvas.addEventListener("mouseleave", () => point(null, false));
  canvas.addEventListener("click", (event) => { const where = place(event); if (where) choose(where); });
  canvas.addEventListener("blur", () => point(null, false));
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }, move = moves[event.key];
    const now = state.cursor || state.chosen || [0, 0];
    if (move) point(state.cursor || state.chosen ? [Math.min(Math.max(now[0] + move[0], 0), ny - 1), Math.min(Math.max(now[1] + move[1], 0), nx - 1)] : now, true);
    else if (event.key === "Home" || event.key === "End") point([now[0], event.key === "Home" ? 0 : nx - 1], true);
    else if (event.key === "Enter" || event.key === " ") choose(now);
    else if (event.key === "Escape") { point(null, false); choose(null); }
    else return;
    event.preventDefault();
  });
  byId("metric").addEventListener("change", (event) => { state.metric = Number(event.target.value); show(); remember(); });
  byId("slice").addEventListener("change", (event) => { state.slice = Number(event.target.value); show(); remember(); });
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("copy").addEventListener("click", () => {
    const selection = getSelection();
    selection.selectAllChildren(byId("command"));
    if (navigator.clipboard) navigator.clipboard.writeText(byId("command").textContent).catch(() => {});
  });
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement.classList;
    const dark = root.contains("dark") || (!root.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    root.toggle("dark", !dark);
    root.toggle("light", dark);
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", draw);
  addEventListener("hashchange", recall);

  byId("folder").textContent = data.folder;
  byId("metric").append(...data.metrics.map((m, i) => element("option", m.title, { value: i, ...(m.measured ? {} : { hidden: "" }) })));
  byId("slice").append(...data.slices.map((s, i) => element("option", s.title, { value: i })));
  byId("slices").hidden = data.slices.length < 2;
  recall();
})();
