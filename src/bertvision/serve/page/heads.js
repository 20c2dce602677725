// The heads beside each other: answers to questions as a table, labels and scores as cards, learned weights as bars.

import { count, el, percent } from "./dom.js";
import { verdict } from "./gauge.js";
import { textRows } from "./layers.js";

/** A bar in its row, as long as `share` is of the largest. */
function bar(share, kind = "") {
  const fill = el("span", { class: `meter ${kind}` });
  fill.style.setProperty("inline-size", `${100 * Math.max(0, Math.min(1, share))}%`);
  return el("span", { class: "meter-box", "aria-hidden": "true" }, fill);
}

/** The table of span heads; `choose` gets a name. */
export function drawHeads(place, tasks, models, chosen, thresholds, choose) {
  const head = ["Head", "Answer", "Sure", "No answer", "Parameters"];
  const rows = Object.entries(tasks).map(([name, task]) => {
    const reply = verdict(task, thresholds[name] ?? null);
    const best = task.nbest[0];
    const answer = reply.none ? el("span", { class: "none" }, "no answer") : best.text;
    const id = `head-${Object.keys(tasks).indexOf(name)}`;
    return el(
      "tr",
      { class: name === chosen ? "best" : null, onclick: () => choose(name) },
      el(
        "th", { scope: "row" },
        el("input", { type: "radio", name: "head", id, ".checked": name === chosen, onchange: () => choose(name) }),
        " ", el("label", { for: id }, name),
      ),
      el("td", { class: "text" }, answer),
      el("td", {}, percent(task.prediction.probability)),
      el("td", {}, percent(task.no_answer)),
      el("td", {}, count(models[name]?.parameters ?? 0)),
    );
  });
  place.replaceChildren(
    el(
      "table", {},
      el("thead", {}, el("tr", {}, ...head.map((word, i) => el("th", { scope: "col", class: i === 1 ? "text" : null }, word)))),
      el("tbody", {}, ...rows),
    ),
  );
}

/** The best candidates with how likely each is. */
export function drawRivals(place, task) {
  if (!task.nbest.length) return place.replaceChildren();
  const most = Math.max(...task.nbest.map((one) => one.probability), task.no_answer);
  const row = (words, p, kind) => el("li", {}, el("span", { class: "words" }, words), el("span", { class: "p" }, percent(p)), bar(p / most, kind));
  place.replaceChildren(
    el("h2", { class: "minor" }, "What it considered"),
    el(
      "ul", { class: "rivals" },
      ...task.nbest.map((one) => row(one.text, one.probability, "")),
      row(el("i", {}, "no answer"), task.no_answer, "absent"),
    ),
  );
}

/** One card for every label and score task. */
export function drawCards(place, tasks, layers, models) {
  place.replaceChildren(
    ...Object.entries(tasks).map(([name, task]) => {
      const rows = layers[name] ?? [];
      const heads = models[name]?.heads.join(", ");
      return el(
        "article", {},
        el("p", { class: "soft" }, name, heads && heads !== name ? ` · ${heads}` : ""),
        el("p", { class: "answer" }, task.kind === "label" ? task.label : task.score.toFixed(2)),
        task.kind === "label" ? chances(task.probabilities) : null,
        rows.length ? el("h3", {}, "Layer by layer") : null,
        rows.length ? el("ul", { class: "text-rows" }, ...textRows(rows, task)) : null,
      );
    }),
  );
}

function chances(probabilities) {
  const sorted = Object.entries(probabilities).map(([name, p], i) => [name, p, i]).sort((a, b) => b[1] - a[1]);
  return el(
    "ul", { class: "rivals" },
    ...sorted.map(([name, p, i]) => el("li", {}, el("span", { class: "words" }, name), el("span", { class: "p" }, percent(p)), bar(p, `series-${i % 6}`))),
  );
}

/** Bars of the heads that weigh layers; false where none does. */
export function drawWeights(place, tasks) {
  const figures = Object.entries(tasks).filter(([, task]) => task.layer_weights?.some((weight) => weight > 0));
  place.replaceChildren(
    ...figures.map(([name, task]) => {
      const bars = task.layer_weights.map((weight, k) => [k ? String(k) : "words", weight]);
      if (task.pooled_weight !== null && task.pooled_weight !== undefined) bars.push(["pooled", task.pooled_weight]);
      const most = Math.max(...bars.map(([, weight]) => weight));
      return el(
        "figure", {},
        el("figcaption", {}, name),
        el(
          "ol", { class: "weights", "aria-label": `Weights of ${name}, from the words to the last layer` },
          ...bars.map(([word, weight]) => {
            const column = el("span", { class: "column" });
            column.style.setProperty("block-size", `${(100 * weight) / most}%`);
            return el("li", {}, el("span", { class: "value" }, percent(weight)), el("span", { class: "room" }, column), el("span", { class: "soft" }, word));
          }),
        ),
      );
    }),
  );
  return figures.length > 0;
}
