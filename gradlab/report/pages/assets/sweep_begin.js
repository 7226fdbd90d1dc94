/* What stands above everything, and the beginning. */
(() => {
  const { byId, element } = lab,
    { data, jobs } = sweep;
  const count = (of) => jobs.reduce((counts, job) => counts.set(of(job), (counts.get(of(job)) || 0) + 1), new Map());

  function swept() {
    const fields = data.fields.map((f) => {
      const n = f.labels.length;
      return f.values
        ? `${f.name} (${n} values, ${f.labels[0]} to ${f.labels[n - 1]})`
        : `${f.name} (${n > 8 ? `${n} values` : f.labels.join(", ")})`;
    });
    byId("swept").textContent =
      `${sweep.plural(jobs.length, "job")}${fields.length ? ` over ${fields.join(" × ")}` : ""}`;
    byId("folder").textContent = data.folder;
    byId("files").append(...data.files.flatMap((name) => [" ", element("a", name, { href: name })]));
  }

  /** How many jobs ended how: a bar, and the same in words. */
  function counts() {
    const outcomes = [...count((job) => job.outcome)].sort(([a], [b]) => a - b);
    const verdicts = [...count((job) => job.verdict)].sort(([, a], [, b]) => b - a);
    const parts = outcomes.map(([i, n]) =>
      sweep.swatch(i, {
        style: `flex:${n} 1 0;background:${data.outcomes[i].colour};color:${data.outcomes[i].light ? "#fff" : "#000"}`,
      }),
    );
    const words = outcomes.map(([i, n]) =>
      element("li", null, {}, [
        sweep.swatch(i),
        element("strong", ` ${n} ${data.outcomes[i].name}`),
        `: ${data.outcomes[i].means}`,
      ]),
    );
    byId("counts").append(
      element("div", null, { class: "bar", "aria-hidden": "true" }, parts),
      element("ul", null, { class: "plain" }, words),
      element("p", `verdicts: ${verdicts.map(([name, n]) => `${n} ${name}`).join(", ")}`),
    );
  }

  const command = (text) => element("p", null, {}, [element("code", text), " ", lab.copyButton(text)]);

  function words() {
    const map = data.map;
    const said = (map ? map.slices : []).filter((s) => s.says);
    byId("recommended").hidden = !said.length;
    const lines = said.map((s) =>
      element("div", null, {}, [
        element("p", null, {}, [
          element("strong", said.length > 1 ? `Recommended, ${s.title}: ` : "Recommended: "),
          s.says,
        ]),
        ...(s.command ? [command(s.command)] : []),
      ]),
    );
    byId("recommended").append(...lines.slice(0, 2));
    if (lines.length > 2)
      byId("recommended").append(
        element("details", null, {}, [element("summary", `of the other ${lines.length - 2} maps`), ...lines.slice(2)]),
      );
    byId("unfinished").hidden = !data.unfinished.count;
    if (data.unfinished.count)
      byId("unfinished").append(
        element(
          "p",
          `${sweep.plural(data.unfinished.count, "job")} ${data.unfinished.count === 1 ? "has" : "have"} not finished; what is left runs with:`,
        ),
        command(data.unfinished.command),
      );
    byId("given").hidden = !data.common && !data.command;
    if (data.common) byId("given").append(element("p", null, {}, ["every job: ", element("code", data.common)]));
    if (data.command) byId("given").append(command(data.command));
  }

  lab.themeButton(byId("theme"));
  swept();
  counts();
  words();
  document
    .querySelector("main")
    .classList.toggle("alone", !data.map && !data.remedies && !data.edges && !data.fix && jobs.length < 2);
  for (const view of sweep.views) if (view.begin) view.begin();
  const best = data.map && data.map.slices.find((s) => s.jobs.length);
  sweep.choose(
    best ? best.jobs : data.map ? data.map.slices[0].cells[0].jobs : jobs.length < 8 ? jobs.map((_, i) => i) : [0],
    false,
  );
  sweep.recall();
  addEventListener("hashchange", sweep.recall);

  // Paper is white, and canvases are drawn in the colours of the page.
  let before = null;
  addEventListener("beforeprint", () => {
    before = ["dark", "light"].find((name) => document.documentElement.classList.contains(name)) || "";
    lab.theme("light");
  });
  addEventListener("afterprint", () => {
    if (before !== null) lab.theme(before);
    before = null;
  });
})();
