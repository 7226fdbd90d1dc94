/* Remedies side by side: what each changed against none, and their curves under the same seed. */
(() => {
  const { byId, element, number } = lab,
    found = sweep.data.remedies;
  if (!found) return;
  const DRAWN = { "more updates": "survived", "lower loss": "improved" };

  /** The mean of paired differences as a dot, its interval as a line, around zero. */
  function interval(effect, reach) {
    const [mean, low, high] = effect.map((v) => (v === null ? null : Number(v))),
      W = 90;
    const x = (v) => W / 2 + (Math.max(-1, Math.min(1, v / reach)) * (W - 8)) / 2;
    const made = sweep.charts.svg("svg", { viewBox: `0 0 ${W} 12`, class: "interval", "aria-hidden": "true" });
    const add = (tag, attributes) => made.append(sweep.charts.svg(tag, attributes));
    add("line", { x1: W / 2, x2: W / 2, y1: 0, y2: 12 });
    if (low !== null) add("path", { d: `M${x(low)} 6H${x(high)}` });
    add("circle", { cx: x(mean), cy: 6, r: 3.5 });
    return made;
  }

  function cell(row, name, reach) {
    const effect = DRAWN[name] && row.effects[DRAWN[name]];
    if (!effect) return row.cells[name];
    const size =
      effect[3] === null
        ? []
        : [
            element("small", `size ${number(effect[3], 3)}`, {
              title: "effect size: the mean over the standard deviation of the differences",
            }),
          ];
    return element("span", null, { class: "effect" }, [
      row.cells[name],
      element("span", null, {}, [interval(effect, reach[name]), ...size]),
    ]);
  }

  function table(group) {
    const names = Object.keys(group.rows[0].cells),
      reach = {};
    for (const [name, key] of Object.entries(DRAWN)) {
      const sizes = group.rows
        .flatMap((row) => (row.effects[key] || []).slice(0, 3))
        .map((v) => Math.abs(Number(v)))
        .filter(Number.isFinite);
      reach[name] = sizes.reduce((a, b) => Math.max(a, b), 1e-9);
    }
    return lab.scroll(
      "remedies compared",
      sweep.table(
        names,
        group.rows.map((row) => names.map((name) => cell(row, name, reach))),
        3,
      ),
    );
  }

  function curves(group) {
    const seeds = [...new Set(group.rows.flatMap((row) => row.jobs.map(([seed]) => seed)))];
    const frame = element("div", null, { class: "whole" }),
      legend = element("div", null, { class: "keys" });
    const choice = element(
      "select",
      null,
      {},
      seeds.map((seed) => element("option", seed === "" ? "as configured" : seed, { value: seed })),
    );
    const draw = () => {
      const lines = group.rows.flatMap((row, k) =>
        row.jobs
          .filter(([seed]) => seed === choice.value)
          .slice(0, 1)
          .map(([, i]) => ({
            job: sweep.jobs[i],
            i,
            name: row.remedy,
            style: row.judgement === "baseline" ? "stroke:var(--ink);stroke-width:2.2" : sweep.charts.stroke(k),
          })),
      );
      frame.replaceChildren(sweep.charts.pair(lines));
      legend.replaceChildren(
        ...lines.map(({ job, i, name, style }) =>
          element(
            "button",
            null,
            { type: "button", class: "key", onclick: () => sweep.choose([i]), title: "show this run" },
            [sweep.charts.sample(style), sweep.swatch(job.outcome), `${name}: ${job.verdict}`],
          ),
        ),
      );
    };
    choice.addEventListener("change", draw);
    draw();
    const chooser = element("p", null, { hidden: seeds.length < 2 }, [element("label", null, {}, ["seed ", choice])]);
    return [chooser, frame, legend];
  }

  function begin() {
    const view = byId("remedies-view");
    view.hidden = false;
    for (const group of found.groups) {
      if (found.groups.length > 1) view.append(element("h3", group.overrides));
      const says = group.rows.filter((row) => row.judgement !== "baseline" && row.says);
      view.append(
        table(group),
        element(
          "ul",
          null,
          { class: "plain" },
          says.map((row) => element("li", null, {}, [element("strong", row.remedy), `: ${row.says}`])),
        ),
        ...curves(group),
      );
    }
    view.append(element("p", found.note, { class: "quiet" }));
  }

  sweep.views.push({ begin });
})();
