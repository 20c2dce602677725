// Small things all parts of the page use: elements, numbers as words, characters as Python counts them.

export const $ = (id) => document.getElementById(id);

/** An element with attributes, properties (.name) and listeners (onname), and what is in it. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key.startsWith(".")) made[key.slice(1)] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** 0.8712 as "87 %"; what is not quite nothing or everything is not called so. */
export function percent(p) {
  if (p > 0 && p < 0.01) return "< 1 %";
  if (p < 1 && p > 0.99) return "> 99 %";
  return `${Math.round(100 * p)} %`;
}

export function count(n) {
  if (n >= 1e6) return `${(n / 1e6).toFixed(n >= 1e7 ? 0 : 1)} M`;
  return n >= 1e4 ? `${Math.round(n / 1e3)} k` : n.toLocaleString("en");
}

/** Colours of probabilities: small ones must be seen too. */
export const shade = (p) => (p < 0.004 ? 0 : Math.min(1, p ** 0.55));

/** A text whose parts are named as the server names them: by characters, where a script counts half ones. */
export class Text {
  constructor(text) {
    this.characters = Array.from(text);
  }

  get length() {
    return this.characters.length;
  }

  slice(start, end) {
    return this.characters.slice(start, end).join("");
  }
}

export const layerName = (k) => (k === 0 ? "words" : `layer ${k}`);
