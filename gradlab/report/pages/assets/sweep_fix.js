/* A search for a cure: what came of it, and every run that it took. */
(() => {
  const { byId, element } = lab,
    found = sweep.data.fix;
  if (!found) return;

  function begin() {
    const view = byId("fix-view");
    view.hidden = false;
    byId("fix-title").textContent = found.title;
    view.append(
      element(
        "ul",
        null,
        { class: "plain" },
        found.says.map((line) => element("li", line)),
      ),
    );
    if (found.command)
      view.append(element("p", null, {}, [element("code", found.command), " ", lab.copyButton(found.command)]));
    const rows = found.trials.map(([change, purpose, seed, verdict, updates, job]) => [
      change,
      purpose,
      seed,
      verdict,
      updates,
      job === undefined || job === null ? "" : sweep.link(sweep.jobs[job]),
    ]);
    const names = ["change", "run", "seed", "verdict", "updates", "job"];
    view.append(lab.scroll("the runs of the search", sweep.table(names, rows, 4)));
  }

  sweep.views.push({ begin });
})();
