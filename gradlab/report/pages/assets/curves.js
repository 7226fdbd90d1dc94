"use strict";
/* Curves one above the other on one axis of updates: a cursor, a zoom and a reset for all. */
const curves = (() => {
  const { element, css, number } = lab;
  const LEFT = 66,
    RIGHT = 14;

  /** What all views share: the whole range, the range that is shown, and the update pointed at. */
  class Axis {
    constructor(low, high) {
      this.full = [low, Math.max(high, low + 1)];
      this.range = [...this.full];
      this.views = [];
      this.at = null;
    }
    get whole() {
      return this.range[0] === this.full[0] && this.range[1] === this.full[1];
    }
    zoom(low, high) {
      const least = Math.min(2, this.full[1] - this.full[0]);
      if (high - low < least) {
        const middle = (low + high) / 2;
        low = middle - least / 2;
        high = middle + least / 2;
      }
      low = Math.max(this.full[0], low);
      high = Math.min(this.full[1], high);
      if (!(high > low)) return;
      this.range = [low, high];
      for (const view of this.views) view.ranged();
    }
    reset() {
      this.zoom(...this.full);
    }
    scale(factor) {
      const middle =
        this.at !== null && this.at >= this.range[0] && this.at <= this.range[1]
          ? this.at
          : (this.range[0] + this.range[1]) / 2;
      this.zoom(middle - (middle - this.range[0]) * factor, middle + (this.range[1] - middle) * factor);
    }
    shift(part) {
      const width = this.range[1] - this.range[0];
      const low = Math.min(Math.max(this.range[0] + part * width, this.full[0]), this.full[1] - width);
      this.zoom(low, low + width);
    }
    point(at, from) {
      this.at = at;
      for (const view of this.views) if (view !== from) view.pointed(at);
    }
    /** More updates have come. */
    grow(low, high) {
      const whole = this.whole;
      this.full = [low, Math.max(high, low + 1)];
      if (whole) this.range = [...this.full];
    }
  }

  /** Ticks of a linear axis: 1, 2 or 5 times a power of ten apart. */
  function even(low, high, wanted) {
    const raw = (high - low) / Math.max(wanted, 1);
    if (!(raw > 0) || !Number.isFinite(raw)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw)),
      step = [1, 2, 5, 10].find((k) => k * power >= raw * 0.999) * power;
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
      ticks.push(+(k * step).toPrecision(12));
    return ticks;
  }

  /* A kind of scale: what is drawn of a value, and back; its ticks and their text. */
  const superscript = (k) => [...String(k)].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] || (c === "-" ? "⁻" : c)).join("");
  const SCALES = {
    linear: { to: (v) => v, from: (p) => p, positive: false, ticks: even, text: (p) => number(p) },
    log10: {
      to: Math.log10,
      from: (p) => 10 ** p,
      positive: true,
      ticks(low, high, wanted) {
        if (high - low > 2.2) return even(low, high, wanted).filter((p) => Number.isInteger(p));
        const ticks = [];
        for (let k = Math.floor(low); k <= Math.ceil(high); k++) {
          for (const m of high - low > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]) {
            const p = k + Math.log10(m);
            if (p >= low && p <= high) ticks.push(p);
          }
        }
        const every = Math.ceil(ticks.length / Math.max(wanted + 1, 2));
        if (ticks.length >= 2) return ticks.filter((_, i) => i % every === 0);
        return even(10 ** low, 10 ** high, wanted)
          .filter((v) => v > 0)
          .map(Math.log10);
      },
      text: (p) => (Number.isInteger(p) && (p > 4 || p < -3) ? `10${superscript(p)}` : number(10 ** p)),
    },
    log2: {
      to: Math.log2,
      from: (p) => 2 ** p,
      positive: true,
      ticks: (low, high, wanted) => even(low, high, wanted).filter((p) => Number.isInteger(p)),
      text: (p) => `2${superscript(p)}`,
    },
  };

  /** Whether a logarithmic scale shows more: nothing negative, and of very different sizes. */
  function ratherLog(lists) {
    let low = Infinity,
      high = -Infinity;
    for (const list of lists)
      for (const v of list)
        if (v != null && Number.isFinite(v)) {
          if (v < 0) return false;
          if (v && v < low) low = v;
          if (v > high) high = v;
        }
    return high / low > 30;
  }

  const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3] };

  function sample(colour, dash, points) {
    const ns = "http://www.w3.org/2000/svg",
      svg = document.createElementNS(ns, "svg"),
      line = document.createElementNS(ns, "path");
    svg.setAttribute("width", 22);
    svg.setAttribute("height", 10);
    svg.setAttribute("aria-hidden", "true");
    line.setAttribute("d", "M0 5H22");
    line.setAttribute("fill", "none");
    line.setAttribute("stroke-width", 2.2);
    line.style.stroke = `var(${colour})`;
    line.setAttribute("stroke-dasharray", DASHES[dash || "solid"].join(" "));
    svg.append(line);
    if (points) {
      const dot = document.createElementNS(ns, "circle");
      dot.setAttribute("cx", 11);
      dot.setAttribute("cy", 5);
      dot.setAttribute("r", 3.2);
      dot.style.fill = `var(${colour})`;
      svg.append(dot);
    }
    return svg;
  }

  /**
   * One chart. spec: id, title, scale ("auto" or a name), x (updates), series [{name, y, colour, dash, points, share}],
   * lines [{value, name}] across, marks [{x, kind}] ("skip", "grow"), events [{x, text}] upright lines.
   */
  class Chart {
    constructor(axis, host, spec, height = 150) {
      this.axis = axis;
      this.height = height;
      this.kind = null;
      this.root = element("figure", null, { class: "chart", "data-id": spec.id });
      this.head = element("figcaption", null, { class: "head" });
      this.body = element("div");
      this.root.append(this.head, this.body);
      host.append(this.root);
      this.set(spec);
    }
    set(spec) {
      this.spec = spec;
      const auto = spec.scale === "auto" ? (ratherLog(spec.series.map((s) => s.y)) ? "log10" : "linear") : spec.scale;
      this.name = spec.scale === "auto" && this.kind ? this.kind : auto;
      const scale = SCALES[this.name];
      const drawn = (v) => (v == null ? v : !Number.isFinite(v) || (scale.positive && v <= 0) ? null : scale.to(v)); // undefined: no point here
      this.data = [spec.x, ...spec.series.map((s) => s.y.map(drawn))];
      this.outside = this.special(scale);
      this.heading();
      if (this.plot && this.plot.series.length === this.data.length && this.drawnAs === this.name) {
        this.plot.setData(this.data, false);
        this.ranged();
      } else this.build();
    }
    /** Points that no curve can show: not finite, or zero where the scale is logarithmic. */
    special(scale) {
      const found = [];
      for (const s of this.spec.series)
        s.y.forEach((v, i) => {
          if (v == null) return;
          const sign = Number.isNaN(v)
            ? "✕"
            : v === Infinity
              ? "▲"
              : v === -Infinity
                ? "▼"
                : scale.positive && v <= 0
                  ? "○"
                  : null;
          if (sign) found.push({ x: this.spec.x[i], sign, name: s.name });
        });
      return found;
    }
    heading() {
      const s = this.spec;
      this.outputs = [];
      const keys = s.series.map((one) => {
        const output = element("output");
        this.outputs.push(output);
        return element("span", null, { class: "key" }, [
          sample(one.colour, one.dash, one.points),
          element("span", one.name),
          output,
        ]);
      });
      for (const line of s.lines || [])
        keys.push(
          element("span", null, { class: "key quiet" }, [sample("--ink", "dotted"), element("span", line.name)]),
        );
      const labels = { "✕": "NaN", "▲": "infinite", "▼": "minus infinity", "○": "zero" };
      const marks = [];
      for (const [sign, what] of Object.entries(labels)) {
        const count = this.outside.filter((m) => m.sign === sign).length;
        if (count)
          marks.push(
            element("span", `${sign} ${what} (${count})`, { class: sign === "○" ? "key quiet" : "key critical" }),
          );
      }
      for (const [kind, text] of [
        ["skip", "▼ skipped"],
        ["grow", "▲ grown"],
      ]) {
        const count = (s.marks || []).filter((m) => m.kind === kind).length;
        if (count)
          marks.push(element("span", `${text} (${count})`, { class: kind === "skip" ? "key critical" : "key good" }));
      }
      const tools = [];
      if (s.scale === "auto") {
        const log = this.name === "log10";
        tools.push(
          element("button", "log", {
            type: "button",
            class: "screen",
            "aria-pressed": String(log),
            "aria-label": `${s.title}: logarithmic scale`,
            onclick: () => {
              this.kind = log ? "linear" : "log10";
              this.set(this.spec);
              this.head.querySelector("button").focus();
            },
          }),
        );
      }
      this.head.replaceChildren(element("h3", s.title), ...keys, ...marks, ...tools);
      this.read(this.axis.at);
    }
    /** Write the values at an update, else the last ones, beside the names. */
    read(at) {
      const x = this.spec.x;
      let index = x.length - 1;
      if (at !== null) {
        let low = 0;
        while (low < index) {
          const middle = (low + index + 1) >> 1;
          if (x[middle] <= at) low = middle;
          else index = middle - 1;
        }
      }
      this.spec.series.forEach((s, k) => {
        let i = index;
        while (i > 0 && s.y[i] == null) i--;
        const v = index < 0 || i < 0 ? null : s.y[i];
        this.outputs[k].textContent = v === null || v === undefined ? "-" : s.share ? lab.percent(v) : number(v);
      });
    }
    limits(low, high) {
      const scale = SCALES[this.name];
      for (const line of this.spec.lines || []) {
        const p = scale.positive && line.value <= 0 ? null : scale.to(line.value);
        if (p === null || !Number.isFinite(p)) continue;
        if (low === null || low === undefined) {
          low = p;
          high = p;
        } else if (line.always || scale.positive || (p < high * 3 && p > low - 3 * (high - low))) {
          low = Math.min(low, p);
          high = Math.max(high, p);
        }
      }
      if (low === null || low === undefined) return [0, 1];
      if (this.spec.least) {
        low = Math.min(low, this.spec.least[0]);
        high = Math.max(high, this.spec.least[1]);
      }
      const room = high - low,
        pad = room > 0 ? room * 0.07 : scale.positive ? 0.3 : Math.abs(high) * 0.1 || 1;
      return [low - pad, high + pad];
    }
    build() {
      if (this.plot) this.plot.destroy();
      this.drawnAs = this.name;
      const scale = SCALES[this.name];
      const stroke = () => css("--quiet"),
        grid = { stroke: () => css("--grid"), width: 1 };
      const wanted = (u) => Math.max(2, Math.round(u.bbox.height / devicePixelRatio / 34));
      const series = this.spec.series.map((s) => ({
        label: s.name,
        stroke: () => css(s.colour),
        width: 1.7,
        dash: DASHES[s.dash || "solid"],
        spanGaps: Boolean(s.points || s.bridge),
        points: {
          show: s.points ? true : (u, k) => this.sparse(k),
          filter: (u, k, show) => (show ? null : this.alone(k)),
          size: s.points ? 7 : 5,
          fill: () => css(s.colour),
          stroke: () => css(s.colour),
        },
        ...(s.step ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
      }));
      this.plot = new uPlot(
        {
          width: Math.max(this.body.clientWidth, 200),
          height: this.height,
          padding: [10, RIGHT, 0, 0],
          legend: { show: false },
          scales: {
            x: { time: false, range: () => this.axis.range },
            y: { range: (u, low, high) => this.limits(low, high) },
          },
          axes: [
            {
              stroke,
              grid,
              ticks: grid,
              size: 26,
              font: "11px system-ui, sans-serif",
              values: (u, list) => list.map((v) => (Number.isInteger(v) ? String(v) : "")),
            },
            {
              stroke,
              grid,
              ticks: grid,
              size: LEFT,
              font: "11px system-ui, sans-serif",
              splits: (u, k, low, high) => scale.ticks(low, high, wanted(u)),
              values: (u, list) =>
                list.map((p) => (this.spec.share && this.name === "linear" ? lab.percent(p) : scale.text(p))),
            },
          ],
          series: [{}, ...series],
          cursor: {
            y: false,
            drag: { x: true, y: false, setScale: false },
            points: { size: 8 },
            bind: {
              dblclick: () => () => {
                this.axis.reset();
                return null;
              },
            },
          },
          hooks: {
            setSelect: [
              (u) => {
                if (u.select.width < 3) return;
                const [a, b] = [u.select.left, u.select.left + u.select.width].map((p) => u.posToVal(p, "x"));
                u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
                this.axis.zoom(a, b);
              },
            ],
            setCursor: [
              (u) => {
                if (this.quiet) return;
                const at =
                  u.cursor.left === null || u.cursor.left < 0 ? null : Math.round(u.posToVal(u.cursor.left, "x"));
                this.read(at);
                this.axis.point(at, this);
              },
            ],
            draw: [(u) => this.marks(u)],
          },
        },
        this.data,
        this.body,
      );
    }
    /** Few points, or points with nothing beside them, are drawn as dots. */
    sparse(k) {
      const [low, high] = this.axis.range;
      let count = 0;
      for (let i = 0; i < this.data[0].length; i++)
        if (this.data[k][i] != null && this.data[0][i] >= low && this.data[0][i] <= high && ++count > 40) return false;
      return true;
    }
    /** Points with no curve on either side. */
    alone(k) {
      const y = this.data[k],
        found = [],
        side = (i, step) => {
          do i += step;
          while (i >= 0 && i < y.length && y[i] === undefined);
          return y[i] ?? null;
        };
      for (let i = 0; i < y.length; i++) if (y[i] != null && side(i, -1) === null && side(i, 1) === null) found.push(i);
      return found;
    }
    marks(u) {
      const pen = u.ctx,
        ratio = devicePixelRatio,
        { left, top, width, height } = u.bbox,
        scale = SCALES[this.name];
      pen.save();
      pen.beginPath();
      pen.rect(left - 6 * ratio, top - 9 * ratio, width + 12 * ratio, height + 10 * ratio);
      pen.clip();
      pen.font = `${11 * ratio}px system-ui, sans-serif`;
      for (const event of this.spec.events || []) {
        const x = u.valToPos(event.x, "x", true);
        if (x < left || x > left + width) continue;
        pen.strokeStyle = css(event.colour || "--rule");
        pen.lineWidth = ratio;
        pen.setLineDash(event.colour ? [5 * ratio, 3 * ratio] : []);
        pen.beginPath();
        pen.moveTo(x, top);
        pen.lineTo(x, top + height);
        pen.stroke();
        if (event.text) {
          const right = x + pen.measureText(event.text).width + 8 * ratio > left + width;
          pen.fillStyle = css(event.colour || "--quiet");
          pen.textAlign = right ? "right" : "left";
          pen.fillText(event.text, x + (right ? -4 : 4) * ratio, top + height - (event.colour ? 19 : 5) * ratio);
        }
      }
      pen.strokeStyle = css("--ink");
      pen.lineWidth = 1.3 * ratio;
      pen.setLineDash([2 * ratio, 3 * ratio]);
      for (const line of this.spec.lines || []) {
        if (scale.positive && line.value <= 0) continue;
        const y = u.valToPos(scale.to(line.value), "y", true);
        if (y < top - 1 || y > top + height + 1) continue;
        pen.beginPath();
        pen.moveTo(left, y);
        pen.lineTo(left + width, y);
        pen.stroke();
      }
      pen.setLineDash([]);
      pen.textAlign = "center";
      const last = new Map();
      const sign = (x, text, y, colour) => {
        const place = u.valToPos(x, "x", true),
          line = `${text}${y}`;
        if (place < left - 1 || place > left + width + 1 || place - (last.get(line) ?? -1e9) < 5 * ratio) return;
        last.set(line, place);
        pen.fillStyle = css(colour);
        pen.fillText(text, place, y);
      };
      for (const m of this.outside)
        sign(
          m.x,
          m.sign,
          m.sign === "○" || m.sign === "▼" ? top + height : top + 4 * ratio,
          m.sign === "○" ? "--quiet" : "--critical",
        );
      for (const m of this.spec.marks || [])
        sign(
          m.x,
          m.kind === "skip" ? "▼" : "▲",
          m.kind === "skip" ? top + 4 * ratio : top + height,
          m.kind === "skip" ? "--critical" : "--good",
        );
      pen.restore();
    }
    ranged() {
      this.plot.setScale("x", { min: this.axis.range[0], max: this.axis.range[1] });
    }
    pointed(at) {
      this.read(at);
      this.quiet = true;
      const left = at === null ? -10 : this.plot.valToPos(at, "x");
      this.plot.setCursor({ left: at === null || left < 0 ? -10 : left, top: 0 }, false, false);
      this.quiet = false;
    }
    resize() {
      this.plot.setSize({ width: Math.max(this.body.clientWidth, 200), height: this.height });
    }
    redraw() {
      this.plot.redraw(false, false);
    }
  }

  /** A stack of charts. Keys: arrows point, + and - zoom, Escape or 0 shows all. */
  class Timeline {
    constructor(host, axis) {
      this.axis = axis;
      this.charts = [];
      this.state = element("output", null, { class: "quiet" });
      const button = (text, says, action) =>
        element("button", text, { type: "button", "aria-label": says, title: says, onclick: action });
      const bar = element("div", null, { class: "bar screen" }, [
        button("+", "zoom in (key +)", () => axis.scale(0.5)),
        button("−", "zoom out (key −)", () => axis.scale(2)),
        button("whole run", "whole run (key 0, or double click)", () => axis.reset()),
        this.state,
      ]);
      this.host = element("div", null, {
        class: "timeline",
        tabindex: "0",
        role: "slider",
        "aria-label": "update pointed at",
        onkeydown: (event) => this.key(event),
      });
      this.spoken = element("div", null, { class: "unseen", "aria-live": "polite" });
      host.append(bar, this.host, this.spoken);
      axis.views.push(this);
      addEventListener("resize", () => this.charts.forEach((c) => c.resize()));
      lab.themed(() => this.charts.forEach((c) => c.redraw()));
      this.host.addEventListener("dblclick", () => axis.reset());
      this.ranged();
    }
    show(specs) {
      const ids = specs.map((s) => s.id).join(),
        before = this.charts.map((c) => c.spec.id).join();
      if (ids === before) specs.forEach((spec, i) => this.charts[i].set(spec));
      else {
        this.axis.views = this.axis.views.filter((view) => !this.charts.includes(view));
        this.host.replaceChildren();
        this.charts = specs.map((spec) => new Chart(this.axis, this.host, spec, spec.height || 150));
        this.axis.views.push(...this.charts);
      }
      this.ranged();
    }
    ranged() {
      const [low, high] = this.axis.range.map(Math.round),
        [from, to] = this.axis.full;
      this.state.textContent = !this.axis.whole
        ? `updates ${low} to ${high} of ${from} to ${to}; double click shows all`
        : from === to
          ? `update ${from}`
          : `updates ${from} to ${to}; drag to zoom`;
      this.host.setAttribute("aria-valuemin", from);
      this.host.setAttribute("aria-valuemax", to);
      this.host.setAttribute("aria-valuenow", this.axis.at ?? to);
    }
    pointed(at) {
      if (at !== null) this.host.setAttribute("aria-valuenow", at);
    }
    key(event) {
      if (event.target !== this.host || event.ctrlKey || event.metaKey || event.altKey) return;
      const { axis } = this,
        width = axis.range[1] - axis.range[0],
        now = axis.at ?? axis.range[1];
      const to = (at) => {
        at = Math.round(Math.min(Math.max(at, axis.full[0]), axis.full[1]));
        if (at < axis.range[0] || at > axis.range[1]) axis.zoom(at - width / 2, at + width / 2);
        axis.point(at);
        const says = this.charts
          .map((c) => c.spec.series.map((s, i) => `${s.name} ${c.outputs[i].textContent}`).join(", "))
          .join("; ");
        this.spoken.textContent = `update ${at}: ${says}`;
        this.host.setAttribute("aria-valuetext", `update ${at}: ${says}`);
      };
      const keys = {
        ArrowLeft: () => to(now - (event.shiftKey ? Math.max(width / 20, 1) : 1)),
        ArrowRight: () => to(now + (event.shiftKey ? Math.max(width / 20, 1) : 1)),
        Home: () => to(axis.full[0]),
        End: () => to(axis.full[1]),
        PageUp: () => axis.shift(-0.5),
        PageDown: () => axis.shift(0.5),
        "+": () => axis.scale(0.5),
        "=": () => axis.scale(0.5),
        "-": () => axis.scale(2),
        0: () => axis.reset(),
        Escape: () => axis.reset(),
      };
      if (!keys[event.key]) return;
      keys[event.key]();
      event.preventDefault();
    }
  }

  return { Axis, Chart, Timeline, SCALES, even, ratherLog, sample, superscript };
})();
