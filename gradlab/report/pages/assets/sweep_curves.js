/* The panel that shows the curves and the numbers of the chosen jobs. */
sweep.curves = (() => {
  const { element } = lab,
    { data, jobs, state } = sweep,
    { COLOURS, pair, sample, stroke } = sweep.charts,
    MOST = 14;

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
    const list = state.chosen.slice(0, MOST).map((i) => jobs[i]),
      parts = [];
    if (!list.length)
      parts.push(
        element("p", `Choose ${data.map ? "a point of the map, or " : ""}jobs of the table to see their curves.`, {
          class: "quiet",
        }),
      );
    else {
      const many = list.length > 1,
        lines = list.map((job, k) => ({ job, style: stroke(k, many) }));
      parts.push(element("h2", title(list)));
      if (state.chosen.length > MOST)
        parts.push(element("p", `the first ${MOST} of ${state.chosen.length} jobs`, { class: "quiet" }));
      parts.push(pair(lines), ...list.flatMap((job, k) => run(job, many ? lines[k].style : null)));
    }
    panel.replaceChildren(...parts);
  }

  function run(job, style) {
    const heading = element("h3", null, {}, [
      ...(style ? [sample(style), " "] : []),
      sweep.swatch(job.outcome),
      " job ",
      sweep.link(job),
      `: ${job.verdict}`,
    ]);
    const differs = style && sweep.named(job),
      link = sweep.link(job, job.page ? "its page" : "its folder");
    const parts = [
      heading,
      ...(differs ? [element("p", differs, { class: "quiet" })] : []),
      element("p", `${data.outcomes[job.outcome].name}: ${job.why} `, {}, [link]),
    ];
    const rows = sweep.numbers.map((n) => [n.name, n.text(job)]);
    parts.push(
      element("details", null, style ? {} : { open: true }, [
        element("summary", "numbers"),
        lab.scroll("numbers", sweep.table(["", "value"], rows)),
      ]),
    );
    return parts;
  }

  sweep.views.push({ show: details });
  /** The colour of a job among those that are chosen, as a variable of the style. */
  const colour = (i) =>
    state.chosen.length > 1 && state.chosen.indexOf(i) >= 0 ? COLOURS[state.chosen.indexOf(i) % 7] : "--focus";

  return { colour };
})();
