"use strict";
/* The part of a run's page that a watched loop has: its mistakes, where they are made, and its optimizers. */
const loop = (() => {
  const { element, byId } = lab;
  const SEVERITIES = { error: "critical", warning: "warning", advice: "info" };

  const code = (text, name) => element("pre", null, { class: name }, [element("code", text)]);

  function mistake(fault) {
    return element("li", null, {}, [
      element("p", null, {}, [
        parts.badge(SEVERITIES[fault.severity], fault.severity),
        element("strong", fault.place),
        ` ${fault.code}: ${fault.message}`,
      ]),
      ...(fault.text ? [code(fault.text, "wrong")] : []),
      ...(fault.occurrences ? [element("p", fault.occurrences, { class: "quiet" })] : []),
      element("p", null, {}, ["Instead: ", element("strong", fault.fix)]),
      element("div", null, { class: "paste" }, [code(fault.example, "right"), lab.copyButton(fault.example)]),
      element("p", fault.why, { class: "quiet" }),
    ]);
  }

  function optimizer(one, i) {
    const name = `optimizer ${i} (${one.kind})`,
      says = `: ${parts.words(one.verdict || "-")} `;
    return element("li", null, {}, [
      one.page ? element("a", name, { href: one.page }) : element("strong", name),
      says,
      ...(one.ill ? [parts.badge("critical", "unhealthy")] : []),
    ]);
  }

  /** The calls of one update: what the loop does, in order. */
  function calls(made) {
    const row = (call) =>
      element("tr", null, {}, [
        element("td", call.place),
        element("td", null, {}, [element("code", call.code)]),
        element("td", call.times > 1 ? `${call.text} (${call.times} times)` : call.text),
      ]);
    return element("details", null, {}, [
      element("summary", "One update, call by call"),
      element("table", null, { class: "calls" }, [element("tbody", null, {}, made.map(row))]),
    ]);
  }

  function show(facts) {
    const watch = facts.diagnosis.watch,
      host = byId("loop"),
      made = (watch && watch.calls) || [];
    if (!watch || !watch.faults || !(watch.faults.length || watch.optimizers.length > 1 || made.length)) {
      host.replaceChildren();
      return;
    }
    const several = watch.optimizers.length > 1,
      n = watch.faults.length,
      mistakes = n === 1 ? "mistake" : "mistakes";
    host.replaceChildren(
      element(
        "h2",
        n ? `${n} ${mistakes} in the loop${several ? `, of optimizer ${watch.optimizer}` : ""}` : "The loop",
      ),
      ...(several ? [element("ul", null, { class: "plain" }, watch.optimizers.map(optimizer))] : []),
      ...(n ? [element("ol", null, { class: "faults" }, watch.faults.map(mistake))] : []),
      ...(made.length ? [calls(made)] : []),
    );
  }

  return { show };
})();
