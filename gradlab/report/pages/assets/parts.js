"use strict";
/* The parts of a run's page that are text: verdict, remedies, what was checked, the crash, what ran. */
const parts = (() => {
  const { element, number, byId } = lab;
  const words = (name) => String(name).replaceAll("_", " ");
  const SHARES = new Set([
    ...["clip/fraction", "often", "share", "nonfinite", "fraction"],
    ...["flushed", "left", "lost", "still", "part"],
  ]);

  /** Name of a number in the evidence, or the verdict and that name -> its words; "_" is a space in all others. */
  const EVIDENCE = {
    scale_fell_from: "update at which the scale began to fall",
    scale_fell_in_epoch: "its epoch",
    skipped_since: "updates skipped since then",
    skipped_last_in_a_row: "of these the last in a row",
    "scale_livelock skipped": "updates skipped at the end, in a row",
    loss_first: "loss, the first",
    loss_best: "loss, lowest median of a window",
    loss_last: "loss, median of the last",
    usual_grad_norm: "usual grad norm (median of the latest)",
    largest_grad_norm_at: "its update",
    loss_scale_lowered_at: "update at which the loss scale had to fall again",
    at_first: "early layers had as little gradient at first",
    early: "grad norm of the early layers at the end",
    late: "grad norm of the late layers at the end",
    late_to_early_ratio: "gradient of late layers ÷ of early ones",
    late_to_early_time: "gradient at the last time steps ÷ at the first",
    missing: "not in the model",
    steep: "these samples are like the others",
    gated: "its cells have gates",
    cut: "units are alive, and the gradient is zero",
    zero: "weights without a gradient but zero",
    "zero_gradient zero": "weights that begin at zero",
    weights_of_zero: "all initial weights are zero",
    some: "the training data are answered better than by a constant answer",
    slow: "the loss, or the evaluations, fell to the last",
    taken: "updates took the gradient away",
    times: "first losses ÷ loss of the constant answer",
    classes: "targets are classes",
    shares: "first losses are as of wrong shares of the classes",
    same: "what every sample gives alike goes into",
    training: "what only training adds to the loss",
    constant: "loss of the best constant answer",
    evaluation: "best evaluation",
    evaluation_constant: "loss of its constant answer",
    end: "mean of the last losses",
    ends: "means of their last losses",
    standard_error: "its standard error",
    "not_learning first": "loss at first",
    "memorising train": "mean of the last training losses",
    "diverged best": "lowest loss or evaluation",
    "diverged last": "the last",
    ratio: "usual update ÷ weights",
    moved: "first update ÷ weights",
    "update_too_large usual": "usual update ÷ weights",
    "update_too_large largest": "largest update ÷ weights",
    "exploding largest": "largest grad norm since then",
    "exploding weights": "norm of the weights at the end",
    usual_before: "usual grad norm before it",
    "bad_batch norm": "grad norm of the update",
    "bad_batch loss": "loss of the update",
    "bad_batch count": "updates far above those before",
    "loss_spike_recovered usual": "usual loss before it",
    "loss_spike_recovered height": "highest mean loss",
    "loss_spike_recovered count": "times that the loss rose",
    update_ratio: "its update ÷ weights",
    others: "usual update ÷ weights of the other layers",
    part: "its part of the squared grad norm",
    full_updates: "updates of its highest rate that the run is worth",
    norm_first: "grad norm at first",
    norm_last: "grad norm at the end",
    weights_first: "norm of the weights at first",
    weights_last: "norm of the weights at the end",
    coefficient: "usual part of the gradient that clipping leaves",
    "overclipped fraction": "updates that are clipped",
    "dead_units fraction": "units that are zero for every sample",
    "saturated_units fraction": "outputs, or units, that are saturated",
    left: "part of the loss of a constant answer that is left",
    flushed: "part of the gradient that is zero in fp16 alone",
    lost: "weights that a usual update leaves as they are",
    still: "weights that stay the same from record to record",
    noise: "noise ÷ gradient norm",
    eps: "eps ÷ usual element of the gradient",
    betas: "Adam's beta1 and beta2",
    batch_norm_samples: "values of a channel in batch norm",
    dropout: "part of its input that dropout takes",
    dropout_module: "that dropout",
    unseen: "loss of samples that no update had seen",
    probabilities: "the outputs are probabilities already",
    input_size: "largest input (median of a batch)",
    output_bound: "largest output that there can be",
    target_size: "largest target (median of a batch)",
    output: "largest output",
    initial_overflows: "micro-batches that overflow with the initial weights",
    updates: "updates tried",
    bad_updates: "updates with such a loss",
    windows: "windows without a target",
    summed: "the loss is a sum over samples",
    usual_update_ratio: "usual update ÷ weights",
  };

  /** Of several losses; it is infinite where half of them are NaN or infinite. */
  const level = (value) => (Number(value) === Infinity ? "not finite" : number(value));

  /** Whether a value in the evidence says anything: nothing was found, or is so, is no evidence. */
  const says = (value) => ![null, undefined, false, ""].includes(value) && !(Array.isArray(value) && !value.length);

  function shown(key, value) {
    if (value === null || value === undefined) return "-";
    if (key.startsWith("loss_")) return level(value);
    if (Array.isArray(value) && !value.length) return "none";
    if (Array.isArray(value))
      return value.length > 12
        ? `${value
            .slice(0, 12)
            .map((v) => shown("", v))
            .join(", ")}, …`
        : value.map((v) => shown("", v)).join(", ");
    if (typeof value === "object")
      return Object.entries(value)
        .map(([k, v]) => `${k} ${shown(k, v)}`)
        .join("; ");
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value === "string" && !["NaN", "Infinity", "-Infinity"].includes(value)) return value;
    return SHARES.has(key) ? lab.percent(Number(value)) : number(value);
  }

  const table = (rows, attributes = {}) =>
    lab.scroll(
      "names and values",
      element("table", null, attributes, [
        element(
          "tbody",
          null,
          {},
          rows.map(([name, value]) =>
            element("tr", null, {}, [
              element("th", name, { scope: "row", class: "text" }),
              element("td", null, {}, [value instanceof Node ? value : String(value)]),
            ]),
          ),
        ),
      ]),
    );

  const paste = (text) => element("div", null, { class: "paste" }, [element("code", text), lab.copyButton(text)]);
  const badge = (severity, text) => element("span", text || severity, { class: `badge ${severity}` });

  const findingsOf = (d) => d.findings || [];
  const main = (d) => findingsOf(d).find((f) => f.code === d.verdict);

  function severity(d) {
    if (!d.verdict) return d.exit_code ? "critical" : "info";
    const found = main(d);
    return d.ill ? "critical" : found ? found.severity : "good";
  }

  const STATUS = {
    completed: "completed",
    failed: "failed",
    given_up: "given up",
    interrupted: "interrupted",
    error: "error",
  };

  function header(facts, run) {
    const d = facts.diagnosis,
      o = d.outcome || {},
      m = d.measured || {},
      host = byId("header");
    const name = element("p", null, { class: "where" }, [
      ...(facts.sweep ? [element("a", "sweep", { href: facts.sweep }), " / "] : []),
      facts.name,
    ]);
    const ended = o.status
      ? STATUS[o.status] || o.status
      : d.remedy && d.remedy.applies === false
        ? "does not apply"
        : d.sentence
          ? "no measurement"
          : facts.live
            ? "running"
            : "has not ended, or was killed";
    const judged = d.ill
      ? "unhealthy"
      : o.status === "interrupted" || d.verdict === "too_short"
        ? null
        : severity(d) === "good"
          ? "healthy"
          : severity(d);
    const title = element("h1", null, {}, [
      element("span", d.verdict ? words(d.verdict) : ended),
      ...(d.verdict && judged ? [badge(severity(d), judged)] : []),
    ]);
    const evals = run.evals.filter((e) => "eval/loss" in e),
      last = evals[evals.length - 1];
    const numbers = [
      ["ended", ended],
      ["updates applied", `${o.applied ?? run.applied}${d.planned ? ` of ${d.planned}` : ""}`],
      ["skipped", run.thinned ? (m.skipped ?? "-") : run.skips],
      ["epochs", o.epochs_completed ?? (run.n ? run.epoch[run.n - 1] : 0)],
      [
        "loss/final" in m ? "loss, first and last (median)" : "loss, first and last update",
        `${number(m["loss/initial"] ?? run.loss[0])} → ${level(m["loss/final"] ?? run.loss[run.n - 1])}`,
      ],
      [
        "evaluation",
        last
          ? `${number(last["eval/loss"])}${"eval/accuracy" in last ? ` (${lab.percent(Number(last["eval/accuracy"]))})` : ""}`
          : "-",
      ],
      ["time", o.seconds !== undefined ? seconds(o.seconds) : "-"],
      ["seed", facts.config.seed ?? "-"],
    ].filter(([name]) => !d.watch || !["epochs", "evaluation", "seed"].includes(name)); // a watched loop keeps these to itself
    host.replaceChildren(
      name,
      title,
      ...(d.sentence ? [element("p", d.sentence, { class: "said" })] : []),
      ...(run.n || d.verdict
        ? [
            element(
              "dl",
              null,
              { class: "numbers" },
              numbers.map(([k, v]) => element("div", null, {}, [element("dt", k), element("dd", String(v))])),
            ),
          ]
        : []),
    );
  }

  const seconds = (s) =>
    s < 90 ? `${number(s, 3)} s` : s < 5400 ? `${number(s / 60, 3)} min` : `${number(s / 3600, 3)} h`;

  function verdict(facts) {
    const d = facts.diagnosis,
      o = d.outcome || {},
      host = byId("verdict"),
      found = main(d),
      left = [],
      right = [];
    if (!d.verdict && !d.sentence) {
      host.replaceChildren();
      return;
    }
    if (facts.expectation) left.push(element("p", `${facts.expectation[0].toUpperCase()}${facts.expectation.slice(1)}.`));
    if (o.error && ![d.sentence, ...findingsOf(d).map((f) => f.sentence)].some((s) => (s || "").includes(o.error))) left.push(element("p", o.error, { class: "critical" }));
    const faults = new Set(((d.watch || {}).faults || []).map((f) => f.name)),
      inLoop = new Set(["file", "line", "rule", "times", "fix"]);
    const evidence = Object.entries({ ...(found ? found.evidence : {}), ...d.evidence }).filter(
      ([k, v]) => (!faults.size || !inLoop.has(k)) && says(v),
    );
    const first = new Set(found ? Object.keys(found.evidence) : []);
    if (evidence.length) {
      left.push(element("h3", "Evidence"));
      left.push(
        table(
          evidence.sort((a, b) => first.has(b[0]) - first.has(a[0])).map(([k, v]) => [EVIDENCE[`${d.verdict} ${k}`] || EVIDENCE[k] || words(k), shown(k, v)]),
          { class: "evidence" },
        ),
      );
    }
    if (found && found.causes.length) {
      right.push(element("h3", "Likely causes"));
      right.push(
        element(
          "ol",
          null,
          { class: "plain" },
          found.causes.map((c) => element("li", c)),
        ),
      );
    }
    const tries = d.remedies || [];
    if (tries.length) {
      right.push(element("h3", "To try, one at a time"));
      right.push(
        element(
          "ol",
          null,
          { class: "remedies" },
          tries.map((t, i) =>
            element("li", null, {}, [
              element("p", null, {}, [element("strong", words(t.name).replace(/[[\]]/g, "").replaceAll(",", " + ")), `: ${t.why}`]),
              paste(facts.commands.remedies[i]),
            ]),
          ),
        ),
      );
      if (facts.commands.fix) right.push(element("h3", "To find the smallest change that cures it"), paste(facts.commands.fix));
    }
    if (o.status === "interrupted" && !d.watch) right.push(element("h3", "To resume it"), paste(facts.commands.resume));
    const rest = findingsOf(d).filter((f) => f !== found && !faults.has(f.code));
    const sentences = rest.map((f) => f.sentence),
      said = [d.sentence, ...new Set(findingsOf(d).filter((f) => f !== found).map((f) => f.sentence))];
    const others = rest.filter(
      (f, i) => sentences.indexOf(f.sentence) === i && said.filter((s) => s.includes(f.sentence)).length === 1,
    );
    const more = others.length
      ? [
          element("h3", "Also found"),
          element(
            "ul",
            null,
            { class: "findings" },
            others.map((f) =>
              element("li", null, {}, [
                badge(f.severity),
                element("strong", words(f.code)),
                `: ${f.sentence}`,
                ...(f.began > 1 && !new RegExp(`\\bupdate ${f.began}\\b`).test(f.sentence)
                  ? [element("span", ` (since update ${f.began})`, { class: "quiet" })]
                  : []),
                ...(f.causes.length
                  ? [element("div", `likely because: ${f.causes.join("; or ")}`, { class: "quiet" })]
                  : []),
              ]),
            ),
          ),
        ]
      : [];
    if (d.remedy && d.remedy.applies) more.push(...remedy(d.remedy));
    if (!d.verdict && !left.length && !right.length && !more.length) {
      host.replaceChildren();
      return;
    }
    const columns = [left, right].filter((c) => c.length).map((c) => element("div", null, {}, c));
    host.replaceChildren(
      element("h2", d.verdict ? "Verdict" : "What happened", { id: "verdict-title" }),
      element("div", null, { class: "two" }, columns),
      ...more,
    );
  }

  function remedy(record) {
    const rows = Object.entries(record.changed || {}).map(([k, v]) => [
      k,
      Array.isArray(v) ? `${shown(k, v[0])} → ${shown(k, v[1])}` : shown(k, v),
    ]);
    const names = Array.isArray(record.names) ? record.names.join(" + ") : record.names || record.name || "remedy";
    return [
      element("h3", `Remedy: ${words(names)}`),
      ...(record.why ? [element("p", record.why)] : []),
      ...(rows.length ? [table(rows, { class: "facts" })] : []),
    ];
  }

  function checked(facts) {
    const d = facts.diagnosis,
      host = byId("checked"),
      reasons = new Map();
    if (!d.checked) {
      host.replaceChildren();
      return;
    }
    for (const [code, why] of Object.entries(d.unchecked || {}))
      reasons.set(why, [...(reasons.get(why) || []), words(code)]);
    const not = Object.keys(d.unchecked || {}).length;
    host.replaceChildren(
      element("h2", "What was checked"),
      element("p", `${d.checked.length} rules were applied: ${d.checked.map(words).join(", ")}.`),
      ...(not
        ? [
            element("p", `${not} could not be:`),
            element(
              "ul",
              null,
              { class: "plain" },
              [...reasons].map(([why, codes]) => element("li", `${codes.join(", ")}: ${why}`)),
            ),
          ]
        : []),
    );
  }

  /** What led to the end of a run that failed, in order. */
  function story(facts, run) {
    const d = facts.diagnosis,
      o = d.outcome || {},
      e = d.evidence || {},
      over = d.first_overflow,
      host = byId("story"),
      steps = [];
    if (!["failed", "given_up"].includes(o.status) && !over) {
      host.replaceChildren();
      return;
    }
    const epoch = (at) => {
      const i = run.attempt.indexOf(at);
      return i < 0 ? "" : `, in epoch ${run.epoch[i]}`;
    };
    const began = e.scale_fell_from ?? o.first_failed_attempt;
    if (began > 1) {
      const i = run.attempt.findLastIndex((a, k) => a < began && !run.skipped[k]);
      if (i >= 0)
        steps.push([
          "",
          `Update ${run.attempt[i]}${epoch(run.attempt[i])}: the last that was applied before it; loss ${number(run.loss[i])}, gradient norm ${number(run.norm[i])}${run.scaled ? `, loss scale ${number(run.scale[i])}` : ""}.`,
        ]);
    }
    if (e.scale_fell_from !== undefined) {
      const streak = e.skipped_last_in_a_row > 1 ? `, the last ${e.skipped_last_in_a_row} in a row` : "";
      const updates = o.attempts - e.scale_fell_from + 1;
      const skipped =
        e.skipped_since === updates
          ? "Every update from there on was skipped"
          : `${e.skipped_since} of the ${updates} updates from there on were skipped${streak}`;
      steps.push([
        "bad",
        `Update ${e.scale_fell_from}, in epoch ${e.scale_fell_in_epoch}: the loss scale begins to fall. ${skipped}.`,
      ]);
    }
    if (o.first_failed_attempt && o.first_failed_attempt < o.attempts && o.status === "failed")
      steps.push([
        "bad",
        `Update ${o.first_failed_attempt}, in epoch ${o.first_failed_epoch}: the first of the last streak of failures.`,
      ]);
    if (over) {
      const healthy =
        over.healthy !== null && over.healthy !== undefined
          ? ` Last finite before it: ${over.healthy || "the model"}, at most ${number(over.healthy_max)}.`
          : "";
      steps.push([
        "bad",
        `${facts.crash ? "In the update that was replayed" : "With the final weights"}: ${facts.sentence_of_overflow || `${over.module} (${over.kind}) overflows first`}.${healthy && !facts.sentence_of_overflow.includes("last finite") ? healthy : ""}`,
      ]);
    }
    if (o.status === "failed" || o.status === "given_up")
      steps.push(["bad", `Update ${o.attempts}: the run ends: ${o.error}`]);
    const more = [];
    const ranges = [
      ...((over || {}).ranges || []),
      ...["outputs", "targets"].map((k) => (over || {})[k]).filter(Boolean),
    ];
    if (ranges.length) {
      const rows = ranges.map((r) => [
        r.name,
        r.shape.join(" × ") || "a number",
        r.dtype,
        number(r.min),
        number(r.max),
        number(r.absmax),
        r.nonfinite ? lab.percent(Number(r.nonfinite)) : "none",
      ]);
      const by = over.operation ? ` (${over.operation})` : "";
      const of = over.derivative ? `the derivative of ${over.derivative}` : `the backward pass${by}`;
      const module = over.module || "the model";
      const where =
        over.phase === "backward"
          ? `${of}${over.kind ? ` in ${module}` : ""}`
          : `${over.phase === "loss" ? "the loss" : module}${by}`;
      more.push(
        element("h3", `What went into ${where}, and what came out`),
        grid(["tensor", "shape", "type", "min", "max", "largest", "not finite"], rows),
      );
    }
    const replayed = facts.replay.modules || [];
    if (replayed.length)
      more.push(
        element("h3", "Modules before it, in the order in which they ended (replay)"),
        grid(
          ["module", "kind", "largest output", "largest gradient"],
          replayed.map((m) => [m.module || "the model", m.kind, number(m.output), number(m.gradient)]),
        ),
      );
    if (facts.crash)
      more.push(element("h3", "Replay that update, operation by operation"), paste(facts.commands.replay));
    host.replaceChildren(
      element("h2", o.status === "failed" || o.status === "given_up" ? "How it came to the end" : "What overflows"),
      element("div", null, { class: "story" }, [
        element(
          "ol",
          null,
          {},
          steps.map(([kind, text]) => element("li", text, { class: kind })),
        ),
      ]),
      ...more,
    );
  }

  const grid = (names, rows) =>
    lab.scroll(
      "numbers",
      element("table", null, { class: "columns" }, [
        element("thead", null, {}, [
          element(
            "tr",
            null,
            {},
            names.map((n) => element("th", n, { scope: "col" })),
          ),
        ]),
        element(
          "tbody",
          null,
          {},
          rows.map((row) =>
            element(
              "tr",
              null,
              {},
              row.map((v) => element("td", String(v))),
            ),
          ),
        ),
      ]),
    );

  function ran(facts) {
    const host = byId("ran"),
      { config, choices, environment: env } = facts,
      given = new Set(facts.overrides.map((o) => o.replace(/^[+~]+/, "").split("=")[0]));
    const fields = (group, value) =>
      Object.entries(value).flatMap(([k, v]) => {
        if (v && typeof v === "object" && !Array.isArray(v)) return fields(`${group}.${k}`, v);
        const text = element(
          "code",
          `${[...group.split(".").slice(1), k].join(".")}=${v === null ? "null" : Array.isArray(v) ? `[${v.join(",")}]` : v}`,
        );
        if (given.has(`${group}.${k}`) || given.has(`${group}/${k}`)) text.classList.add("given");
        return text;
      });
    const groups = Object.entries(config).filter(
      ([k, v]) => v && typeof v === "object" && !Array.isArray(v) && k !== "remedy",
    );
    const rest = Object.entries(config).filter(([k, v]) => (v === null || typeof v !== "object") && k !== "story");
    const rows = groups.map(([group, value]) =>
      element("tr", null, {}, [
        element("th", group, { scope: "row" }),
        element("td", choices[group] || "", given.has(group) ? { class: "given" } : {}),
        element("td", null, {}, fields(group, value)),
      ]),
    );
    rows.push(
      element("tr", null, {}, [
        element("th", "run", { scope: "row" }),
        element("td", ""),
        element(
          "td",
          null,
          {},
          rest.map(([k, v]) => element("code", `${k}=${v}`, given.has(k) ? { class: "given" } : {})),
        ),
      ]),
    );
    const git = (g) =>
      g
        ? `${(g.commit || "").slice(0, 12)} on ${g.branch}${g.changed_files ? `, ${g.changed_files} changed files` : ", nothing changed"}`
        : null;
    const packages = env.packages || {};
    const about = [
      ["folder", facts.folder],
      ["device", env.device ? `${env.device}: ${env.device_name}` : null],
      ["processes", env.world_size ? `${env.world_size}, of ${env.threads} threads on ${env.cpus} processors` : null],
      ["CUDA", env.cuda],
      ["Python", env.python],
      [
        "packages",
        Object.entries(packages)
          .map(([k, v]) => `${k} ${v}`)
          .join(", "),
      ],
      ["system", env.system],
      ["code here", git(env.git)],
      ["gradlab's code", git(env.gradlab_git) === git(env.git) ? null : git(env.gradlab_git)],
      [
        "before it was resumed",
        env.before
          ? `Python ${env.before.python}, torch ${(env.before.packages || {}).torch}, ${env.before.device_name}, ${git(env.before.git) || "no git"}`
          : null,
      ],
    ].filter(([, v]) => v);
    const story =
      config.story && !String(config.story).includes("${") ? [element("p", String(config.story).trim())] : [];
    host.replaceChildren(
      element("h2", "What ran"),
      ...story,
      facts.diagnosis.watch
        ? element("p", `${facts.diagnosis.watch.program}, followed by gradlab.watch`)
        : paste(facts.commands.again),
      ...(groups.length
        ? [
            element("h3", "Configuration"),
            element("p", "Underlined: given on the command line.", { class: "quiet" }),
            lab.scroll(
              "configuration",
              element("table", null, { class: "config" }, [element("tbody", null, {}, rows)]),
            ),
          ]
        : []),
      element("h3", "Environment"),
      table(about, { class: "facts" }),
    );
  }

  return { header, verdict, checked, story, ran, words, shown, table, badge, paste, severity, grid };
})();
