/* A row a job: sorted by any column, filtered by words and outcomes; what is chosen here is chosen everywhere. */
(() => {
  const { byId, element } = lab,
    { data, jobs, state } = sweep,
    MOST = 500;
  const WORDS = ["job", "outcome", "verdict"];
  const natural = (text) => (/^\d+$/.test(text) ? Number(text) : text);
  const columns = [
    { name: "job", of: (job) => natural(job.job), cell: (job) => sweep.link(job) },
    {
      name: "outcome",
      of: (job) => job.outcome,
      cell: (job) =>
        element("span", null, { class: "nowrap" }, [sweep.swatch(job.outcome), ` ${data.outcomes[job.outcome].name}`]),
    },
    { name: "verdict", of: (job) => job.verdict, cell: (job) => job.verdict },
    ...[...sweep.fields, ...sweep.numbers].map((c) => ({
      name: c.name,
      of: c.of,
      cell: c.text,
      words: Boolean(c.labels),
    })),
    { name: "why", of: (job) => job.why, cell: (job) => job.why, words: true },
  ];
  const found = jobs.map((job) =>
    `job ${job.job} ${data.outcomes[job.outcome].name} ${job.verdict} ${sweep.named(job)} ${job.why}`.toLowerCase(),
  );
  const view = { sort: 0, down: false, text: "", hidden: new Set(), all: false };
  let filled = null,
    soon = 0;
  const rows = [];
  let order = jobs.map((_, i) => i),
    body = null,
    heads = [],
    more = null;

  // --- rows ----------------------------------------------------------------------------------------------------

  function row(job, i) {
    const box = element("input", null, { type: "checkbox", "aria-label": `choose job ${job.job}` });
    box.addEventListener("change", () =>
      sweep.choose(box.checked ? [...state.chosen, i] : state.chosen.filter((k) => k !== i)),
    );
    const made = element("tr", null, {}, [element("td", null, {}, [box])]);
    for (const column of columns) {
      const words = column.words || WORDS.includes(column.name),
        content = column.cell(job);
      const cell = document.createElement("td");
      if (words) cell.className = column.name === "why" ? "text why" : "text";
      if (column.name === "why") cell.title = content;
      cell.append(content);
      made.append(cell);
    }
    made.addEventListener("click", (event) => {
      const text = getSelection();
      if (event.target.closest("a, input") || (!text.isCollapsed && made.contains(text.anchorNode))) return;
      sweep.choose(event.ctrlKey || event.metaKey || event.shiftKey ? [...state.chosen, i] : [i]);
    });
    return { made, box };
  }

  /** Nothing measured comes last, either way. */
  function compare(a, b) {
    const [x, y] = [a, b].map((i) => columns[view.sort].of(jobs[i]));
    const none = (v) => v === null || v === undefined || Number.isNaN(v);
    if (none(x) || none(y)) return none(x) - none(y) || a - b;
    const sign = view.down ? -1 : 1;
    if (typeof x === "number" && typeof y === "number") return x === y ? a - b : sign * (x < y ? -1 : 1);
    return sign * String(x).localeCompare(String(y)) || a - b;
  }

  function fill() {
    const kept = order.filter((i) => state.shown[i]),
      seen = view.all ? kept : kept.slice(0, MOST);
    for (const i of seen) rows[i] = rows[i] || row(jobs[i], i);
    body.replaceChildren(...seen.map((i) => rows[i].made));
    more.hidden = seen.length === kept.length;
    more.textContent = `show the other ${kept.length - seen.length}`;
    mark();
  }

  /** Rows take long to lay out: they wait until the rest is on the screen, and until a range that is dragged rests. */
  function show() {
    mark();
    if (filled === state.shown) return;
    clearTimeout(soon);
    soon = setTimeout(() => {
      filled = state.shown;
      fill();
    }, 40);
  }

  function mark() {
    const chosen = new Set(state.chosen);
    for (const i in rows) {
      rows[i].box.checked = chosen.has(Number(i));
      rows[i].made.classList.toggle("chosen", chosen.has(Number(i)));
    }
    const kept = state.shown.filter(Boolean).length;
    byId("shown").textContent =
      `${kept} of ${sweep.plural(jobs.length, "job")}${chosen.size ? `, ${chosen.size} chosen` : ""}`;
    byId("clear").disabled = kept === jobs.length && !view.text;
    byId("up").disabled = !chosen.size;
  }

  function sort(which, down) {
    Object.assign(view, { sort: which, down });
    order = jobs.map((_, i) => i).sort(compare);
    heads.forEach((head, k) =>
      k === which
        ? head.setAttribute("aria-sort", down ? "descending" : "ascending")
        : head.removeAttribute("aria-sort"),
    );
    filled = null;
    sweep.show();
    sweep.remember();
  }

  // --- filters -------------------------------------------------------------------------------------------------

  const words = () => view.text.toLowerCase().split(/\s+/).filter(Boolean);
  let wanted = [];
  sweep.filters.push((job, i) => !view.hidden.has(job.outcome) && wanted.every((word) => found[i].includes(word)));

  function outcomes() {
    const seen = [...new Set(jobs.map((job) => job.outcome))].sort((a, b) => a - b);
    byId("outcomes").append(
      ...seen.map((i) => {
        const box = element("input", null, { type: "checkbox", checked: true, value: i });
        box.addEventListener("change", () => {
          view.hidden[box.checked ? "delete" : "add"](i);
          sweep.filter();
        });
        return element("label", null, { class: "key" }, [box, sweep.swatch(i), data.outcomes[i].name]);
      }),
    );
  }

  function said() {
    byId("text").value = view.text;
    for (const box of byId("outcomes").querySelectorAll("input")) box.checked = !view.hidden.has(Number(box.value));
    wanted = words();
  }

  function begin() {
    heads = columns.map((column, k) => {
      const button = element("button", column.name, {
        type: "button",
        onclick: () => sort(k, view.sort === k ? !view.down : false),
      });
      return element(
        "th",
        null,
        {
          scope: "col",
          class: column.name === "why" ? "text why" : column.words || WORDS.includes(column.name) ? "text" : false,
        },
        [button],
      );
    });
    body = element("tbody");
    more = element("button", "", {
      type: "button",
      hidden: true,
      onclick: () => {
        view.all = true;
        fill();
      },
    });
    const head = element("thead", null, {}, [
      element("tr", null, {}, [
        element("th", null, { scope: "col" }, [element("span", "chosen", { class: "unseen" })]),
        ...heads,
      ]),
    ]);
    byId("table").append(element("table", null, { "aria-label": "all jobs" }, [head, body]), more);
    outcomes();
    byId("text").addEventListener("input", (event) => {
      view.text = event.target.value;
      wanted = words();
      sweep.filter();
    });
    byId("filter").addEventListener("submit", (event) => event.preventDefault());
    byId("clear").addEventListener("click", () => {
      Object.assign(view, { text: "", hidden: new Set() });
      said();
      for (const other of sweep.views) if (other.cleared) other.cleared();
      sweep.filter();
    });
    byId("up").addEventListener("click", () => {
      byId("details").scrollIntoView({ block: "start" });
      byId("details").focus({ preventScroll: true });
    });
  }

  sweep.linked(
    "find",
    () => view.text,
    (text) => {
      view.text = text;
    },
  );
  sweep.linked(
    "hide",
    () => [...view.hidden].map((i) => data.outcomes[i].name).join(","),
    (text) => {
      view.hidden = new Set(
        text
          .split(",")
          .map((name) => data.outcomes.findIndex((o) => o.name === name))
          .filter((i) => i >= 0),
      );
      said();
    },
  );
  sweep.linked(
    "sort",
    () => (view.sort || view.down ? `${view.down ? "-" : ""}${columns[view.sort].name}` : ""),
    (text) => {
      const which = columns.findIndex((column) => column.name === text.replace(/^-/, ""));
      sort(Math.max(which, 0), which >= 0 && text.startsWith("-"));
    },
  );
  sweep.views.push({ begin, show });
})();
