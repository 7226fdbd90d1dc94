/* A search for edges: where stability ends at each point and seed, the values that were tried, and what moves the edge. */
(() => {
  const { byId, element, number } = lab,
    found = sweep.data.edges;
  if (!found) return;
  const { svg } = sweep.charts;

  /** A line a point and seed; what was tried is a mark on it: a disc is stable, a cross is not, a ring gave no verdict. */
  function strips() {
    const lanes = found.points.flatMap((point) => point.lanes.map((lane) => ({ ...lane, point: point.point })));
    const values = lanes
      .flatMap((lane) => lane.tried.map(([v]) => v))
      .filter((v) => v !== null)
      .map(Number);
    if (!values.length) return [];
    const W = Math.max(640, byId("edges-view").clientWidth),
      left = 230,
      right = 20,
      step = 26,
      H = lanes.length * step + 40;
    const scale = found.linear ? (v) => v : Math.log10,
      low = scale(Math.min(...values)),
      high = scale(Math.max(...values));
    const x = (v) => left + (W - left - right) * (high > low ? (scale(v) - low) / (high - low) : 0.5);
    const made = svg("svg", {
      viewBox: `0 0 ${W} ${H}`,
      class: "strips",
      role: "img",
      "aria-label": `values of ${found.field} that were tried; the table of all jobs holds the same`,
    });
    const add = (tag, attributes, text) => {
      const part = svg(tag, attributes, text);
      made.append(part);
      return part;
    };
    lanes.forEach((lane, k) => {
      const y = 16 + k * step,
        label = `${lane.point === "-" ? "" : lane.point}${lane.seed ? ` seed ${lane.seed}` : ""}`;
      add(
        "text",
        { x: left - 14, y: y + 4, "text-anchor": "end" },
        label.length > 38 ? `${label.slice(0, 37)}…` : label,
      );
      add("line", { x1: left, x2: W - right, y1: y, y2: y });
      if (lane.stable !== null && lane.lost !== null)
        add("path", { class: "edge", d: `M${(x(lane.stable) + x(lane.lost)) / 2} ${y - 10}v20` });
      for (const [v, stable, job, verdict] of lane.tried) {
        const kind = stable === null ? "ring" : stable ? "disc" : "cross",
          a = x(v);
        const mark =
          kind === "cross"
            ? add("path", { class: kind, d: `M${a - 4} ${y - 4}l8 8m0-8l-8 8` })
            : add("circle", { class: kind, cx: a, cy: y, r: 4.5 });
        mark.append(svg("title", {}, `${found.field} = ${number(v, 6)}: ${verdict}`));
        if (job !== null) mark.addEventListener("click", () => sweep.choose([job]));
      }
    });
    add("text", { x: left, y: H - 6 }, number(Math.min(...values)));
    add("text", { x: W - right, y: H - 6, "text-anchor": "end" }, number(Math.max(...values)));
    add("text", { x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle" }, found.field);
    return [
      lab.scroll("values that were tried", made),
      element("p", "disc: stable; cross: not; ring: no verdict; the upright line is the edge", { class: "quiet" }),
    ];
  }

  function begin() {
    const view = byId("edges-view");
    view.hidden = false;
    const within = found.linear
      ? `to within ${number(Math.abs(found.step), 3)}`
      : `to a factor of ${number(Math.max(found.step, 1 / found.step), 3)}`;
    const kind =
      found.judge === "stable"
        ? "stable: completed, nothing lost"
        : "learns: stable, healthy, and has learnt";
    view.append(element("p", `The ${found.edge} ${found.field} that is stable, ${within} (${kind}).`));
    const rows = found.points.map((p) => [p.point, ...p.shown, String(p.seeds), String(p.runs)]);
    view.append(lab.scroll("edges", sweep.table(["point", "median", "lowest", "highest", "seeds", "runs"], rows)));
    const says = found.points.flatMap((p) =>
      p.says.map((text) => element("li", found.points.length > 1 ? `${p.point}: ${text}` : text)),
    );
    if (found.ended) says.push(element("li", `the search is not complete: ${found.ended}`));
    view.append(element("ul", null, {}, says), ...strips());
    if (found.effects.length)
      view.append(
        element("h3", "What moves the edge"),
        lab.scroll(
          "what moves the edge",
          sweep.table(["field", "value", "edge moves by", "95% interval", "seeds", ""], found.effects, 2),
        ),
        element("p", "Under the same seed; intervals are widened by the tolerance.", { class: "quiet" }),
      );
  }

  sweep.views.push({ begin });
})();
