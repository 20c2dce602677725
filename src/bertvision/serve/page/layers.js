// What every layer makes of it, from the bare words to the last layer: one row each, read by a small reader of its own.

import { el, layerName, percent, shade, svg } from "./dom.js";

const same = (a, b) => a && b && a.start === b.start && a.end === b.end;

/** From which layer on all of them find this answer; null where the last one does not. */
export function formedAt(layers, answer) {
  let first = null;
  for (const row of [...layers].reverse()) {
    if (!same(row.answer, answer)) break;
    first = row.layer;
  }
  return first;
}

/** What the rows show, for somebody who sees them for the first time. */
export function formingWords(layers, answer, none) {
  const what = "In each row a reader sees one layer and nothing else, from the bare words at the top to the last layer. Choose a row to see where it looks. ";
  if (!answer) return what;
  if (none) return what + "Here the head says that there is no answer; the rows show the best guesses all the same.";
  const first = formedAt(layers, answer);
  if (first === null) return what + "For this question the last layer alone does not find the head’s answer.";
  if (first === 0) return what + "Here the words alone are enough: every layer finds the head’s answer.";
  if (first === layers.at(-1).layer) return what + "Here only the last layer finds the head’s answer.";
  return what + `Here the head’s answer is there from layer ${first} on.`;
}

/** Tokens from left to right: starts in the upper half, ends in the lower, the answer behind them. */
function strip(row, tokens) {
  const drawn = svg("svg", { viewBox: `0 0 ${Math.max(1, tokens.length)} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const inside = tokens.map((token, i) => (row.answer && token.start < row.answer.end && token.end > row.answer.start ? i : -1)).filter((i) => i >= 0);
  if (inside.length) {
    drawn.append(svg("rect", { x: inside[0], y: 0, width: inside.length, height: 10, class: "found" }));
  }
  for (const [side, y] of [["start", 0], ["end", 5]]) {
    row[side].forEach((p, i) => {
      const strength = shade(p);
      if (strength) drawn.append(svg("rect", { x: i, y, width: 1, height: 5, class: side, "fill-opacity": strength.toFixed(3) }));
    });
  }
  return drawn;
}

/**
 * Rows to choose from, the head's own last; `choose` gets a layer, or null for the head.
 * @param {{name: string, start: number[], end: number[], answer: object | null, probability: number, no_answer: number,
 *   none: boolean}} head
 */
export function drawRows(place, layers, head, tokens, choose) {
  const rows = layers.map((row) => ({ ...row, value: String(row.layer), name: layerName(row.layer) }));
  rows.push({ ...head, value: "", head: true });
  place.replaceChildren(
    ...rows.map((row) => {
      const none = row.head && head.none;
      const agrees = !head.none && same(row.answer, head.answer);
      const words = none ? "no answer" : row.answer?.text || "—";
      const p = percent(none ? row.no_answer : row.probability);
      return el(
        "label",
        { class: `row${row.head ? " head" : ""}${agrees ? " agrees" : ""}` },
        el("input", {
          type: "radio", name: "layer", value: row.value, class: "hidden",
          "aria-label": `${row.name}: ${words}, ${p}`,
          onchange: () => choose(row.head ? null : row.layer),
        }),
        el("span", { class: "name", title: row.name }, row.name),
        el("span", { class: "strip" }, strip(row, tokens)),
        el("span", { class: `words${none ? " none" : ""}`, title: words }, words),
        el("span", { class: "p" }, p),
      );
    }),
  );
}

export function chooseRow(place, layer) {
  for (const input of place.querySelectorAll("input")) input.checked = input.value === (layer === null ? "" : String(layer));
}

/** A label's or a score's rows; a bar of the classes, or a dot on a line. */
export function textRows(layers, task) {
  if (task.kind === "label") {
    const classes = Object.keys(task.probabilities);
    return layers.map((row) => {
      const best = classes.reduce((a, b) => (row.probabilities[b] > row.probabilities[a] ? b : a));
      return el(
        "li",
        { class: best === task.label ? "agrees" : null },
        el("span", { class: "name" }, layerName(row.layer)),
        stacked(classes, row.probabilities),
        // Apart: a class may be called 1, and "1 59 %" is read as one number.
        el("span", { class: "words" }, `${best} · ${percent(row.probabilities[best])}`),
      );
    });
  }
  const values = [task.score, ...layers.map((row) => row.score)];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return layers.map((row) => {
    const dot = el("span", { class: "dot" });
    dot.style.setProperty("inset-inline-start", `${high > low ? (100 * (row.score - low)) / (high - low) : 50}%`);
    return el(
      "li", {},
      el("span", { class: "name" }, layerName(row.layer)),
      el("span", { class: "line", "aria-hidden": "true" }, dot),
      el("span", { class: "words" }, row.score.toFixed(2)),
    );
  });
}

function stacked(classes, probabilities) {
  const bar = el("span", { class: "stacked", "aria-hidden": "true" });
  classes.forEach((name, i) => {
    const part = el("span", { class: `series-${i % 6}`, title: `${name} ${percent(probabilities[name])}` });
    part.style.setProperty("inline-size", `${100 * probabilities[name]}%`);
    bar.append(part);
  });
  return bar;
}
