/* Parallel coordinates: an axis a field or number, a line a job. A range of an axis is dragged, or given below it. */
(() => {
  const { byId, element, number, css } = lab,
    { data, jobs, state } = sweep;
  const NUMBERS = ["loss/final", "eval/loss", "grad/norm_median", "grad/norm_max", "clip/fraction"];
  const LOST = 1.09,
    NONE = -0.09,
    TOP = 46,
    FOOT = 14,
    TALL = 330,
    NEAR = 9;
  const canvas = byId("lines"),
    top = canvas.getContext("2d"),
    tip = byId("lines-tip");
  const base = document.createElement("canvas");
  let pen = base.getContext("2d");

  /** A column as an axis: where its values stand from 0 to 1; what was lost above them, what was not measured below. */
  function axis(column) {
    const values = jobs.map(column.of),
      finite = values.filter((v) => v !== null && Number.isFinite(v));
    if (new Set(values).size < 2) return null;
    let low = finite.reduce((a, b) => Math.min(a, b), Infinity),
      high = finite.reduce((a, b) => Math.max(a, b), -Infinity);
    const log = !column.labels && !column.share && low > 0 && (column.log || (!column.swept && high / low > 30)),
      scale = log ? Math.log : (v) => v;
    if (column.labels) [low, high] = [0, column.labels.length - 1];
    if (column.share) [low, high] = [0, 1];
    const one = high === low ? [low] : null,
      digits = Math.min(Math.max(Math.ceil(-Math.log10((high - low) / Math.abs(high))) + 2, 3), 7) || 3;
    if (!(high > low)) [low, high] = [low - 1, low + 1];
    const place = (v) =>
      v === null || Number.isNaN(v)
        ? NONE
        : v === Infinity
          ? LOST
          : v === -Infinity
            ? NONE
            : (scale(v) - scale(low)) / (scale(high) - scale(low));
    const back = (p) => (log ? Math.exp(scale(low) + p * (scale(high) - scale(low))) : low + p * (high - low));
    return {
      ...column,
      place,
      back,
      low,
      high,
      one,
      digits,
      all: [...new Set(finite)].sort((a, b) => a - b),
      places: values.map(place),
      range: null,
      from: null,
      to: null,
    };
  }

  const axes = [
    ...sweep.fields,
    sweep.outcome,
    ...sweep.numbers.filter((n) => NUMBERS.includes(n.name)),
    sweep.survived,
  ]
    .map(axis)
    .filter(Boolean);
  if (jobs.length < 2 || axes.length < 2) return;
  let box = null,
    drag = null,
    hover = -1;

  const X = (k) => box.left + (k * box.across) / Math.max(axes.length - 1, 1);
  const Y = (place) => TOP + 24 + (TALL - 48) * (1 - place);
  const placeOf = (y) => 1 - (y - TOP - 24) / (TALL - 48);
  const inside = (one, i) =>
    !one.range || (one.places[i] >= one.range[0] - 1e-9 && one.places[i] <= one.range[1] + 1e-9);
  sweep.filters.push((job, i) => axes.every((one) => inside(one, i)));

  // --- drawing -------------------------------------------------------------------------------------------------

  function layout() {
    const room = byId("lines-scroll").clientWidth,
      width = Math.max(room, axes.length * 78),
      side = width / axes.length / 2;
    box = { left: side, across: width - 2 * side, width, height: TOP + TALL + FOOT };
    const ratio = window.devicePixelRatio || 1;
    base.width = canvas.width = Math.round(width * ratio);
    base.height = canvas.height = Math.round(box.height * ratio);
    canvas.style.width = byId("ranges").style.width = `${width}px`;
    canvas.style.height = `${box.height}px`;
    for (const p of [base, canvas]) p.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  function line(i) {
    pen.beginPath();
    axes.forEach((one, k) => pen.lineTo(X(k), Y(one.places[i])));
    pen.stroke();
  }

  /** An outcome's colour; on a dark page lighter. */
  function colours() {
    const light = (hex) =>
      `rgb(${[1, 3, 5].map((i) => Math.round(parseInt(hex.slice(i, i + 2), 16) * 0.62 + 97)).join(",")})`;
    return data.outcomes.map((o) => (lab.dark() ? light(o.colour) : o.colour));
  }

  /** All lines but those that stand out. */
  function paint() {
    pen = base.getContext("2d");
    pen.clearRect(0, 0, box.width, box.height);
    const shown = jobs.map((_, i) => i).filter((i) => state.shown[i]);
    pen.lineWidth = 1;
    pen.strokeStyle = css("--rule");
    pen.globalAlpha = 0.35;
    if (shown.length < jobs.length)
      jobs.forEach((_, i) => {
        if (!state.shown[i]) line(i);
      });
    pen.globalAlpha = Math.max(0.25, Math.min(0.9, 60 / shown.length));
    pen.lineWidth = 1.3;
    const strokes = colours();
    for (const i of shown) {
      pen.strokeStyle = strokes[jobs[i].outcome];
      line(i);
    }
    pen.globalAlpha = 1;
  }

  function draw() {
    pen = top;
    pen.clearRect(0, 0, box.width, box.height);
    pen.drawImage(base, 0, 0, box.width, box.height);
    for (const i of new Set([...state.chosen, ...(hover >= 0 ? [hover] : [])])) {
      for (const [width, style] of [
        [5, css("--paper")],
        [3, css(sweep.curves.colour(i))],
      ]) {
        pen.lineWidth = width;
        pen.strokeStyle = style;
        line(i);
      }
    }
    axes.forEach(drawAxis);
  }

  /** The values that were swept, as many as there is room for. */
  function ticks(one) {
    const kept = [];
    for (const v of one.all)
      if (!kept.length || Math.abs(Y(one.place(v)) - Y(one.place(kept.at(-1)))) >= 20) kept.push(v);
    if (kept.at(-1) !== one.high) kept.splice(-1, 1, one.high);
    return kept;
  }

  function drawAxis(one, k) {
    const x = X(k),
      edge = 2 * Math.min(x, box.width - x),
      room = box.across / Math.max(axes.length - 1, 1) - 8;
    pen.strokeStyle = css("--ink");
    pen.lineWidth = 1.2;
    pen.beginPath();
    pen.moveTo(x, Y(0));
    pen.lineTo(x, Y(1));
    pen.stroke();
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillStyle = css("--ink");
    pen.font = "bold 12px system-ui, sans-serif";
    pen.fillText(one.name, x, k % 2 ? 30 : 12, Math.min(2 * room, edge));
    if (one.range) {
      const [low, high] = one.range.map((p) => Y(Math.max(NONE, Math.min(LOST, p))));
      pen.fillStyle = css("--focus");
      pen.globalAlpha = 0.25;
      pen.fillRect(x - 7, high - 2, 14, low - high + 4);
      pen.globalAlpha = 1;
      pen.strokeStyle = css("--focus");
      pen.strokeRect(x - 7, high - 2, 14, low - high + 4);
    }
    const label = (text, place) => {
      pen.font = "11px system-ui, sans-serif";
      const wide = Math.min(pen.measureText(text).width, room);
      pen.fillStyle = css("--paper");
      pen.globalAlpha = 0.8;
      pen.fillRect(x - wide / 2 - 2, Y(place) - 7, wide + 4, 14);
      pen.globalAlpha = 1;
      pen.fillStyle = css("--ink");
      pen.fillText(text, x, Y(place), room);
    };
    if (one.labels) {
      const seen = new Set(one.places),
        every = Math.ceil(one.labels.length / 14);
      one.labels.forEach((text, i) => {
        if (i % every === 0 && (!one.name || one.name !== "outcome" || seen.has(one.place(i))))
          label(text, one.place(i));
      });
    } else if (one.swept) ticks(one).forEach((v) => label(number(v, 3), one.place(v)));
    else for (const v of one.one || [0, 0.5, 1].map(one.back)) label(number(v, one.digits), one.place(v));
    if (one.places.includes(LOST)) label("∞ lost", LOST);
    if (one.places.includes(NONE)) label("none", NONE);
  }

  // --- ranges --------------------------------------------------------------------------------------------------

  /** From the two boxes under an axis; an empty one is no bound. */
  function typed(one) {
    const given = [one.from.value, one.to.value].map((text) => text.trim());
    const bounds = given.map((text) =>
      text === "" ? null : one.labels ? Number(text) : Number(text.replace("∞", "Infinity")),
    );
    [one.from, one.to].forEach((box, k) => box.setAttribute("aria-invalid", String(Number.isNaN(bounds[k]))));
    if (bounds.some(Number.isNaN)) return;
    one.range = given.every((text) => text === "")
      ? null
      : [bounds[0] === null ? NONE / 2 : one.place(bounds[0]), bounds[1] === null ? LOST : one.place(bounds[1])];
    sweep.filter();
  }

  /** What the boxes say of a range that was dragged. */
  function showRange(one) {
    const say = (p, up) => {
      if (one.labels)
        return String(
          Math.min(
            Math.max(up ? Math.floor(one.back(p) + 1e-9) : Math.ceil(one.back(p) - 1e-9), 0),
            one.labels.length - 1,
          ),
        );
      return p >= LOST - 0.03 ? (up ? "" : "∞") : p <= NONE / 2 ? "" : number(one.back(p), one.digits);
    };
    one.from.value = one.range ? say(one.range[0], false) : "";
    one.to.value = one.range ? say(one.range[1], true) : "";
    for (const box of [one.from, one.to]) box.removeAttribute("aria-invalid");
  }

  function boxes(one) {
    const make = (word) => {
      const label = `${one.name} ${word}`,
        change = () => typed(one);
      if (!one.labels)
        return element("input", null, {
          type: "text",
          inputmode: "decimal",
          placeholder: word,
          "aria-label": label,
          autocomplete: "off",
          onchange: change,
        });
      return element("select", null, { "aria-label": label, onchange: change }, [
        element("option", word, { value: "" }),
        ...one.labels.map((text, i) => element("option", text, { value: i })),
      ]);
    };
    one.to = make("to");
    one.from = make("from");
    return element("div", null, {}, [one.to, one.from]);
  }

  // --- the mouse -----------------------------------------------------------------------------------------------

  function where(event) {
    const rect = canvas.getBoundingClientRect(),
      x = event.clientX - rect.left,
      y = event.clientY - rect.top;
    const near = axes.map((_, k) => Math.abs(X(k) - x)),
      k = near.indexOf(Math.min(...near));
    return { x, y, k, on: near[k] <= 14 && y > TOP };
  }

  /** The line that passes nearest; -1 if none does. */
  function nearest({ x, y }) {
    const step = box.across / (axes.length - 1),
      k = Math.min(Math.max(Math.floor((x - box.left) / step), 0), axes.length - 2),
      part = (x - X(k)) / step;
    let best = -1,
      least = NEAR;
    if (part < 0 || part > 1) return best;
    jobs.forEach((_, i) => {
      const [a, b] = [axes[k], axes[k + 1]].map((one) => Y(one.places[i]));
      const away = Math.abs(a + (b - a) * part - y) / Math.hypot(1, (b - a) / step);
      if (state.shown[i] && away < least) [best, least] = [i, away];
    });
    return best;
  }

  function point(event) {
    const at = where(event);
    canvas.style.cursor = at.on ? "ns-resize" : "pointer";
    const found = drag || at.on ? -1 : nearest(at);
    tip.hidden = found < 0;
    if (found >= 0) {
      tip.textContent = `job ${jobs[found].job}, ${jobs[found].verdict}\n${axes.map((one) => `${one.name}: ${one.text(jobs[found])}`).join("\n")}`;
      tip.style.left = `${at.x + tip.offsetWidth + 14 > box.width ? Math.max(at.x - tip.offsetWidth - 14, 0) : at.x + 14}px`;
      tip.style.top = `${Math.min(at.y + 14, box.height - tip.offsetHeight)}px`;
    }
    if (found !== hover) {
      hover = found;
      draw();
    }
  }

  canvas.addEventListener("pointerdown", (event) => {
    const at = where(event);
    if (!at.on) return;
    drag = { one: axes[at.k], began: placeOf(at.y), moved: false };
    canvas.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  canvas.addEventListener("pointermove", (event) => {
    point(event);
    if (!drag) return;
    const now = placeOf(where(event).y);
    drag.moved = drag.moved || Math.abs(now - drag.began) > 0.015;
    if (!drag.moved) return;
    drag.one.range = [Math.min(now, drag.began), Math.max(now, drag.began)];
    showRange(drag.one);
    sweep.filter();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved && drag.one.range) {
      // a click on an axis takes its range away
      drag.one.range = null;
      showRange(drag.one);
      sweep.filter();
    } else if (!drag && hover >= 0)
      sweep.choose(event.ctrlKey || event.metaKey || event.shiftKey ? [...state.chosen, hover] : [hover]);
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => {
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
    if (hover >= 0) {
      hover = -1;
      draw();
    }
  });

  function begin() {
    byId("lines-view").hidden = false;
    canvas.setAttribute(
      "aria-label",
      `a line a job over ${axes.map((one) => one.name).join(", ")}; the table holds the same numbers, and ranges are given below`,
    );
    byId("ranges").append(...axes.map(boxes));
    byId("ranges").addEventListener("submit", (event) => event.preventDefault());
    lab.themed(repaint);
    addEventListener("resize", resize);
    layout();
  }

  function repaint() {
    paint();
    draw();
  }

  function resize() {
    layout();
    repaint();
  }

  const cleared = () => {
    for (const one of axes) {
      one.range = null;
      showRange(one);
    }
  };
  const say = (one) => `${one.name}:${one.range.map((p) => +p.toFixed(4)).join(":")}`;
  sweep.linked(
    "ranges",
    () =>
      axes
        .filter((one) => one.range)
        .map(say)
        .join(","),
    (text) => {
      cleared();
      for (const part of text.split(",").filter(Boolean)) {
        const [low, high] = part.split(":").slice(-2).map(Number),
          one = axes.find((a) => a.name === part.split(":").slice(0, -2).join(":"));
        if (one && low <= high) {
          one.range = [low, high];
          showRange(one);
        }
      }
    },
  );
  sweep.views.push({ begin, show: repaint, cleared });
})();
