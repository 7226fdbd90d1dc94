"use strict";
/* Several runs: a table of them, the fields in which they differ, and their curves over each other. */
(() => {
  const { byId, element, lines, number, value } = lab;
  const data = lab.json("data"),
    COLOURS = ["--blue", "--orange", "--green", "--pink", "--amber", "--sky", "--grey"],
    DASHES = ["solid", "dashed", "dotted"];

  const runs = data.runs.map((run, i) => {
    const all = lines(run.metrics),
      updates = all.filter((l) => "train/loss" in l);
    return {
      ...run,
      number: String(i + 1),
      updates,
      evals: all.filter((l) => !("train/loss" in l)),
      colour: COLOURS[i % COLOURS.length],
      dash: DASHES[Math.floor(i / COLOURS.length) % 3],
      shown: true,
    };
  });

  /** A metric of all shown runs on one axis; undefined where another run has a line and this one has none. */
  function spec(id, title, scale, of, options = {}) {
    const shown = runs.filter((run) => run.shown),
      pairs = shown.map((run) => of(run));
    const x = [...new Set(pairs.flatMap((p) => [...p.keys()]))].sort((a, b) => a - b);
    const series = shown.map((run, i) => ({
      name: run.number,
      y: x.map((at) => pairs[i].get(at)),
      colour: run.colour,
      dash: run.dash,
      ...options.series,
    }));
    return { id: `${id}`, title, scale, x, series, ...options.chart };
  }
  const column = (name) => (run) =>
    new Map(run.updates.map((l) => [l.attempt, value(l[name])]).filter(([, v]) => v !== null));
  const evaluated = (name) => (run) =>
    new Map(run.evals.filter((l) => name in l).map((l) => [l.attempt, value(l[name])]));

  function specs() {
    const some = (name, test) => runs.some((run) => run.updates.some((l) => name in l && test(value(l[name]))));
    const found = [spec("loss", "Training loss", "auto", column("train/loss"), { chart: { height: 220 } })];
    if (runs.some((run) => run.evals.some((l) => "eval/loss" in l)))
      found.push(
        spec("eval", "Evaluation loss", "auto", evaluated("eval/loss"), {
          chart: { height: 170 },
          series: { points: true },
        }),
      );
    if (runs.some((run) => run.evals.some((l) => "eval/accuracy" in l)))
      found.push(
        spec("accuracy", "Accuracy", "linear", evaluated("eval/accuracy"), {
          chart: { share: true },
          series: { points: true, share: true },
        }),
      );
    found.push(spec("norm", "Gradient norm before clipping", "auto", column("grad/norm"), { chart: { height: 190 } }));
    if (some("amp/scale", (v) => v !== 1))
      found.push(spec("scale", "Loss scale", "log2", column("amp/scale"), { series: { step: true } }));
    found.push(spec("lr", "Learning rate", "linear", column("lr"), { chart: { height: 120 } }));
    if (some("clip/fraction", (v) => v > 0))
      found.push(
        spec("clip", "Clipped updates, share so far", "linear", column("clip/fraction"), {
          chart: { height: 120, share: true, least: [0, 1] },
          series: { share: true },
        }),
      );
    if (some("update/ratio", () => true))
      found.push(
        spec("ratio", "Update ÷ weights", "auto", column("update/ratio"), {
          chart: { height: 130, lines: [{ value: 1e-3, name: "rule of thumb 10⁻³" }] },
        }),
      );
    return found.map((s) => ({ ...s, series: s.series.length ? s.series : [] }));
  }

  const ends = runs.flatMap((run) => [...run.updates, ...run.evals].map((l) => l.attempt));
  const axis = new curves.Axis(
    ends.reduce((a, b) => Math.min(a, b), Infinity),
    ends.reduce((a, b) => Math.max(a, b), -Infinity),
  );
  let timeline = null;
  const draw = () => {
    if (timeline)
      timeline.show(specs().map((s) => ({ ...s, id: `${s.id}:${s.series.map((one) => one.name).join()}` })));
  };

  function table() {
    const head = [
      "",
      "run",
      "verdict",
      "loss: first",
      "last",
      "evaluation",
      "largest norm",
      "updates",
      "skipped",
      "time",
    ];
    const rows = runs.map((run) => {
      const d = run.diagnosis,
        o = d.outcome || {},
        m = d.measured || {},
        severity = parts.severity(d),
        losses = run.updates.map((l) => value(l["train/loss"]));
      const box = element("input", null, {
        type: "checkbox",
        checked: true,
        "aria-label": `show run ${run.number}`,
        onchange: () => {
          run.shown = box.checked;
          draw();
        },
      });
      const evals = run.evals.filter((e) => "eval/loss" in e),
        last = evals[evals.length - 1];
      return element("tr", null, {}, [
        element("th", null, { scope: "row" }, [
          element("label", null, { class: "row" }, [
            box,
            curves.sample(run.colour, run.dash),
            element("strong", run.number),
          ]),
        ]),
        element("td", null, { class: "text" }, [run.link ? element("a", run.name, { href: run.link }) : run.name]),
        element("td", null, { class: "text" }, [
          parts.badge(severity, d.verdict ? parts.words(d.verdict) : d.sentence ? "no measurement" : "not ended"),
        ]),
        ...[
          m["loss/initial"] ?? losses[0],
          m["loss/final"] ?? losses[losses.length - 1],
          last && last["eval/loss"],
          m["grad/norm_max"],
          o.applied ?? run.updates.filter((l) => !l["update/skipped"]).length,
          m.skipped ?? run.updates.filter((l) => l["update/skipped"]).length,
          o.seconds,
        ].map((v, k) => element("td", k === 6 && v !== undefined ? `${number(v, 3)} s` : number(v))),
      ]);
    });
    byId("runs").replaceChildren(
      lab.scroll(
        "runs",
        element("table", null, {}, [
          element("thead", null, {}, [
            element(
              "tr",
              null,
              {},
              head.map((h) => element("th", h, { scope: "col", class: h === "run" || h === "verdict" ? "text" : "" })),
            ),
          ]),
          element("tbody", null, {}, rows),
        ]),
      ),
      element(
        "ul",
        null,
        { class: "findings" },
        runs.map((run) =>
          element("li", null, {}, [
            element("strong", `${run.number} `),
            run.diagnosis.sentence || "no verdict: the run has not ended, or was killed",
          ]),
        ),
      ),
    );
  }

  function fields() {
    const host = byId("fields");
    host.append(element("h2", "What differs"));
    if (!data.fields.length) {
      host.append(element("p", "Nothing: the configurations are the same."));
      return;
    }
    const many = data.fields.length > 15,
      into = many ? element("details", null, {}, [element("summary", `${data.fields.length} fields`)]) : host;
    if (many) host.append(into);
    into.append(
      lab.scroll(
        "fields that differ",
        element("table", null, {}, [
          element("thead", null, {}, [
            element(
              "tr",
              null,
              {},
              ["field", ...runs.map((run) => run.number)].map((h) => element("th", h, { scope: "col" })),
            ),
          ]),
          element(
            "tbody",
            null,
            {},
            data.fields.map((row) =>
              element("tr", null, {}, [
                element("th", row.field, { scope: "row" }),
                ...row.values.map((v) => element("td", v === null ? "-" : String(v))),
              ]),
            ),
          ),
        ]),
      ),
    );
  }

  lab.themeButton(byId("theme"));
  lab.printable();
  table();
  fields();
  const host = byId("curves");
  host.append(element("h2", "Curves"));
  if (runs.some((run) => run.updates.length)) {
    host.append(
      element(
        "p",
        "Updates are counted as they are tried. Keys, once a chart has the focus: ← → point, + − zoom, 0 shows all.",
        { class: "quiet screen" },
      ),
    );
    timeline = new curves.Timeline(host, axis);
    draw();
  } else host.append(element("p", "None of these runs has made an update."));
  const thin = runs
    .filter((run) => run.thinned["metrics.jsonl"])
    .map((run) => `${run.number}: ${run.thinned["metrics.jsonl"].join(" of ")} lines`);
  if (thin.length)
    host.append(
      element("p", `Of long runs some lines are shown, the extremes among them (${thin.join("; ")}).`, {
        class: "quiet",
      }),
    );
})();
