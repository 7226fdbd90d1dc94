/* Curves of a few jobs, and the panel that shows those of the chosen ones. */
sweep.curves = (() => {
  const { element, number } = lab, { data, jobs, state } = sweep;
  const COLOURS = ["--blue", "--orange", "--green", "--pink", "--amber", "--sky", "--grey"];
  const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "5 2", "1 3", "12 4"];
  const TITLES = ["training loss", "gradient norm, before clipping"], MOST = 14, LOST = 3;
  const W = 560, H = 200, left = 58, right = 8, top = 24, bottom = 24;

  const stroke = (k, many = true) => `stroke:var(${COLOURS[k % 7]})` + (many && k ? `;stroke-dasharray:${DASHES[(k + Math.floor(k / 7)) % 7]}` : "");

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

  /** A line a job over its attempts, logarithmic where all values are positive. lines: [{job, style}] */
  function chart(lines, which) {
    const made = svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "curve", role: "img", "aria-label": TITLES[which] });
    const add = (tag, attributes, text) => { const part = svg(tag, attributes, text); made.append(part); return part; };
    const values = lines.flatMap(({ job }) => job.curves[which]).filter((v) => v !== null).map(Number);
    if (!values.length) return element("p", `${TITLES[which]}: nothing finite was measured`, { class: "quiet" });
    const title = add("text", { x: left, y: 14 }, TITLES[which]);
    const last = Math.max(...lines.map(({ job }) => data.xs[job.x].at(-1) || 1));
    let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    const log = low > 0 && high > 4 * low, scale = log ? Math.log10 : (v) => v;
    if (scale(high) - scale(low) < 1e-9 * Math.max(1, Math.abs(scale(high)))) [low, high] = log ? [low / 2, high * 2] : [low - Math.abs(low) / 2 - 1e-9, high + Math.abs(high) / 2 + 1e-9];
    const x = (v) => left + ((W - left - right) * v) / last;
    const y = (v) => H - bottom - ((H - top - bottom) * (scale(v) - scale(low))) / (scale(high) - scale(low));
    for (const part of [0, 0.5, 1]) {
      const v = log ? 10 ** (scale(low) + part * (scale(high) - scale(low))) : low + part * (high - low);
      add("line", { x1: left, x2: W - right, y1: y(v), y2: y(v) });
      add("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, number(v, 3));
    }
    add("text", { x: left, y: H - 7 }, "0");
    add("text", { x: W - right, y: H - 7, "text-anchor": "end" }, `update ${last}`);
    for (const { job, style } of lines) {
      const series = job.curves[which], xs = data.xs[job.x];
      let path = "", drawing = false, end = null;
      series.forEach((v, i) => {
        if (v !== null) { path += `${drawing ? "L" : "M"}${x(xs[i]).toFixed(1)} ${y(v).toFixed(1)}`; end = [x(xs[i]), y(v)]; }
        drawing = v !== null;
      });
      if (!end) continue;
      add("path", { d: path.includes("L") ? path : `${path}h2`, style });
      if (job.outcome >= LOST) add("path", { d: `M${end[0] - 4} ${end[1] - 4}l8 8m0-8l-8 8`, style: `${style};stroke-width:2;stroke-dasharray:none` });
    }
    const cursor = add("line", { class: "cursor", y1: top, y2: H - bottom, x1: 0, x2: 0, visibility: "hidden" });
    made.addEventListener("pointermove", (event) => {
      const rect = made.getBoundingClientRect(), wanted = (((event.clientX - rect.left) * W) / rect.width - left) / (W - left - right) * last;
      const inside = wanted >= 0 && wanted <= last;
      cursor.setAttribute("visibility", inside ? "visible" : "hidden");
      if (!inside) return;
      const seen = lines.map(({ job }) => {
        const xs = data.xs[job.x];
        let k = 0;
        for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - wanted) < Math.abs(xs[k] - wanted)) k = i;
        return [xs[k], job.curves[which][k], job];
      }).filter(([u]) => u !== undefined);
      const near = seen.reduce((a, b) => Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a);
      cursor.setAttribute("x1", x(near[0]));
      cursor.setAttribute("x2", x(near[0]));
      title.textContent = `${TITLES[which]}, update ${near[0]}: ${seen.slice(0, 5).map(([, v]) => number(v)).join(", ")}${seen.length > 5 ? " ..." : ""}`;
    });
    made.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); title.textContent = TITLES[which]; });
    return made;
  }

  const panel = lab.byId("details");

  /** What the chosen jobs have in common, if that is more than nothing. */
  function title(list) {
    const same = sweep.fields.filter((f) => list.every((job) => f.text(job) === f.text(list[0])));
    return same.map((f) => `${f.name}=${f.text(list[0])}`).join(" ") || sweep.plural(list.length, "job");
  }

  let shown = null;

  function details() {
    if (shown === state.chosen) return;
    shown = state.chosen;
    const list = state.chosen.slice(0, MOST).map((i) => jobs[i]), parts = [];
    if (!list.length) parts.push(element("p", `Choose ${data.map ? "a point of the map, or " : ""}jobs of the table to see their curves.`, { class: "quiet" }));
    else {
      const many = list.length > 1, lines = list.map((job, k) => ({ job, style: stroke(k, many) }));
      parts.push(element("h2", title(list)));
      if (state.chosen.length > MOST) parts.push(element("p", `the first ${MOST} of ${state.chosen.length} jobs`, { class: "quiet" }));
      parts.push(chart(lines, 0), chart(lines, 1), ...list.flatMap((job, k) => run(job, many ? lines[k].style : null)));
    }
    panel.replaceChildren(...parts);
  }

  function run(job, style) {
    const heading = element("h3", null, {}, [...(style ? [sample(style), " "] : []), sweep.swatch(job.outcome), " job ", sweep.link(job), `: ${job.verdict}`]);
    const differs = style && sweep.named(job), link = sweep.link(job, job.page ? "its page" : "its folder");
    const parts = [heading, ...(differs ? [element("p", differs, { class: "quiet" })] : []), element("p", `${data.outcomes[job.outcome].name}: ${job.why} `, {}, [link])];
    const rows = sweep.numbers.map((n) => [n.name, n.text(job)]);
    parts.push(element("details", null, style ? {} : { open: true }, [element("summary", "numbers"), element("div", null, { class: "scroll" }, [sweep.table(["", "value"], rows)])]));
    return parts;
  }

  sweep.views.push({ show: details });
  /** The colour of a job among those that are chosen, as a variable of the style. */
  const colour = (i) => state.chosen.length > 1 && state.chosen.indexOf(i) >= 0 ? COLOURS[state.chosen.indexOf(i) % 7] : "--focus";

  return { chart, colour, sample, stroke, svg };
})();
