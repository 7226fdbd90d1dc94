"use strict";
/* A heat map of layers by updates, on a canvas, with the zoom and the cursor of the curves. */
const heat = (() => {
  const { element, css, number } = lab;
  /* Blue is below, yellow is at, red is above the middle; distinguishable by all readers. */
  const DIVERGING = ["#053061", "#2166ac", "#4393c3", "#92c5de", "#f7f0c8", "#f4a582", "#d6604d", "#b2182b", "#67001f"];

  class Heat {
    /** axis: shared. chosen(column): called when an update is chosen. */
    constructor(host, axis, label, chosen) {
      Object.assign(this, { axis, chosen, cell: null });
      this.canvas = element("canvas", null, { tabindex: "0", role: "application", "aria-label": label });
      this.tip = element("div", null, { class: "tip", hidden: true });
      this.frame = element("div", null, { class: "heat" }, [this.canvas, this.tip]);
      this.legend = element("div", null, { class: "legend" });
      this.spoken = element("div", null, { class: "unseen", "aria-live": "polite" });
      host.append(this.frame, this.legend, this.spoken);
      this.canvas.addEventListener("pointermove", (event) => this.hover(event));
      this.canvas.addEventListener("pointerleave", () => this.leave());
      this.canvas.addEventListener("blur", () => this.leave());
      this.canvas.addEventListener("click", () => {
        if (this.cell && this.chosen) this.chosen(this.cell[1]);
      });
      this.canvas.addEventListener("dblclick", () => axis.reset());
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      addEventListener("resize", () => this.draw());
      lab.themed(() => {
        this.legends();
        this.draw();
      });
      axis.views.push(this);
    }
    /** data: rows (names), columns (updates), values (rows x columns; null: not measured), title, scale, middle, limit. */
    set(data) {
      this.data = data;
      let low = Infinity,
        high = -Infinity;
      for (const row of data.values)
        for (const v of row)
          if (v !== null && Number.isFinite(v) && (data.linear || v > 0)) {
            if (v < low) low = v;
            if (v > high) high = v;
          }
      const [least, most] = [low, high];
      if (data.bounds) [low, high] = data.bounds;
      if (!(low <= high)) [low, high] = data.linear ? [0, 1] : [1e-3, 1];
      if (data.middle) {
        const far = Math.min(Math.max(high / data.middle, data.middle / low, 10), 1e4);
        [low, high] = [data.middle / far, data.middle * far];
      }
      Object.assign(this, { low, high, below: least < low * 0.999, above: most > high * 1.001 });
      this.colours = new Map();
      this.legends();
      this.draw();
    }
    place(v) {
      const to = this.data.linear ? (x) => x : Math.log;
      return this.high > this.low ? (to(v) - to(this.low)) / (to(this.high) - to(this.low)) : 0.5;
    }
    colour(v) {
      if (Number.isNaN(v)) return css("--pink");
      if (!Number.isFinite(v)) return css("--ink");
      if (v === 0 && !this.data.linear) return "zero";
      const k = Math.round(Math.min(Math.max(this.place(Math.abs(v)), 0), 1) * 255);
      if (!this.colours.has(k))
        this.colours.set(k, `rgb(${lab.ramp(k / 255, this.data.middle ? DIVERGING : lab.VIRIDIS).join(",")})`);
      return this.colours.get(k);
    }
    hatched(pen) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const p = tile.getContext("2d");
      p.fillStyle = css("--paper");
      p.fillRect(0, 0, 6, 6);
      p.strokeStyle = css("--hatch");
      p.beginPath();
      for (const shift of [-6, 0, 6]) {
        p.moveTo(shift, 6);
        p.lineTo(shift + 6, 0);
      }
      p.stroke();
      return pen.createPattern(tile, "repeat");
    }
    layout() {
      const { rows } = this.data,
        width = Math.max(this.frame.clientWidth, 200),
        pen = this.canvas.getContext("2d");
      pen.font = "11px system-ui, sans-serif";
      const widest = Math.max(...rows.map((name) => pen.measureText(name).width), 20);
      const left = Math.min(Math.max(widest + 10, 66), width * 0.35),
        tall = Math.min(Math.max(rows.length * 16, 34), 620);
      this.box = {
        left,
        top: 4,
        across: width - left - 14,
        down: tall,
        width,
        height: tall + 28,
        h: tall / Math.max(rows.length, 1),
      };
      const ratio = devicePixelRatio || 1;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.box.height * ratio);
      this.canvas.style.height = `${this.box.height}px`;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      return pen;
    }
    X(at) {
      const [low, high] = this.axis.range;
      return this.box.left + ((at - low) / (high - low || 1)) * this.box.across;
    }
    /** Where a record begins and ends on the axis: it stands for the updates up to the next one. */
    span(j) {
      const c = this.data.columns,
        usual = c.length > 1 ? (c[c.length - 1] - c[0]) / (c.length - 1) : 1;
      return [
        c[j],
        j + 1 < c.length ? c[j + 1] : Math.min(c[j] + Math.max(usual, 1), Math.max(this.axis.full[1], c[j] + 1)),
      ];
    }
    draw() {
      if (!this.data || !this.frame.clientWidth) return;
      const pen = this.layout(),
        { box, data } = this,
        hatch = this.hatched(pen),
        ratio = devicePixelRatio || 1;
      pen.fillStyle = css("--raised");
      pen.fillRect(box.left, box.top, box.across, box.down);
      pen.save();
      pen.beginPath();
      pen.rect(box.left, box.top, box.across, box.down);
      pen.clip();
      const snap = (v) => Math.round(v * ratio) / ratio;
      data.columns.forEach((_, j) => {
        const [a, b] = this.span(j).map((at) => snap(this.X(at)));
        if (b < box.left || a > box.left + box.across) return;
        for (let i = 0; i < data.rows.length; i++) {
          const v = data.values[i][j];
          if (v === null || v === undefined) continue;
          const y = snap(box.top + i * box.h),
            h = snap(box.top + (i + 1) * box.h) - y,
            w = Math.max(b - a, 1 / ratio),
            colour = this.colour(v);
          pen.fillStyle = colour === "zero" ? hatch : colour;
          pen.fillRect(a, y, w, h);
          if (!Number.isFinite(v) && h > 8) {
            pen.fillStyle = css("--paper");
            pen.font = "9px system-ui, sans-serif";
            pen.textAlign = "center";
            pen.textBaseline = "middle";
            if (w > 7) pen.fillText(Number.isNaN(v) ? "✕" : "∞", a + w / 2, y + h / 2);
          }
          if (data.limit && Math.abs(v) > data.limit && h > 5) {
            pen.strokeStyle = css("--critical");
            pen.lineWidth = 2;
            pen.strokeRect(a + 1, y + 1, Math.max(w - 2, 1), h - 2);
          }
        }
      });
      pen.restore();
      this.axes(pen);
      if (this.axis.at !== null && this.axis.at >= this.axis.range[0] && this.axis.at <= this.axis.range[1]) {
        pen.strokeStyle = css("--focus");
        pen.lineWidth = 1;
        pen.beginPath();
        pen.moveTo(this.X(this.axis.at), box.top);
        pen.lineTo(this.X(this.axis.at), box.top + box.down);
        pen.stroke();
      }
      if (this.cell) {
        const [i, j] = this.cell,
          [a, b] = this.span(j).map((at) => Math.min(Math.max(this.X(at), box.left), box.left + box.across));
        pen.strokeStyle = css("--focus");
        pen.lineWidth = 2;
        pen.strokeRect(a, box.top + i * box.h, Math.max(b - a, 2), box.h);
      }
    }
    axes(pen) {
      const { box, data } = this,
        every = Math.max(1, Math.ceil(13 / box.h));
      pen.fillStyle = css("--quiet");
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      for (let i = 0; i < data.rows.length; i += every) {
        let name = data.rows[i];
        while (name.length > 4 && pen.measureText(name).width > box.left - 8) name = `…${name.slice(2)}`;
        pen.fillText(name, box.left - 6, box.top + (i + 0.5) * box.h);
      }
      pen.textAlign = "center";
      pen.textBaseline = "top";
      for (const at of curves.even(...this.axis.range, Math.max(2, box.across / 90)))
        if (Number.isInteger(at)) pen.fillText(String(at), this.X(at), box.top + box.down + 6);
    }
    legends() {
      if (!this.data) return;
      const { data } = this,
        all = data.values.flat(),
        parts = [];
      const ramp = element("span", null, { class: "ramp" });
      const stops = Array.from(
        { length: 12 },
        (_, k) => `rgb(${lab.ramp(k / 11, data.middle ? DIVERGING : lab.VIRIDIS).join(",")})`,
      );
      ramp.style.background = `linear-gradient(90deg, ${stops.join(",")})`;
      const text = (v) => (data.share ? lab.percent(v) : number(v, 3));
      const any = data.linear || all.some((v) => v !== null && Number.isFinite(v) && v !== 0);
      if (any)
        parts.push(
          element("span", null, {}, [
            element("span", (this.below ? "≤ " : "") + text(this.low)),
            ramp,
            element("span", (this.above ? "≥ " : "") + text(this.high)),
          ]),
        );
      if (any && data.middle)
        parts.push(element("span", `yellow: about ${number(data.middle)}; blue below, red above`));
      const key = (says, style) => {
        const s = element("i", null, { class: "swatch" });
        Object.assign(s.style, style);
        parts.push(element("span", null, {}, [s, element("span", says)]));
      };
      if (all.some((v) => v === 0) && !data.linear)
        key("zero", {
          background: `repeating-linear-gradient(-45deg, ${css("--hatch")} 0 1px, ${css("--paper")} 1px 4px)`,
        });
      if (all.some((v) => v !== null && v === Infinity)) key("∞ infinite", { background: css("--ink") });
      if (all.some((v) => Number.isNaN(v))) key("✕ NaN", { background: css("--pink") });
      if (data.limit && all.some((v) => Math.abs(v) > data.limit))
        key(`beyond ${data.limit}`, { border: `2px solid ${css("--critical")}` });
      if (data.columns.length && this.span(data.columns.length - 1)[1] < this.axis.full[1] - 1)
        key("not measured", { background: css("--raised") });
      this.legend.replaceChildren(element("span", data.title), ...parts);
    }
    at(event) {
      const { left, top } = this.canvas.getBoundingClientRect(),
        x = event.clientX - left,
        y = event.clientY - top,
        { box, data } = this;
      if (!box || x < box.left || x > box.left + box.across || y < box.top || y >= box.top + box.down) return null;
      const [low, high] = this.axis.range,
        at = low + ((x - box.left) / box.across) * (high - low);
      let j = data.columns.length - 1;
      while (j > 0 && data.columns[j] > at) j--;
      return data.columns.length ? [Math.min(Math.floor((y - box.top) / box.h), data.rows.length - 1), j] : null;
    }
    hover(event) {
      const cell = this.at(event);
      if (!cell) {
        this.leave();
        return;
      }
      this.choose(cell);
    }
    choose(cell, spoken = false) {
      this.cell = cell;
      const [i, j] = cell,
        { data, box } = this,
        v = data.values[i][j];
      const says = v === null || v === undefined ? "not measured" : data.share ? lab.percent(v) : number(v);
      this.tip.textContent = `${data.rows[i]}\nupdate ${data.columns[j]}\n${data.title}: ${says}`;
      this.tip.hidden = false;
      const x = Math.min(Math.max(this.X(data.columns[j]), box.left), box.left + box.across),
        w = this.tip.offsetWidth;
      this.tip.style.left = `${x + 14 + w > box.width ? Math.max(x - w - 10, 0) : x + 14}px`;
      this.tip.style.top = `${box.top + (i + 1) * box.h + 6}px`;
      if (spoken) this.spoken.textContent = `${data.rows[i]}, update ${data.columns[j]}: ${says}`;
      this.axis.point(data.columns[j], this);
      this.draw();
    }
    leave() {
      if (this.tip.hidden && !this.cell) return;
      this.tip.hidden = true;
      this.cell = null;
      this.axis.point(null, this);
      this.draw();
    }
    key(event) {
      const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] },
        { data } = this;
      if (!data || !data.columns.length) return;
      if (event.key === "Enter" && this.cell && this.chosen) this.chosen(this.cell[1]);
      else if (event.key === "Escape") {
        this.leave();
        this.axis.reset();
      } else if (moves[event.key]) {
        const [i, j] = this.cell || [0, -1],
          [di, dj] = this.cell ? moves[event.key] : [0, 1];
        const clamp = (k, n) => Math.min(Math.max(k, 0), n - 1),
          next = [clamp(i + di, data.rows.length), clamp(j + dj, data.columns.length)];
        const at = data.columns[next[1]],
          [low, high] = this.axis.range;
        if (at < low || at > high) this.axis.zoom(at - (high - low) / 2, at + (high - low) / 2);
        this.choose(next, true);
      } else return;
      event.preventDefault();
    }
    ranged() {
      this.draw();
    }
    pointed() {
      this.draw();
    }
  }

  return { Heat };
})();
