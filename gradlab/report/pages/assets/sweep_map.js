/* The map: a square a point, with its boundary; a point shows its runs. */
(() => {
  const { byId, element, number, percent, css } = lab,
    { data, state } = sweep,
    map = data.map;
  if (!map) return;
  const canvas = byId("map"),
    top = canvas.getContext("2d"),
    tip = byId("tip");
  const base = document.createElement("canvas"),
    pen = base.getContext("2d");
  const nx = map.x.labels.length,
    ny = map.y.labels.length;
  const view = { slice: 0, metric: 0, cursor: null };
  let at = new Map(),
    box = null;

  const slice = () => map.slices[view.slice];
  const metric = () => map.metrics[view.metric];
  const shown = (m, v) => (m.share ? percent(v) : number(v));

  // --- what is where -------------------------------------------------------------------------------------------

  function index() {
    at = new Map();
    for (const cell of slice().cells) at.set(cell.at[0] * nx + cell.at[1], cell);
  }

  /** The point that a place shows: its own, or in a sparse map its nearest; undefined where nothing was run. */
  function cellAt(row, column) {
    const own = at.get(row * nx + column),
      source = slice().source;
    return own || (source ? slice().cells[source[row * nx + column]] : undefined);
  }

  function colour(value) {
    if (view.metric === 0) return data.outcomes[value].colour;
    if (value === "Infinity") return css("--lost");
    const { low, high, log } = metric();
    const scale = log ? Math.log : (v) => v;
    const part = log && value <= 0 ? 0 : high > low ? (scale(value) - scale(low)) / (scale(high) - scale(low)) : 0.5;
    return `rgb(${lab.ramp(part).join(",")})`;
  }

  // --- drawing -------------------------------------------------------------------------------------------------

  /** How large it is; this waits for the layout of the page. */
  function layout() {
    const width = Math.max(canvas.parentElement.clientWidth, 200);
    pen.font = "12px system-ui, sans-serif";
    const widest = (labels) => labels.reduce((w, text) => Math.max(w, pen.measureText(text).width), 0);
    const left = Math.min(widest(map.y.labels) + (map.y.name ? 34 : 10), width / 2),
      bottom = Math.min(widest(map.x.labels), 220) + 34;
    const across = width - left - 10,
      up = ny === 1 ? 60 : Math.min(Math.max((across * ny) / nx, ny < 12 ? ny * 22 : 60), ny * 72, 620);
    box = { left, top: 6, across, up, w: across / nx, h: up / ny, width, height: up + bottom + 8 };
    const ratio = window.devicePixelRatio || 1;
    base.width = canvas.width = Math.round(width * ratio);
    base.height = canvas.height = Math.round(box.height * ratio);
    canvas.style.height = `${box.height}px`;
    for (const p of [pen, top]) p.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  const X = (column) => box.left + column * box.w;
  const Y = (row) => box.top + box.up - row * box.h;

  function hatching() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const p = tile.getContext("2d");
    p.strokeStyle = css("--hatch");
    p.beginPath();
    for (const shift of [-8, 0, 8]) {
      p.moveTo(shift, 8);
      p.lineTo(shift + 8, 0);
    }
    p.stroke();
    return pen.createPattern(tile, "repeat");
  }

  /** All but what moves with the cursor. */
  function paint() {
    pen.clearRect(0, 0, box.width, box.height);
    const hatched = hatching();
    const gap = Math.min(box.w, box.h) > 12 ? 1 : 0,
      lettered = view.metric === 0 && Math.min(box.w, box.h) >= 16;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let row = 0; row < ny; row++)
      for (let column = 0; column < nx; column++) {
        const cell = cellAt(row, column),
          value = cell ? cell.values[view.metric] : null;
        const own = at.has(row * nx + column),
          kept = !cell || cell.jobs.some((i) => state.shown[i]);
        pen.globalAlpha = (own || !cell ? 1 : 0.62) * (kept ? 1 : 0.15);
        pen.fillStyle = value === null ? hatched : colour(value);
        const [x, y] = gap ? [X(column), Y(row + 1)] : [Math.floor(X(column)), Math.floor(Y(row + 1))];
        pen.fillRect(x, y, gap ? box.w - gap : Math.ceil(box.w), gap ? box.h - gap : Math.ceil(box.h));
        pen.globalAlpha = 1;
        if (lettered && own && value !== null) {
          const outcome = data.outcomes[value];
          pen.fillStyle = !kept ? css("--quiet") : outcome.light ? "#fff" : "#000";
          pen.font = "11px system-ui, sans-serif";
          pen.fillText(outcome.letter, X(column) + box.w / 2, Y(row) - box.h / 2);
        }
      }
    for (const [width, style] of [
      [5, "#fff"],
      [2.5, "#000"],
    ]) {
      pen.lineWidth = width;
      pen.strokeStyle = style;
      pen.lineCap = "round";
      pen.beginPath();
      for (const [x0, y0, x1, y1] of slice().boundary) {
        pen.moveTo(X(x0), Y(y0));
        pen.lineTo(X(x1), Y(y1));
      }
      pen.stroke();
    }
    axes();
  }

  function draw() {
    top.clearRect(0, 0, box.width, box.height);
    top.drawImage(base, 0, 0, box.width, box.height);
    const chosen = new Set(state.chosen);
    const marked = chosen.size
      ? slice()
          .cells.filter((cell) => cell.jobs.some((i) => chosen.has(i)))
          .map((cell) => [cell.at, 4])
      : [];
    for (const [[row, column], width] of [...(view.cursor ? [[view.cursor, 2]] : []), ...marked]) {
      for (const [wide, style] of [
        [width + 2, css("--paper")],
        [width, css("--focus")],
      ]) {
        top.lineWidth = wide;
        top.strokeStyle = style;
        top.strokeRect(X(column), Y(row + 1), box.w, box.h);
      }
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
      pen.fillText(map.x.labels[j], 0, 0, 220);
      pen.restore();
    }
    pen.textAlign = "right";
    if (map.y.name)
      for (let i = 0; i < ny; i += every(ny, box.up))
        pen.fillText(map.y.labels[i], box.left - 6, Y(i + 0.5), box.left - 34);
    pen.textAlign = "center";
    pen.font = "bold 13px system-ui, sans-serif";
    pen.fillText(map.x.name, box.left + box.across / 2, box.height - 10);
    pen.save();
    pen.translate(12, box.top + box.up / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(map.y.name, 0, 0);
    pen.restore();
  }

  function legend() {
    const parts = [];
    const key = (box, text) => parts.push(element("span", null, { class: "key" }, [box, text]));
    const seen = slice().cells.map((cell) => cell.values[view.metric]);
    if (view.metric === 0) {
      data.outcomes.forEach((o, i) => {
        const count = seen.filter((v) => v === i).length;
        if (count) key(sweep.swatch(i), `${o.name} (${count})`);
      });
    } else {
      const { low, high, log, capped } = metric();
      const ramp = element("span", "", {
        class: "ramp",
        style: `background:linear-gradient(90deg, ${lab.VIRIDIS.join(",")})`,
      });
      parts.push(
        element("span", shown(metric(), low)),
        ramp,
        element("span", shown(metric(), high) + (capped ? " and more" : "")),
      );
      if (log) parts.push(element("span", "(logarithmic)", { class: "quiet" }));
      if (seen.includes("Infinity"))
        key(element("span", "", { class: "swatch", style: "background:var(--lost)" }), "lost");
    }
    if (slice().cells.length < nx * ny) {
      const text = slice().source ? "paler: not run, as its nearest" : "hatched: not run";
      parts.push(element("span", `${text} (${slice().cells.length} of ${nx * ny} were run)`, { class: "quiet" }));
    }
    byId("legend").replaceChildren(...parts);
  }

  // --- one point -----------------------------------------------------------------------------------------------

  const name = ([row, column]) =>
    [`${map.x.name} = ${map.x.labels[column]}`]
      .concat(map.y.name ? [`${map.y.name} = ${map.y.labels[row]}`] : [])
      .join(", ");

  function describe(place) {
    const cell = cellAt(...place);
    if (!cell) return `${name(place)}\nnot run`;
    const own = at.has(place[0] * nx + place[1]),
      jobs = cell.jobs.map((i) => sweep.jobs[i]);
    const lines = [name(own ? place : cell.at) + (own ? "" : " (the nearest that was run)")];
    lines.push(`${data.outcomes[cell.values[0]].name}: ${[...new Set(jobs.map((job) => job.verdict))].join(", ")}`);
    map.metrics.forEach((m, i) => {
      if (i && cell.values[i] !== null && (m.name !== "stable" || jobs.length > 1))
        lines.push(`${m.title}: ${shown(m, cell.values[i])}`);
    });
    lines.push(`${jobs.length > 1 ? "jobs" : "job"} ${jobs.map((job) => job.job).join(", ")}`);
    return lines.join("\n");
  }

  /** The edges of its rows. */
  function words() {
    const { lines, boundary } = slice();
    byId("boundary").hidden = !boundary.length;
    byId("rows").hidden = !lines.length;
    const names = [map.y.name, "stable up to", "unstable from", "learns up to", "sensitivity", "±", "lowest loss", "at"];
    byId("edge-rows").replaceChildren(
      lab.scroll(
        "the edge, row by row",
        sweep.table(
          names,
          lines.map((line, i) => [map.y.labels[i], ...line.map((v) => number(v))]),
        ),
      ),
    );
  }

  // --- what the reader does ------------------------------------------------------------------------------------

  function place(event) {
    const rect = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - rect.left - box.left) / box.w);
    const row = Math.floor((box.top + box.up - (event.clientY - rect.top)) / box.h);
    return column >= 0 && column < nx && row >= 0 && row < ny ? [row, column] : null;
  }

  function point(where, say) {
    view.cursor = where;
    tip.hidden = !where;
    if (where) {
      tip.textContent = describe(where);
      const x = X(where[1] + 1) + 8,
        wide = tip.offsetWidth;
      tip.style.left = `${x + wide > box.width ? Math.max(X(where[1]) - wide - 8, 0) : x}px`;
      tip.style.top = `${Math.max(Math.min(Y(where[0] + 1), box.height - tip.offsetHeight), 0)}px`;
      if (say) byId("live").textContent = tip.textContent;
    }
    draw();
  }

  const choose = (where) => {
    const cell = cellAt(...where);
    sweep.choose(cell ? cell.jobs : []);
  };

  /** Where the keys begin: at the first point that is chosen. */
  function home() {
    const found = state.chosen.length && slice().cells.find((cell) => cell.jobs.includes(state.chosen[0]));
    return found ? found.at : null;
  }

  function key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] },
      move = moves[event.key];
    const began = view.cursor || home(),
      now = began || [0, 0];
    if (move)
      point(
        began
          ? [Math.min(Math.max(now[0] + move[0], 0), ny - 1), Math.min(Math.max(now[1] + move[1], 0), nx - 1)]
          : now,
        true,
      );
    else if (event.key === "Home" || event.key === "End") point([now[0], event.key === "Home" ? 0 : nx - 1], true);
    else if (event.key === "Enter" || event.key === " ") choose(now);
    else if (event.key === "Escape") {
      point(null, false);
      sweep.choose([]);
    } else return;
    event.preventDefault();
  }

  function show() {
    byId("metric").value = view.metric;
    byId("slice").value = view.slice;
    index();
    words();
    legend();
    repaint();
  }

  let followed = null;

  /** What was chosen elsewhere may lie in another slice. */
  function follow() {
    const [first] = state.chosen,
      holds = (s) => s.cells.some((cell) => cell.jobs.includes(first));
    if (followed === state.chosen || first === undefined) return repaint();
    followed = state.chosen;
    if (holds(slice()) || !map.slices.some(holds)) return repaint();
    view.slice = map.slices.findIndex(holds);
    return show();
  }

  function repaint() {
    paint();
    draw();
  }

  function resize() {
    layout();
    repaint();
  }

  function set(name, value) {
    view[name] = value;
    show();
    sweep.remember();
  }

  function begin() {
    byId("map-view").hidden = false;
    byId("metric").append(...map.metrics.map((m, i) => element("option", m.title, { value: i, hidden: !m.measured })));
    byId("slice").append(...map.slices.map((s, i) => element("option", s.title, { value: i })));
    byId("slices").hidden = map.slices.length < 2;
    byId("refined").hidden = !data.cells.length;
    byId("refined").append(...data.cells.map((text) => element("li", text)));
    canvas.addEventListener("mousemove", (event) => point(place(event), false));
    canvas.addEventListener("mouseleave", () => point(null, false));
    canvas.addEventListener("click", (event) => {
      const where = place(event);
      if (where) choose(where);
    });
    canvas.addEventListener("blur", () => point(null, false));
    canvas.addEventListener("keydown", key);
    byId("metric").addEventListener("change", (event) => set("metric", Number(event.target.value)));
    byId("slice").addEventListener("change", (event) => set("slice", Number(event.target.value)));
    byId("controls").addEventListener("submit", (event) => event.preventDefault());
    lab.themed(repaint);
    addEventListener("resize", resize);
    layout();
    show();
    performance.mark("map drawn");
  }

  sweep.linked(
    "metric",
    () => (view.metric ? metric().name : ""),
    (text) => {
      view.metric = Math.max(
        map.metrics.findIndex((m) => m.name === text && m.measured),
        0,
      );
    },
  );
  sweep.linked(
    "slice",
    () => view.slice || "",
    (text) => {
      view.slice = Math.min(Math.max(Math.floor(Number(text)) || 0, 0), map.slices.length - 1);
      show();
    },
  );
  sweep.views.push({ begin, show: follow });
})();
