/* What the parts of a sweep's page share: its jobs, which of them are shown and which chosen. */
const sweep = (() => {
  const { element, number, percent, value } = lab;
  const data = lab.json("data"),
    jobs = data.jobs;
  const state = { chosen: [], shown: jobs.map(() => true) };
  const views = [],
    filters = [],
    kept = new Map();
  const at = (name) => data.numbers.indexOf(name);
  const share = (part, whole) => (job) => {
    const [a, b] = [job.numbers[at(part)], whole && job.numbers[at(whole)]].map(value);
    return a === null || (whole && !b) ? null : whole ? a / b : a;
  };

  /** Fields and numbers of a job as columns: of(job) is a number or null; of a category its place among the labels. */
  const fields = data.fields.map((field, i) => ({
    name: field.name,
    labels: field.values ? null : field.labels,
    log: field.log,
    swept: true,
    of: (job) => (field.values ? value(field.values[job.fields[i]]) : job.fields[i]),
    text: (job) => field.labels[job.fields[i]],
  }));
  const outcome = {
    name: "outcome",
    labels: data.outcomes.map((o) => o.name),
    of: (job) => job.outcome,
    text: (job) => data.outcomes[job.outcome].name,
  };
  const numbers = data.numbers.map((name, i) => ({
    name,
    share: name === "clip/fraction",
    of: (job) => value(job.numbers[i]),
    text: (job) => (name === "clip/fraction" ? percent : number)(job.numbers[i]),
  }));
  const survived = {
    name: "updates survived",
    share: true,
    of: share("survived", "planned"),
    text: (job) => percent(share("survived", "planned")(job)),
  };

  const named = (job) => fields.map((f) => `${f.name}=${f.text(job)}`).join(" ");
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const address = (job) => job.job.split("/").map(encodeURIComponent).join("/") + (job.page ? "/report.html" : "/");
  const link = (job, text = job.job) => element("a", text, { href: address(job), title: `${data.folder}/${job.job}` });

  /** The letter of an outcome in its colour. */
  function swatch(i, extra = {}) {
    const o = data.outcomes[i];
    return element("span", o.letter, {
      class: "swatch",
      style: `background:${o.colour};color:${o.light ? "#fff" : "#000"}`,
      ...extra,
    });
  }

  /** A table from texts and elements; the first `words` columns are words. */
  function table(names, rows, words = 1) {
    const cell = (tag, content, i, more = {}) =>
      element(tag, null, { class: i < words ? "text" : false, ...more }, [content]);
    const head = element(
      "tr",
      null,
      {},
      names.map((name, i) => cell("th", name, i, { scope: "col" })),
    );
    const body = rows.map((row) =>
      element(
        "tr",
        null,
        {},
        row.map((content, i) => (i ? cell("td", content, i) : cell("th", content, i, { scope: "row" }))),
      ),
    );
    return element("table", null, {}, [element("thead", null, {}, [head]), element("tbody", null, {}, body)]);
  }

  // --- what is chosen, what is shown ---------------------------------------------------------------------------

  let waiting = 0;

  /** Each view shows what has changed, once a frame however much did. */
  function show() {
    if (!waiting)
      waiting = requestAnimationFrame(() => {
        waiting = 0;
        for (const view of views) if (view.show) view.show();
      });
  }

  function choose(list, remembered = true) {
    state.chosen = [...new Set(list)].filter((i) => i >= 0 && i < jobs.length);
    show();
    if (remembered) remember();
  }

  function filter() {
    state.shown = jobs.map((job, i) => filters.every((keeps) => keeps(job, i)));
    show();
    remember();
  }

  /** What can be linked to, after the address' #: names with a function that says it and one that takes it. */
  const linked = (name, say, take) => kept.set(name, { say, take });
  let recalling = false;

  function remember() {
    if (recalling) return;
    const parts = new URLSearchParams();
    for (const [name, { say }] of kept) {
      const text = say();
      if (text) parts.set(name, text);
    }
    try {
      history.replaceState(null, "", `#${parts}`);
    } catch {
      /* a browser that keeps files from it */
    }
  }

  function recall() {
    const parts = new URLSearchParams(location.hash.slice(1));
    recalling = true;
    for (const [name, { take }] of kept) take(parts.get(name) || "");
    filter();
    recalling = false;
  }

  linked(
    "jobs",
    () =>
      state.chosen
        .slice(0, 50)
        .map((i) => jobs[i].job)
        .join(","),
    (text) => {
      const wanted = new Set(text.split(","));
      if (text) choose(jobs.map((job, i) => (wanted.has(job.job) ? i : -1)));
    },
  );

  return {
    data,
    jobs,
    state,
    views,
    filters,
    fields,
    outcome,
    numbers,
    survived,
    at,
    named,
    plural,
    link,
    swatch,
    table,
    choose,
    filter,
    show,
    linked,
    remember,
    recall,
  };
})();
