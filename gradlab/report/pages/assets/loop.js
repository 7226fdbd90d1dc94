"use strict";
/* The part of a run's page that a watched loop has: its mistakes, where they are made, and its optimizers. */
const loop = (() => {
  const { element, byId } = lab;
  const SEVERITIES = { error: "critical", warning: "warning", advice: "info" };

  const code = (text, name) => element("pre", null, { class: name }, [element("code", text)]);

  function fault(told) {
    const often = told.times > 1 ? `, ${told.times} times` : "";
    return element("li", null, {}, [
      element("p", null, {}, [parts.badge(SEVERITIES[told.severity], told.severity), element("strong", told.place), ` ${told.code}: ${told.message}`]),
      ...(told.text ? [code(told.text, "wrong")] : []),
      element("p", `first at update ${told.update}${often}`, { class: "quiet" }),
      element("p", null, {}, ["Instead: ", element("strong", told.mend)]),
      element("div", null, { class: "paste" }, [code(told.example, "right"), lab.copyButton(told.example)]),
      element("p", told.why, { class: "quiet" }),
    ]);
  }

  function optimizer(told, i) {
    const name = `optimizer ${i} (${told.kind})`, says = `: ${parts.words(told.verdict || "-")} `;
    return element("li", null, {}, [told.page ? element("a", name, { href: told.page }) : element("strong", name), says, ...(told.ill ? [parts.badge("critical", "ill")] : [])]);
  }

  /** Whether there was anything to say. */
  function show(facts) {
    const watch = facts.diagnosis.watch, host = byId("loop");
    if (!watch || !watch.faults || !(watch.faults.length || watch.optimizers.length > 1)) { host.replaceChildren(); return; }
    const several = watch.optimizers.length > 1, n = watch.faults.length, mistakes = n === 1 ? "mistake" : "mistakes";
    host.replaceChildren(element("h2", n ? `${n} ${mistakes} in the loop${several ? `, of optimizer ${watch.optimizer}` : ""}` : "The loop"),
      ...(several ? [element("ul", null, { class: "plain" }, watch.optimizers.map(optimizer))] : []),
      ...(n ? [element("ol", null, { class: "faults" }, watch.faults.map(fault))] : []));
  }

  return { show };
})();
