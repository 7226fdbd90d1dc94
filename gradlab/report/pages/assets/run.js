"use strict";
/* The page of a run: reads the lines of its files, draws, and where it is served, follows the run. */
(() => {
  const { byId, element, lines, number, value } = lab;
  let facts = lab.json("data");

  const KNOWN = new Set([
    "update",
    "attempt",
    "epoch",
    "train/loss",
    "grad/norm",
    "clip/coefficient",
    "clip/fraction",
    "amp/scale",
    "update/skipped",
    "lr",
    "eval/loss",
    "eval/accuracy",
    "update/ratio",
  ]);

  // --- the run, read -------------------------------------------------------------------------------------------

  /** Columns of the lines of updates, the lines of evaluations, and the records of layers. */
  function read(metrics, records) {
    const updates = metrics.filter((line) => "train/loss" in line),
      evals = metrics.filter((line) => !("train/loss" in line));
    const column = (name) => updates.map((line) => value(line[name]));
    const header = records.find((line) => line.names) || { names: [], order: [], modules: [], recurrent: [] };
    const run = {
      n: updates.length,
      updates,
      evals,
      header,
      records: records.filter((line) => "attempt" in line),
      attempt: column("attempt"),
      epoch: column("epoch"),
      loss: column("train/loss"),
      norm: column("grad/norm"),
      scale: column("amp/scale"),
      lr: column("lr"),
      fraction: column("clip/fraction"),
      coefficient: column("clip/coefficient"),
      ratio: column("update/ratio"),
      skipped: updates.map((line) => Boolean(line["update/skipped"])),
      thinned: Boolean(facts.thinned["metrics.jsonl"]),
      column,
    };
    run.applied = run.n ? updates[run.n - 1].update : 0;
    run.skips = run.skipped.filter(Boolean).length;
    run.scaled = run.scale.some((v) => v !== 1);
    run.clipped = run.coefficient.some((v) => v !== null && v < 1) || (facts.choices.clip || "none") !== "none";
    return run;
  }

  // --- curves --------------------------------------------------------------------------------------------------

  function marks(run) {
    const found = [];
    for (let i = 0; i < run.n; i++) {
      if (run.skipped[i]) found.push({ x: run.attempt[i], kind: "skip" });
      else if (i && run.scale[i] > run.scale[i - 1] && run.scaled) found.push({ x: run.attempt[i], kind: "grow" });
    }
    return found;
  }

  function events(run) {
    const found = [],
      d = facts.diagnosis,
      main = (d.findings || []).find((f) => f.code === d.verdict);
    const epochs = run.n ? run.epoch[run.n - 1] : 0;
    if (epochs <= 40)
      for (let i = 1; i < run.n; i++)
        if (run.epoch[i] !== run.epoch[i - 1]) found.push({ x: run.attempt[i], text: `epoch ${run.epoch[i]}` });
    const began = main && (main.began ?? (d.evidence || {}).scale_fell_from);
    if (began) found.push({ x: began, text: parts.words(d.verdict), colour: "--critical" });
    return found;
  }

  /** Values of evaluations, and of updates, on one axis. */
  function joined(run, name) {
    const at = new Map(run.evals.filter((e) => name in e).map((e) => [e.attempt, value(e[name])]));
    const x = [...new Set([...run.attempt, ...at.keys()])].sort((a, b) => a - b),
      index = new Map(run.attempt.map((a, i) => [a, i]));
    return {
      x,
      of: (column) => x.map((a) => (index.has(a) ? column[index.get(a)] : null)),
      evals: x.map((a) => (at.has(a) ? at.get(a) : null)),
      any: at.size > 0,
    };
  }

  function specs(run) {
    const all = events(run),
      quiet = all.map(({ x, colour }) => ({ x, colour })),
      found = [],
      evaluated = joined(run, "eval/loss"),
      skips = marks(run).filter((m) => m.kind === "skip");
    found.push({
      id: "loss",
      title: "Loss",
      scale: "auto",
      x: evaluated.x,
      height: 190,
      events: all,
      series: [
        { name: "training", y: evaluated.of(run.loss), colour: "--blue" },
        ...(evaluated.any
          ? [{ name: "evaluation", y: evaluated.evals, colour: "--orange", dash: "dashed", points: true }]
          : []),
      ],
    });
    const bound = value(facts.clip_threshold);
    const after = run.norm.map((v, i) =>
      run.coefficient[i] !== null && run.coefficient[i] < 1 && Number.isFinite(v) ? v * run.coefficient[i] : null,
    );
    found.push({
      id: "norm",
      title: "Gradient norm",
      scale: "auto",
      x: run.attempt,
      height: 170,
      events: quiet,
      lines: bound ? [{ value: bound, name: `threshold ${number(bound)}`, always: true }] : [],
      series: [
        { name: run.clipped ? "before clipping" : "of all parameters", y: run.norm, colour: "--blue" },
        ...(after.some((v) => v !== null)
          ? [{ name: "after clipping, where it acted", y: after, colour: "--green", dash: "dotted" }]
          : []),
      ],
    });
    if (run.scaled)
      found.push({
        id: "scale",
        title: "Loss scale",
        scale: "log2",
        x: run.attempt,
        events: quiet,
        marks: marks(run),
        series: [{ name: "scale", y: run.scale, colour: "--pink", step: true }],
        lines:
          value((facts.config.precision || {}).min_scale) && Math.min(...run.scale) < 1
            ? [
                {
                  value: value(facts.config.precision.min_scale),
                  name: `floor ${number(facts.config.precision.min_scale)}`,
                },
              ]
            : [],
      });
    else if (skips.length) found[0].marks = skips;
    found.push({
      id: "lr",
      title: "Learning rate",
      scale: "linear",
      x: run.attempt,
      height: 110,
      events: quiet,
      series: [{ name: "lr", y: run.lr, colour: "--amber" }],
    });
    if (run.clipped)
      found.push({
        id: "clip",
        title: "Clipped updates",
        scale: "linear",
        share: true,
        least: [0, 1],
        x: run.attempt,
        height: 110,
        events: quiet,
        series: [
          { name: "share so far", y: run.fraction, colour: "--green", share: true },
          { name: "what clipping left", y: run.coefficient, colour: "--grey", dash: "dotted", share: true },
        ],
      });
    if (run.ratio.some((v) => v !== null))
      found.push({
        id: "ratio",
        title: "Update ÷ weights",
        scale: "auto",
        x: run.attempt,
        height: 120,
        events: quiet,
        lines: [{ value: 1e-3, name: "rule of thumb 10⁻³", always: true }],
        series: [{ name: "all parameters", y: run.ratio, colour: "--sky", bridge: true }],
      });
    const timed = run.records.filter((r) => Array.isArray(r["time/ratio"]));
    if (timed.length)
      found.push({
        id: "time",
        title: "Gradient of the last time steps ÷ the first",
        scale: "auto",
        x: timed.map((r) => r.attempt),
        height: 120,
        events: quiet,
        lines: [{ value: 1, name: "alike" }],
        series: run.header.recurrent.map((name, k) => ({
          name: name || "the model",
          y: timed.map((r) => value(r["time/ratio"][k])),
          colour: ["--green", "--pink", "--amber", "--blue"][k % 4],
          points: true,
        })),
      });
    const accuracy = joined(run, "eval/accuracy");
    if (accuracy.any)
      found.push({
        id: "accuracy",
        title: "Accuracy",
        scale: "linear",
        share: true,
        x: accuracy.x,
        height: 110,
        events: quiet,
        series: [{ name: "evaluation", y: accuracy.evals, colour: "--orange", points: true, share: true }],
      });
    return found;
  }

  /** Whatever else was measured, each in a small chart. */
  function otherSpecs(run) {
    const names = new Set();
    for (const line of run.updates)
      for (const [k, v] of Object.entries(line))
        if (!KNOWN.has(k) && (typeof v === "number" || ["NaN", "Infinity", "-Infinity"].includes(v))) names.add(k);
    const colours = ["--blue", "--orange", "--green", "--pink", "--amber", "--sky"];
    const found = [...names].map((name, i) => ({
      id: name,
      title: name,
      scale: "auto",
      x: run.attempt,
      height: 110,
      series: [{ name: "", y: run.column(name), colour: colours[i % 6], bridge: true }],
    }));
    const extra = new Set(run.evals.flatMap((e) => Object.keys(e)).filter((k) => !KNOWN.has(k) && !names.has(k)));
    for (const name of extra) {
      const j = joined(run, name);
      found.push({
        id: name,
        title: name,
        scale: "auto",
        x: j.x,
        height: 110,
        series: [{ name: "evaluation", y: j.evals, colour: "--orange", points: true }],
      });
    }
    return found;
  }

  // --- layers --------------------------------------------------------------------------------------------------

  /** Rows of a map: layers in the order in which they run (their parameters together), or parameters. */
  function rows(run, byLayer) {
    const { names, order } = run.header,
      owner = (name) => (name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : "");
    const place = new Map(order.map((layer, i) => [layer, i])),
      indices = names.map((_, i) => i);
    indices.sort((a, b) => (place.get(owner(names[a])) ?? 1e9) - (place.get(owner(names[b])) ?? 1e9) || a - b);
    if (!byLayer) return indices.map((i) => ({ name: names[i], of: [i] }));
    const found = new Map();
    for (const i of indices) {
      const layer = owner(names[i]);
      if (!found.has(layer)) found.set(layer, { name: layer || "(the model)", of: [] });
      found.get(layer).of.push(i);
    }
    return [...found.values()];
  }

  function norm(values) {
    let sum = 0,
      any = false,
      largest = 0;
    for (const v of values)
      if (v !== null) {
        any = true;
        if (Number.isFinite(v)) largest = Math.max(largest, Math.abs(v));
        else return v;
      }
    if (!any || !largest) return any ? 0 : null;
    for (const v of values) if (v !== null) sum += (v / largest) ** 2;
    return largest * Math.sqrt(sum);
  }

  const most = (values) =>
    values.reduce(
      (a, v) => (v === null ? a : a === null ? v : Number.isNaN(a) || Number.isNaN(v) ? NaN : Math.max(a, Math.abs(v))),
      null,
    );
  const sum = (values) => values.reduce((a, v) => (v === null ? a : (a ?? 0) + v), null);

  /** A quantity by layer and update. */
  function table(run, quantity, byLayer) {
    const kept = run.records.filter((r) => quantity.needs.every((key) => Array.isArray(r[key])));
    const list = quantity.modules
      ? run.header.modules.map((name, i) => ({ name: name || "(the model)", of: [i] }))
      : rows(run, byLayer);
    const pick = (record, key, of) => of.map((i) => value(record[key][i]));
    const values = list.map(({ of }) => kept.map((record) => quantity.make((key) => pick(record, key, of))));
    return {
      rows: list.map((r) => r.name),
      columns: kept.map((r) => r.attempt),
      values,
      title: quantity.title,
      share: quantity.share,
      linear: quantity.linear,
      bounds: quantity.bounds,
      middle: quantity.middle,
      limit: quantity.limit,
    };
  }

  const quotient = (above, below) =>
    above === null || below === null ? null : below ? above / below : above ? Infinity : null;
  const FLOW = [
    { id: "grad/layer", title: "gradient norm", needs: ["grad/layer"], make: (get) => norm(get("grad/layer")) },
    {
      id: "grad/ratio",
      title: "gradient ÷ weights",
      needs: ["grad/layer", "param/norm"],
      make: (get) => quotient(norm(get("grad/layer")), norm(get("param/norm"))),
    },
    {
      id: "grad/max",
      title: "largest element of the gradient",
      needs: ["grad/max"],
      make: (get) => most(get("grad/max")),
    },
    {
      id: "grad/std",
      title: "spread of the gradient (largest parameter's)",
      needs: ["grad/std"],
      make: (get) => most(get("grad/std")),
    },
    {
      id: "grad/nonfinite",
      title: "elements of the gradient that are not finite",
      needs: ["grad/nonfinite"],
      make: (get) => sum(get("grad/nonfinite")),
    },
    { id: "param/norm", title: "norm of the weights", needs: ["param/norm"], make: (get) => norm(get("param/norm")) },
  ];
  const STEPS = [
    {
      id: "update/ratio",
      title: "update ÷ weights",
      needs: ["update/norm", "param/norm"],
      make: (get) => quotient(norm(get("update/norm")), norm(get("param/norm"))),
      middle: 1e-3,
    },
  ];
  const ACTIVATIONS = [
    {
      id: "activation/max",
      title: "largest magnitude of the output",
      needs: ["activation/max"],
      make: (get) => most(get("activation/max")),
      modules: true,
      limit: 65504,
    },
    {
      id: "activation/rms",
      title: "usual size of the output (rms)",
      needs: ["activation/rms"],
      make: (get) => most(get("activation/rms")),
      modules: true,
    },
    {
      id: "activation/saturated",
      title: "saturated elements",
      needs: ["activation/saturated"],
      make: (get) => most(get("activation/saturated")),
      modules: true,
      linear: true,
      share: true,
      bounds: [0, 1],
    },
    {
      id: "activation/dead",
      title: "dead units",
      needs: ["activation/dead"],
      make: (get) => most(get("activation/dead")),
      modules: true,
      linear: true,
      share: true,
      bounds: [0, 1],
    },
  ];

  /** A section with a map and a choice of what it shows. */
  class LayerMap {
    constructor(host, axis, id, title, says, quantities, options = {}) {
      Object.assign(this, { host, axis, id, title, says, quantities, options, quantity: quantities[0], byLayer: true });
    }
    set(run) {
      this.run = run;
      const there = this.quantities.filter((q) =>
        run.records.some((r) => q.needs.every((key) => Array.isArray(r[key]) && r[key].some((v) => v !== null))),
      );
      if (!there.length) {
        if (!this.map) this.host.replaceChildren();
        return false;
      }
      if (!this.map) this.build();
      if (!there.includes(this.quantity)) this.quantity = there[0];
      const shown = there.map((q) => q.id).join();
      if (shown !== this.shown) {
        this.shown = shown;
        this.select.replaceChildren(
          ...there.map((q) => element("option", q.title, { value: q.id, selected: q === this.quantity })),
        );
        this.label.hidden = there.length < 2;
      }
      this.draw();
      return true;
    }
    build() {
      this.select = element("select", null, {
        "aria-label": "what the map shows",
        onchange: () => {
          this.quantity = this.quantities.find((q) => q.id === this.select.value);
          this.draw();
        },
      });
      this.label = element("label", "show ", {}, [this.select]);
      this.toggle = element("button", "parameter by parameter", {
        type: "button",
        "aria-pressed": "false",
        onclick: () => {
          this.byLayer = !this.byLayer;
          this.toggle.setAttribute("aria-pressed", String(!this.byLayer));
          this.draw();
        },
      });
      this.host.replaceChildren(
        element("h2", this.title),
        element("p", this.says, { class: "quiet" }),
        element("div", null, { class: "bar screen" }, [this.label, ...(this.options.modules ? [] : [this.toggle])]),
      );
      this.map = new heat.Heat(
        this.host,
        this.axis,
        `${this.title}: layers by updates. Arrow keys move, Enter chooses the update, Escape leaves.`,
        (column) => this.profile && this.profile.choose(column),
      );
      if (this.options.profile) this.profile = new profile.Profile(this.host, (at) => this.axis.point(at));
    }
    draw() {
      const data = table(this.run, this.quantity, this.byLayer);
      this.map.set(data);
      if (this.profile) this.profile.set(data);
    }
  }

  function drawRanges(run, host) {
    const kept = run.records.filter((r) => Array.isArray(r["activation/max"]));
    const values = run.header.modules
      .map((name, i) => {
        const rms = kept.map((r) => value(r["activation/rms"][i])),
          max = kept.map((r) => value(r["activation/max"][i]));
        const fine = rms.filter((v) => v !== null && Number.isFinite(v) && v > 0),
          peaks = max.filter((v) => v !== null && Number.isFinite(v));
        return {
          name: name || "(the model)",
          low: fine.length ? fine.reduce((a, b) => Math.min(a, b)) : 0,
          high: fine.reduce((a, b) => Math.max(a, b), 0),
          peak: peaks.reduce((a, b) => Math.max(a, b), 0),
          bad: max.filter((v) => v !== null && !Number.isFinite(v)).length,
        };
      })
      .filter((v) => v.peak > 0 || v.bad);
    if (values.length) profile.ranges(host, values);
  }

  // --- the page ------------------------------------------------------------------------------------------------

  let metrics = lines(byId("metrics").textContent),
    records = lines(byId("layers").textContent);
  const axis = new curves.Axis(0, 1);
  let timeline = null,
    others = null,
    rangesHost = null;
  const flow = new LayerMap(
    byId("flow"),
    axis,
    "flow",
    "Gradient flow",
    "Each row is a layer, from the first that runs (top) to the last; each column an update. Rows that grow dark upwards vanish on their way back; rows that grow bright explode.",
    FLOW,
    { profile: true },
  );
  const steps = new LayerMap(
    byId("steps"),
    axis,
    "steps",
    "How far an update moves each layer",
    "The norm of a layer's change over the norm of its weights. About 10⁻³ is usual; a tenth in update after update tears the weights apart, 10⁻⁶ leaves them where they are.",
    STEPS,
  );
  const activations = new LayerMap(
    byId("activations"),
    axis,
    "activations",
    "Activations",
    "What each module's output was like, in the order in which they run, against what fp16 can hold.",
    ACTIVATIONS,
    { modules: true },
  );

  function draw() {
    const run = read(metrics, records);
    parts.header(facts, run);
    loop.show(facts);
    parts.verdict(facts);
    parts.story(facts, run);
    parts.checked(facts);
    parts.ran(facts);
    const ends = [...run.attempt, ...run.evals.map((e) => e.attempt)];
    if (run.n) {
      axis.grow(Math.min(ends[0], ...run.evals.map((e) => e.attempt)), Math.max(run.attempt[run.n - 1], ends[0] + 1));
      if (!timeline) begin();
      timeline.show(specs(run));
      others.run = run;
      others.show();
    } else {
      byId("curves").replaceChildren(
        element("h2", "Curves"),
        element("p", facts.live ? "No update has ended yet." : "No update was made: there is nothing to draw."),
      );
      timeline = null;
    }
    thin();
    const shown = [
      ["loop", "the loop"],
      ["verdict", "verdict"],
      ["story", "the end"],
      ["checked", "checked"],
      ["curves", "curves"],
    ];
    if (run.records.length) {
      if (flow.set(run)) shown.push(["flow", "gradient flow"]);
      if (steps.set(run)) shown.push(["steps", "updates"]);
      if (activations.set(run)) {
        shown.push(["activations", "activations"]);
        if (!rangesHost) {
          rangesHost = element("div");
          byId("activations").append(
            element("h3", "Range of the whole run"),
            element(
              "p",
              "Bar: usual size (rms); thin line: up to the largest element. fp16 flushes what is left of its smallest number to zero, and what is right of its largest to infinity.",
              { class: "quiet" },
            ),
            rangesHost,
          );
          addEventListener("resize", () => drawRanges(read(metrics, records), rangesHost));
        }
        drawRanges(run, rangesHost);
      }
    } else if (run.n)
      byId("flow").replaceChildren(
        element("h2", "Gradient flow"),
        element(
          "p",
          "Nothing was recorded of the layers of this run: monitor=summary (the default) records their gradient norms, monitor=full their activations too.",
          { class: "quiet" },
        ),
      );
    shown.push(["ran", "what ran"]);
    const nav = byId("parts"),
      state = byId("live-state");
    nav.replaceChildren(
      ...shown.filter(([id]) => byId(id).childElementCount).map(([id, text]) => element("a", text, { href: `#${id}` })),
      ...(state ? [state] : []),
    );
  }

  function begin() {
    const host = byId("curves");
    host.replaceChildren(
      element("h2", "Curves"),
      element(
        "p",
        "Updates are counted as they are tried, skipped ones included. Keys, once a chart has the focus: ← → point, + − zoom, 0 shows all.",
        { class: "quiet screen" },
      ),
    );
    timeline = new curves.Timeline(host, axis);
    const more = element("details", null, { class: "screen" }, [element("summary", "What else was measured")]),
      inside = element("div");
    more.append(inside);
    host.append(more, element("p", null, { class: "quiet", id: "thinned" }));
    others = {
      run: null,
      charts: [],
      show() {
        if (!more.open) return;
        const wanted = otherSpecs(this.run),
          ids = wanted.map((s) => s.id).join();
        if (ids === this.charts.map((c) => c.spec.id).join()) {
          wanted.forEach((s, i) => this.charts[i].set(s));
          return;
        }
        axis.views = axis.views.filter((view) => !this.charts.includes(view));
        inside.replaceChildren();
        this.charts = wanted.map((s) => new curves.Chart(axis, inside, s, s.height));
        axis.views.push(...this.charts);
      },
    };
    more.addEventListener("toggle", () => others.show());
    addEventListener("resize", () => more.open && others.charts.forEach((c) => c.resize()));
    lab.themed(() => others.charts.forEach((c) => c.redraw()));
  }

  function thin() {
    const place = byId("thinned");
    if (place)
      place.textContent = Object.entries(facts.thinned)
        .map(
          ([file, [shown, all]]) =>
            `${file} has ${all} lines; this page holds ${shown} of them, with every beginning and end of skipping as far as they fit, and the extremes of loss and gradient norm in between.`,
        )
        .join(" ");
  }

  lab.themeButton(byId("theme"));
  lab.printable();
  draw();

  // --- following a run ----------------------------------------------------------------------------

  if (facts.live) follow();

  function follow() {
    const state = element("span", "live", { id: "live-state", class: "quiet", role: "status" }),
      marks = { metrics: "", layers: "", facts: "" };
    byId("parts").append(state);
    let wait = 1000,
      heard = Date.now(),
      changed = false;
    const ask = async () => {
      try {
        const answer = await fetch(`news?${new URLSearchParams(marks)}`, { cache: "no-store" });
        if (!answer.ok) throw new Error(String(answer.status));
        const news = await answer.json();
        if (news.metrics.anew) metrics = [];
        if (news.layers.anew) records = [];
        metrics.push(...lines(news.metrics.text));
        records.push(...lines(news.layers.text));
        changed =
          changed || news.metrics.text || news.metrics.anew || news.layers.text || news.layers.anew || news.facts;
        if (news.facts) facts = { ...news.facts.content, live: true, thinned: {} };
        [marks.metrics, marks.layers, marks.facts] = [
          news.metrics.mark,
          news.layers.mark,
          news.facts ? news.facts.mark : marks.facts,
        ];
        if (changed && !news.more) {
          draw();
          changed = false;
        }
        if (news.metrics.text) heard = Date.now();
        const ended = facts.diagnosis.verdict || facts.diagnosis.sentence;
        state.textContent = news.more
          ? "reading …"
          : ended
            ? "the run has ended"
            : `following; last new line ${Math.round((Date.now() - heard) / 1000)} s ago`;
        wait = news.more ? 0 : ended ? 5000 : 1000;
      } catch {
        state.textContent = "the server does not answer; trying again";
        wait = Math.min(wait * 1.5 + 200, 10000);
      }
      setTimeout(ask, wait);
    };
    ask();
  }
})();
