/* Curves of a few jobs, loss above gradient norm: a cursor and a zoom for both. */
sweep.charts = (() => {
  const { element, number } = lab,
    { data } = sweep;
  const COLOURS = ["--blue", "--orange", "--green", "--pink", "--amber", "--sky", "--grey"];
  const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "5 2", "1 3", "12 4"];
  const TITLES = ["training loss", "gradient norm, before clipping"],
    LOST = 3;
  const H = 200,
    left = 58,
    right = 8,
    top = 24,
    bottom = 24;

  const stroke = (k, many = true) =>
    `stroke:var(${COLOURS[k % 7]})` + (many && k ? `;stroke-dasharray:${DASHES[(k + Math.floor(k / 7)) % 7]}` : "");

  function svg(tag, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  /** A piece of line as it is drawn, for a legend. */
  function sample(style) {
    const made = svg("svg", { viewBox: "0 0 30 8", class: "sample", "aria-hidden": "true" });
    made.append(svg("path", { d: "M0 4H30", style }));
    return made;
  }

  /** A curve in words. */
  function ends(series) {
    const finite = series.filter((v) => v !== null);
    return finite.length ? `from ${number(finite[0])} to ${number(finite.at(-1))}` : "nothing finite";
  }

  /** A line a job over its attempts, logarithmic where all values are positive. lines: [{job, style}], view: see `pair` */
  function chart(lines, which, view) {
    const W = view.width,
      made = svg("svg", {
        viewBox: `0 0 ${W} ${H}`,
        class: "curve",
        role: "img",
        "aria-label": `${TITLES[which]} of ${lines.map(({ job }) => `job ${job.job} (${ends(job.curves[which])})`).join(", ")}`,
      });
    const add = (tag, attributes, text) => {
      const part = svg(tag, attributes, text);
      made.append(part);
      return part;
    };
    const [from, to] = view.range,
      inside = (at) => at >= from && at <= to;
    const values = lines
      .flatMap(({ job }) => job.curves[which].filter((v, i) => v !== null && inside(data.xs[job.x][i])))
      .map(Number);
    if (!values.length)
      return element("p", `${TITLES[which]}: nothing finite was measured${view.whole ? "" : " here"}`, {
        class: "quiet",
      });
    const title = add("text", { x: left, y: 14 }, TITLES[which]);
    let low = values.reduce((a, b) => Math.min(a, b)),
      high = values.reduce((a, b) => Math.max(a, b));
    const log = low > 0 && high > 4 * low,
      scale = log ? Math.log10 : (v) => v;
    if (scale(high) - scale(low) < 1e-9 * Math.max(1, Math.abs(scale(high))))
      [low, high] = log ? [low / 2, high * 2] : [low - Math.abs(low) / 2 - 1e-9, high + Math.abs(high) / 2 + 1e-9];
    const x = (v) => left + ((W - left - right) * (v - from)) / (to - from);
    const y = (v) => H - bottom - ((H - top - bottom) * (scale(v) - scale(low))) / (scale(high) - scale(low));
    for (const part of [0, 0.5, 1]) {
      const v = log ? 10 ** (scale(low) + part * (scale(high) - scale(low))) : low + part * (high - low);
      add("line", { x1: left, x2: W - right, y1: y(v), y2: y(v) });
      add("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, number(v, 3));
    }
    add("text", { x: left, y: H - 7 }, String(Math.round(from)));
    add("text", { x: W - right, y: H - 7, "text-anchor": "end" }, `update ${Math.round(to)}`);
    const place = { x: left - 5, y: top - 5, width: W - left - right + 10, height: H - top - bottom + 10 };
    const drawn = add("svg", { ...place, viewBox: Object.values(place).join(" ") }); // what lies outside is not seen
    for (const { job, style } of lines) {
      const series = job.curves[which],
        xs = data.xs[job.x];
      let path = "",
        drawing = false,
        end = null;
      series.forEach((v, i) => {
        if (v !== null && !(log && v <= 0)) {
          path += `${drawing ? "L" : "M"}${x(xs[i]).toFixed(1)} ${y(v).toFixed(1)}`;
          end = [x(xs[i]), y(v)];
        }
        drawing = v !== null;
      });
      if (!end) continue;
      drawn.append(svg("path", { d: path.includes("L") ? path : `${path}h2`, style }));
      if (job.outcome >= LOST)
        drawn.append(
          svg("path", {
            d: `M${end[0] - 4} ${end[1] - 4}l8 8m0-8l-8 8`,
            style: `${style};stroke-width:2;stroke-dasharray:none`,
          }),
        );
    }
    const cursor = add("line", { class: "cursor", y1: top, y2: H - bottom, x1: 0, x2: 0, visibility: "hidden" });
    const band = add("rect", { class: "band", y: top, height: H - top - bottom, width: 0 });
    made.place = (event) => {
      // the update under the pointer
      const rect = made.getBoundingClientRect();
      return from + ((((event.clientX - rect.left) * W) / rect.width - left) / (W - left - right)) * (to - from);
    };
    made.select = (a, b) => {
      band.setAttribute("x", x(Math.min(a, b)));
      band.setAttribute("width", Math.abs(x(b) - x(a)));
    };
    /** Show the values at an update, or none; returns them in words. */
    made.point = (at) => {
      cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
      title.textContent =
        at === null
          ? TITLES[which]
          : `${TITLES[which]}, update ${at}: ${lines
              .slice(0, 5)
              .map(({ job }) => number(job.curves[which][nearest(data.xs[job.x], at)]))
              .join(", ")}${lines.length > 5 ? " ..." : ""}`;
      if (at !== null) for (const name of ["x1", "x2"]) cursor.setAttribute(name, x(at));
      return title.textContent;
    };
    return made;
  }

  /** The place of the number that is nearest. */
  function nearest(xs, wanted) {
    let k = 0;
    for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - wanted) < Math.abs(xs[k] - wanted)) k = i;
    return k;
  }

  /** Both charts of some jobs over one range of updates. Drag, or + and -: zoom; arrows point; 0, Escape or a double click show all. */
  function pair(lines) {
    const xs = [...new Set(lines.flatMap(({ job }) => data.xs[job.x]))].sort((a, b) => a - b),
      last = xs.at(-1) || 1;
    const view = {
      range: [0, last],
      width: 560,
      get whole() {
        return this.range[0] === 0 && this.range[1] === last;
      },
    };
    const host = element("div", null, {
      class: "pair",
      tabindex: "0",
      role: "group",
      "aria-label": "curves; arrow keys point, plus and minus zoom, 0 shows all",
    });
    const spoken = element("div", null, { class: "unseen", "aria-live": "polite" }),
      all = element("button", "all updates", {
        type: "button",
        class: "screen",
        onclick: () => {
          zoom(0, last);
          host.focus();
        },
      });
    const keys = element("p", "Drag, or + and −: zoom; 0, or a double click: all updates.", { class: "quiet screen" });
    let charts = [],
      at = null,
      pressed = null;

    function zoom(low, high) {
      const least = Math.min(2, last);
      if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
      view.range = [Math.max(low, 0), Math.min(high, last)];
      charts = [0, 1].map((which) => chart(lines, which, view));
      all.hidden = view.whole;
      host.replaceChildren(...charts);
      charts = charts.filter((one) => one.point);
    }

    function point(update) {
      at = update === null || !xs.length ? null : xs[nearest(xs, update)];
      const inside = at !== null && at >= view.range[0] && at <= view.range[1] ? at : null;
      return charts.map((one) => one.point(inside)).join("; ");
    }

    function step(by) {
      const now = at ?? (by > 0 ? view.range[0] : view.range[1]),
        [low, high] = view.range,
        width = high - low;
      const to = xs[Math.min(Math.max(nearest(xs, now) + by, 0), xs.length - 1)];
      if (to < low || to > high) zoom(...(to < low ? [to, to + width] : [to - width, to]));
      spoken.textContent = point(to);
    }

    function scale(factor) {
      const [low, high] = view.range,
        middle = at !== null && at >= low && at <= high ? at : (low + high) / 2;
      zoom(middle - (middle - low) * factor, middle + (high - middle) * factor);
      point(at);
    }

    const over = (event) => charts.find((one) => one.contains(event.target));
    host.addEventListener("pointerdown", (event) => {
      const one = over(event);
      if (!one || event.button !== 0) return;
      pressed = { one, from: one.place(event), x: event.clientX };
      host.setPointerCapture(event.pointerId);
    });
    host.addEventListener("pointermove", (event) => {
      const one = pressed ? pressed.one : over(event);
      if (!one) return;
      const update = one.place(event),
        [low, high] = view.range;
      if (pressed)
        for (const each of charts)
          each.select(Math.min(Math.max(pressed.from, low), high), Math.min(Math.max(update, low), high));
      point(update >= low && update <= high ? update : null);
    });
    host.addEventListener("pointerup", (event) => {
      if (!pressed) return;
      const { one, from, x } = pressed,
        to = one.place(event);
      pressed = null;
      if (Math.abs(event.clientX - x) > 4) zoom(Math.min(from, to), Math.max(from, to));
    });
    host.addEventListener("pointerleave", () => {
      if (pressed) for (const one of charts) one.select(0, 0);
      pressed = null;
      point(null);
    });
    host.addEventListener("dblclick", () => zoom(0, last));
    host.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const actions = {
        ArrowLeft: () => step(-1),
        ArrowRight: () => step(1),
        "+": () => scale(0.5),
        "=": () => scale(0.5),
        "-": () => scale(2),
        0: () => zoom(0, last),
        Escape: () => zoom(0, last),
      };
      if (!actions[event.key]) return;
      actions[event.key]();
      event.preventDefault();
    });
    zoom(0, last);
    new ResizeObserver(() => {
      // what is written stays as large as elsewhere
      const width = host.firstElementChild.clientWidth;
      if (!width || Math.abs(width - view.width) < 2 || pressed) return;
      view.width = width;
      zoom(...view.range);
    }).observe(host);
    return element("div", null, {}, [host, element("div", null, { class: "row" }, [keys, all]), spoken]);
  }

  return { COLOURS, pair, sample, stroke, svg };
})();
