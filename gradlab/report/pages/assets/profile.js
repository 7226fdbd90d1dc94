"use strict";
/* Norms by depth at a chosen update, and the range of activations of every module, as small SVG drawings. */
const profile = (() => {
  const { element, number } = lab;
  const NS = "http://www.w3.org/2000/svg";

  function shape(name, attributes, text) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const extremes = (lists) => {
    let low = Infinity,
      high = -Infinity;
    for (const list of lists)
      for (const v of list)
        if (v !== null && Number.isFinite(v) && v > 0) {
          if (v < low) low = v;
          if (v > high) high = v;
        }
    return low <= high ? [Math.log10(low), Math.log10(high)] : [-1, 0];
  };

  /** A slider over the records, and the values of all rows at the chosen one, in the order in which layers run. */
  class Profile {
    constructor(host, moved) {
      this.index = null;
      this.slider = element("input", null, {
        type: "range",
        min: 0,
        max: 0,
        value: 0,
        step: 1,
        "aria-label": "update of the profile",
        id: "profile-at",
        oninput: () => {
          this.index = Number(this.slider.value);
          this.draw();
          moved(this.data.columns[this.index]);
        },
      });
      this.output = element("output", null, { for: "profile-at" });
      this.plot = element("div");
      host.append(
        element("div", null, { class: "profile" }, [
          element("h3", "Profile by depth"),
          element("div", null, { class: "bar screen" }, [
            element("label", "update", { for: "profile-at" }),
            this.slider,
            this.output,
          ]),
          element("p", null, { class: "quiet" }, [
            "From the first layer that runs (left) to the last (right). Dashed: the first record. The slider moves with the arrow keys; a click in the map above chooses its update.",
          ]),
          this.plot,
        ]),
      );
      addEventListener("resize", () => this.data && this.draw());
    }
    set(data) {
      const last = this.data ? this.index === this.latest(this.data) : true;
      this.data = data;
      this.slider.max = Math.max(data.columns.length - 1, 0);
      if (this.index === null || last) this.index = this.latest(data);
      this.choose(Math.min(this.index, data.columns.length - 1));
    }
    /** The last record that can be drawn. */
    latest(data) {
      let at = data.columns.length - 1;
      while (at > 0 && !data.values.some((row) => row[at] !== null && Number.isFinite(row[at]) && row[at] > 0)) at--;
      return data.values.some((row) => row[at] > 0) ? at : data.columns.length - 1;
    }
    choose(index) {
      this.index = index;
      this.slider.value = index;
      this.draw();
    }
    draw() {
      const { data, index } = this,
        width = Math.max(this.plot.clientWidth, 320),
        n = data.rows.length;
      const at = data.columns[index],
        [low, high] = extremes(data.values),
        pad = Math.max((high - low) * 0.06, 0.2);
      const longest = Math.max(...data.rows.map((name) => name.length)),
        named = n <= Math.max(8, width / 22);
      const left = 66,
        right = 14,
        top = 14,
        down = 190,
        bottom = named ? Math.min(longest * 3.9 + 20, 110) : 30;
      const X = (i) => left + (n > 1 ? (i / (n - 1)) * (width - left - right - 24) + 12 : (width - left - right) / 2);
      const Y = (v) => top + down - ((Math.log10(v) - low + pad) / (high - low + 2 * pad)) * down;
      const svg = shape("svg", {
        class: "plot",
        viewBox: `0 0 ${width} ${top + down + bottom}`,
        role: "img",
        "aria-label": `${data.title} by depth at update ${at}`,
      });
      for (const p of curves.SCALES.log10.ticks(low - pad, high + pad, 5)) {
        svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: Y(10 ** p), y2: Y(10 ** p) }));
        svg.append(
          shape("text", { x: left - 8, y: Y(10 ** p) + 4, "text-anchor": "end" }, curves.SCALES.log10.text(p)),
        );
      }
      const every = named ? 1 : Math.ceil(n / (width / 60));
      data.rows.forEach((name, i) => {
        if (i % every) return;
        if (!named) {
          svg.append(shape("text", { x: X(i), y: top + down + 18, "text-anchor": "middle" }, String(i + 1)));
          return;
        }
        const shown = name.length > 24 ? `…${name.slice(-23)}` : name;
        svg.append(
          shape(
            "text",
            { x: 0, y: 0, "text-anchor": "end", transform: `translate(${X(i) + 4} ${top + down + 12}) rotate(-40)` },
            shown,
          ),
        );
      });
      const line = (column, attributes, dots) => {
        let path = "",
          pen = false;
        data.rows.forEach((name, i) => {
          const v = data.values[i][column];
          if (v === null || v === undefined || !Number.isFinite(v) || v <= 0) {
            pen = false;
            if (dots && v !== null && v !== undefined) {
              const sign = v === 0 ? "○" : Number.isNaN(v) ? "✕" : "▲",
                y = v === 0 ? top + down : top + 4;
              const mark = shape(
                "text",
                { x: X(i), y, "text-anchor": "middle", style: `fill:var(${v === 0 ? "--quiet" : "--critical"})` },
                sign,
              );
              mark.append(shape("title", {}, `${name}: ${v === 0 ? "zero" : number(v)}`));
              svg.append(mark);
            }
            return;
          }
          path += `${pen ? "L" : "M"}${X(i).toFixed(1)} ${Y(v).toFixed(1)}`;
          pen = true;
          if (dots) {
            const dot = shape("circle", { cx: X(i), cy: Y(v), r: 4, style: "fill:var(--blue)" });
            dot.append(shape("title", {}, `${name}: ${number(v)}`));
            svg.append(dot);
          }
        });
        if (path) svg.prepend(shape("path", { d: path, fill: "none", ...attributes }));
      };
      if (index !== 0) line(0, { style: "stroke:var(--grey)", "stroke-width": 1.4, "stroke-dasharray": "5 4" }, false);
      line(index, { style: "stroke:var(--blue)", "stroke-width": 1.8 }, true);
      this.plot.replaceChildren(svg);
      const known = data.values.map((row) => row[index]).filter((v) => v !== null && Number.isFinite(v) && v > 0);
      const says =
        known.length > 1 ? `; largest over smallest ${number(Math.max(...known) / Math.min(...known), 3)}` : "";
      this.output.textContent = at === undefined ? "" : `${at} of ${data.columns[data.columns.length - 1]}${says}`;
      this.slider.setAttribute("aria-valuetext", this.output.textContent);
    }
  }

  const LIMITS = [
    [5.96e-8, "smallest above 0"],
    [6.1e-5, "smallest normal"],
    [65504, "largest"],
  ];

  /** What every module's outputs reached in the run, against the range of fp16. values: [{name, low, high, peak, bad}]. */
  function ranges(host, values) {
    const width = Math.max(host.clientWidth, 320),
      longest = Math.max(...values.map((v) => v.name.length));
    const left = Math.min(longest * 6.4 + 12, width * 0.35),
      right = 70,
      row = 20,
      top = 34,
      tall = values.length * row;
    const finite = values.flatMap((v) => [v.low, v.peak]).filter((v) => v > 0 && Number.isFinite(v));
    const low = Math.floor(Math.log10(Math.min(...finite, 6.1e-5))) - 0.3,
      high = Math.ceil(Math.log10(Math.max(...finite, 65504))) + 0.3;
    const X = (v) => left + ((Math.log10(v) - low) / (high - low)) * (width - left - right);
    const svg = shape("svg", {
      class: "plot",
      viewBox: `0 0 ${width} ${top + tall + 26}`,
      role: "img",
      "aria-label": "ranges of activations against the limits of fp16",
    });
    for (const p of curves.even(low, high, width / 70).filter(Number.isInteger)) {
      svg.append(shape("line", { class: "grid", x1: X(10 ** p), x2: X(10 ** p), y1: top, y2: top + tall }));
      svg.append(
        shape("text", { x: X(10 ** p), y: top + tall + 16, "text-anchor": "middle" }, curves.SCALES.log10.text(p)),
      );
    }
    for (const [limit, says] of LIMITS)
      if (Math.log10(limit) > low) {
        svg.append(
          shape("line", {
            x1: X(limit),
            x2: X(limit),
            y1: top - 6,
            y2: top + tall,
            style: "stroke:var(--critical)",
            "stroke-width": 1.3,
            "stroke-dasharray": "4 3",
          }),
        );
        svg.append(shape("text", { x: X(limit), y: top - 20, "text-anchor": "middle" }, says));
        svg.append(shape("text", { x: X(limit), y: top - 9, "text-anchor": "middle" }, number(limit)));
      }
    values.forEach((v, i) => {
      const y = top + i * row,
        name = v.name.length > left / 6 ? `…${v.name.slice(-Math.floor(left / 6.4))}` : v.name;
      svg.append(shape("text", { x: left - 8, y: y + 14, "text-anchor": "end" }, name));
      const bar = shape("g", {});
      bar.append(
        shape(
          "title",
          {},
          `${v.name}: usual size (rms) ${number(v.low)} to ${number(v.high)}, largest ${number(v.peak)}${v.bad ? `; not finite in ${v.bad} records` : ""}`,
        ),
      );
      const out = v.peak > 65504;
      if (v.low > 0) {
        bar.append(
          shape("line", {
            x1: X(v.low),
            x2: X(Math.max(v.peak, v.low)),
            y1: y + 10,
            y2: y + 10,
            style: `stroke:var(${out ? "--critical" : "--blue"})`,
            "stroke-width": 2,
          }),
        );
        bar.append(
          shape("rect", {
            x: X(v.low),
            y: y + 5,
            width: Math.max(X(Math.max(v.high, v.low)) - X(v.low), 3),
            height: 10,
            rx: 2,
            style: "fill:var(--blue)",
          }),
        );
      }
      if (v.peak > 0)
        bar.append(
          shape("line", {
            x1: X(v.peak),
            x2: X(v.peak),
            y1: y + 4,
            y2: y + 16,
            style: `stroke:var(${out ? "--critical" : "--blue"})`,
            "stroke-width": 2.4,
          }),
        );
      svg.append(bar);
      const text = v.bad ? `✕ ${v.bad}` : number(v.peak, 3);
      svg.append(
        shape("text", { x: width - right + 6, y: y + 14, style: v.bad || out ? "fill:var(--critical)" : "" }, text),
      );
    });
    host.replaceChildren(svg);
  }

  return { Profile, ranges };
})();
