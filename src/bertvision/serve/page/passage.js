// The passage as a head or a layer sees it: every token coloured by how likely the answer starts and ends there.

import { Text, el, percent, shade } from "./dom.js";

export class Passage {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
  }

  /** Cut a text into tokens and what lies between them; the colours come later, and often. */
  load(text, tokens) {
    this.text = new Text(text);
    this.tokens = tokens;
    this.parts = [];
    const made = document.createDocumentFragment();
    const add = (start, end, token) => {
      if (end <= start) return;
      const outside = tokens.length && (end <= tokens[0].start || start >= tokens.at(-1).end);
      const node = el("span", { class: token >= 0 ? "token" : outside ? "far" : null }, this.text.slice(start, end));
      this.parts.push({ start, end, token, node });
      made.append(node);
    };
    let at = 0;
    tokens.forEach((token, i) => {
      add(at, token.start, -1);
      add(Math.max(at, token.start), token.end, i);
      at = Math.max(at, token.end);
    });
    add(at, this.text.length, -1);
    this.place.replaceChildren(made);
  }

  get whole() {
    return !this.tokens.length || (this.tokens[0].start <= 1 && this.tokens.at(-1).end >= this.text.length - 1);
  }

  /**
   * @param {{start: number[], end: number[]}} heat
   * @param {{start: number, end: number} | null} answer
   * @param {boolean} given whether it is the answer, or only the best that there is
   */
  show(heat, answer, given) {
    let first = null;
    for (const part of this.parts) {
      const inside = answer !== null && part.start < answer.end && part.end > answer.start;
      part.node.classList.toggle("found", inside && given);
      part.node.classList.toggle("kept-back", inside && !given);
      if (inside) first ??= part.node;
      if (part.token < 0) continue;
      const start = heat.start[part.token] ?? 0;
      const end = heat.end[part.token] ?? 0;
      part.node.style.setProperty("--start-p", shade(start).toFixed(3));
      part.node.style.setProperty("--end-p", shade(end).toFixed(3));
      part.node.title = start > 0.004 || end > 0.004 ? `starts here ${percent(start)}, ends here ${percent(end)}` : "";
    }
    this.reveal(first);
    this.place.setAttribute(
      "aria-label",
      answer === null ? "The passage" : `The passage; marked: ${this.text.slice(answer.start, answer.end)}`,
    );
  }

  /** A long passage scrolls in its place, never the page, and by keyboard too. */
  reveal(node) {
    const long = this.place.scrollHeight > this.place.clientHeight + 1;
    if (long) this.place.tabIndex = 0;
    else this.place.removeAttribute("tabindex");
    if (!long || node === null) return;
    const above = node.offsetTop < this.place.scrollTop;
    const below = node.offsetTop + node.offsetHeight > this.place.scrollTop + this.place.clientHeight;
    if (above || below) this.place.scrollTop = node.offsetTop - this.place.clientHeight / 2;
  }
}
