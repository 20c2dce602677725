// Is there an answer at all? The head's doubt as a bar, and a threshold to move: above it the head says "no answer".
//
// The server sends score_diff (how much better no answer scores than the best answer), the threshold that was tuned on
// held-out data, and shift and temperature that turn a difference into a probability. So moving it asks the server nothing.

import { el, percent } from "./dom.js";

const STEPS = 1000;
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const logit = (p) => Math.log(p / (1 - p));

/** What a span task's answer becomes at a threshold; `own` is a place on the bar from 0 to 1, null the tuned one. */
export function verdict(task, own) {
  const shift = task.shift ?? 0;
  const temperature = task.temperature ?? 1;
  const place = (difference) => sigmoid((difference - shift) / temperature);
  const tuned = place(task.threshold);
  const threshold = own === null ? task.threshold : shift + temperature * logit(own);
  return {
    doubt: place(task.score_diff),
    tuned,
    threshold: own ?? tuned,
    none: own === null ? task.prediction.text === "" : task.nbest.length === 0 || task.score_diff > threshold,
    calibrated: task.temperature !== null && task.temperature !== undefined,
  };
}

export class Gauge {
  /** @param {(threshold: number | null) => void} moved */
  constructor(place, moved) {
    this.bar = el("div", { class: "bar", "aria-hidden": "true" });
    this.fill = el("div", { class: "fill" });
    this.tick = el("div", { class: "tick" });
    this.bar.append(this.fill, this.tick);
    this.slider = el("input", {
      type: "range", id: "threshold", min: 0, max: STEPS, step: 1, "aria-describedby": "gauge-says",
      oninput: () => moved(Number(this.slider.value) / STEPS),
    });
    this.says = el("p", { id: "gauge-says" });
    this.shown = el("output", { for: "threshold" });
    this.back = el("button", { type: "button", class: "small", onclick: () => moved(null) }, "Back to the tuned one");
    place.replaceChildren(
      el("h2", { class: "minor" }, "Is there an answer at all?"),
      this.says,
      el("div", { class: "gauge" }, this.bar, this.slider),
      el("p", { class: "scale soft" }, el("span", {}, "surely an answer"), el("span", {}, "surely none")),
      el("p", { class: "soft" }, el("label", { for: "threshold" }, "Threshold"), " ", this.shown, " ", this.back),
    );
  }

  show(task, own) {
    const reply = verdict(task, own);
    this.fill.style.setProperty("inline-size", `${100 * reply.doubt}%`);
    this.fill.classList.toggle("over", reply.none);
    this.tick.style.setProperty("inset-inline-start", `${100 * reply.tuned}%`);
    const value = String(Math.round(STEPS * reply.threshold));
    if (this.slider.value !== value) this.slider.value = value;
    this.slider.setAttribute("aria-valuetext", `${percent(reply.threshold)}: ${reply.none ? "no answer" : "answers"}`);
    this.shown.textContent = percent(reply.threshold);
    this.back.hidden = own === null;
    const doubt = reply.calibrated
      ? [el("b", {}, percent(reply.doubt)), " that the passage holds no answer"]
      : ["It leans ", el("b", {}, percent(reply.doubt)), " towards no answer (not calibrated)"];
    const [side, does] = reply.none ? ["above", "it says no answer"] : ["not above", "it answers"];
    this.says.replaceChildren(...doubt, `: ${side} the threshold, so `, el("b", {}, does), ".");
  }
}
