// The page: what is typed goes to POST /v1/explain, what comes back is drawn, and the address keeps the view.
//
// `view` is all that decides what is seen; `reply` is the server's last answer. Choosing a head or a layer, or moving the
// threshold, draws again from `reply` and asks the server nothing.

import { $, el, percent } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { Gauge, verdict } from "./gauge.js";
import { drawCards, drawHeads, drawRivals, drawWeights } from "./heads.js";
import { chooseRow, drawRows, formingWords } from "./layers.js";
import { readLink, writeLink } from "./link.js";
import { Passage } from "./passage.js";
import { Trouble, explain, models as askModels, setKey } from "./server.js";

const MODES = {
  ask: { title: "A question about a passage", text: "Passage", with: "Question", reads: (m) => m.asks },
  pair: { title: "Two texts", text: "First text", with: "Second text", reads: (m) => m.texts === 2 && !m.asks },
  text: { title: "One text", text: "Text", with: null, reads: (m) => m.texts === 1 },
};
const BEAT = 700;

const view = { mode: "ask", text: "", with: "", head: "", layer: null, thresholds: {} };
let known = { models: [], limits: { text: Infinity } };
let byName = {};
let reply = null;
let asking = new AbortController();
let playing = 0;
/** What the rows were drawn for: thousands of small rectangles, and a slider moves often. */
let rowsOf = {};
const passage = new Passage($("passage"));
const gauge = new Gauge($("gauge"), (threshold) => {
  view.thresholds[view.head] = threshold;
  drawSpans();
});

// ---- asking

function body() {
  const names = known.models.filter(MODES[view.mode].reads).map((model) => model.task);
  if (view.mode === "ask") return { question: view.with, context: view.text, tasks: names };
  return view.mode === "pair" ? { text: view.text, pair: view.with, tasks: names } : { text: view.text, tasks: names };
}

/** Marks the first field that cannot be sent, and goes there. */
function flawed() {
  let wrong = null;
  for (const name of ["text", "with"]) {
    const word = MODES[view.mode][name];
    let sentence = "";
    if (word && !view[name].trim()) sentence = `Write a ${word.toLowerCase()} first.`;
    else if (word && Array.from(view[name]).length > known.limits.text) {
      sentence = `This is longer than the ${known.limits.text.toLocaleString("en")} characters the server reads: shorten it.`;
    }
    $(`${name}-wrong`).textContent = sentence;
    $(`${name}-wrong`).hidden = !sentence;
    if (sentence) {
      $(name).setAttribute("aria-invalid", "true");
      wrong ??= name;
    } else $(name).removeAttribute("aria-invalid");
  }
  if (wrong) $(wrong).focus();
  return wrong !== null;
}

async function ask() {
  stop();
  $("alert").hidden = true;
  view.text = $("text").value;
  view.with = MODES[view.mode].with ? $("with").value : "";
  if (flawed()) return;
  asking.abort();
  asking = new AbortController();
  const own = asking;
  busy(true);
  const began = performance.now();
  try {
    const answer = await explain(body(), own.signal);
    reply = { ...answer, seconds: (performance.now() - began) / 1000 };
    draw();
  } catch (error) {
    if (own.signal.aborted) return;
    complain(error);
  } finally {
    if (own === asking) busy(false);
  }
}

function busy(on) {
  $("go").textContent = on ? "Reading…" : "Answer";
  $("result").setAttribute("aria-busy", String(on));
}

function complain(error) {
  const trouble = error instanceof Trouble ? error : new Trouble("refused", `This page went wrong: ${error.message}`);
  $("alert-text").textContent = trouble.message;
  $("key-line").hidden = trouble.kind !== "key";
  $("again-line").hidden = trouble.kind !== "gone";
  $("alert").hidden = false;
  $("result").classList.add("old");
  if (trouble.kind === "key") $("key").focus();
}

// ---- drawing

const ofKind = (spans) => Object.fromEntries(Object.entries(reply.tasks).filter(([, task]) => (task.kind === "span") === spans));

function draw() {
  const spans = ofKind(true);
  const texts = ofKind(false);
  const names = Object.keys(spans);
  if (!names.includes(view.head)) view.head = names[0] ?? "";
  $("result").hidden = false;
  $("result").classList.remove("old");
  $("spans").hidden = !names.length;
  $("texts").hidden = !Object.keys(texts).length;
  if (names.length) {
    passage.load(reply.text, reply.tokens);
    $("outside").hidden = passage.whole;
    drawSpans();
  } else say(Object.entries(texts).map(([name, task]) => `${name}: ${task.label ?? task.score.toFixed(2)}`).join(", "));
  drawCards($("cards"), texts, reply.layers, byName);
  $("weights").hidden = !drawWeights($("weight-figures"), reply.tasks);
  if (names.length) $("beside").append($("weights"));
  else $("texts").after($("weights"));
  writeLink(link());
}

const link = () => ({ ...view, threshold: view.thresholds[view.head] ?? null });
const say = (words) => ($("live").textContent = words);
/** Of a head without readers of its own those of another: they read the same states for the same task. */
const layersOf = (name) => reply.layers[name] ?? Object.entries(reply.layers).find(([other]) => reply.tasks[other]?.kind === "span")?.[1] ?? [];

function drawSpans() {
  const spans = ofKind(true);
  const task = spans[view.head];
  const own = view.thresholds[view.head] ?? null;
  const { none } = verdict(task, own);
  const best = task.nbest[0] ?? null;
  const layers = layersOf(view.head);
  if (!layers.some((row) => row.layer === view.layer)) view.layer = null;
  gauge.show(task, own);
  drawRivals($("rivals"), task);
  $("heads").hidden = Object.keys(spans).length < 2;
  drawHeads($("heads-table"), spans, byName, view.head, view.thresholds, chooseHead);
  $("forming").hidden = !layers.length;
  $("forming-about").textContent = formingWords(layers, best, none);
  if (rowsOf.reply !== reply || rowsOf.head !== view.head || rowsOf.none !== none) {
    rowsOf = { reply, head: view.head, none };
    const head = { name: view.head, ...task, answer: best, probability: task.prediction.probability, none };
    drawRows($("rows"), layers, head, reply.tokens, chooseLayer);
  }
  drawView(task, layers, best, none);
  say(none ? `${view.head}: no answer.` : `${view.head}: ${best.text}, ${percent(task.prediction.probability)}.`);
}

/** The passage and the line above it, for the head or for one layer. */
function drawView(task, layers, best, none) {
  const row = layers.find((one) => one.layer === view.layer);
  const answer = row ? row.answer : best;
  const hidden = !row && none;
  passage.show(row ?? task, answer && answer.end > answer.start ? answer : null, !hidden);
  $("says").textContent = row ? `The best guess of ${row.layer ? `layer ${row.layer}` : "the words alone"}` : `The answer of ${view.head}`;
  $("answer").replaceChildren(hidden || !answer?.text ? el("span", { class: "none" }, "no answer") : answer.text);
  const one = row ?? { probability: task.prediction.probability, no_answer: task.no_answer };
  const sure = hidden ? `${percent(one.no_answer)} sure that there is none · best guess ${percent(one.probability)}` : `${percent(one.probability)} sure · no answer ${percent(one.no_answer)}`;
  $("numbers").textContent = row ? sure : `${sure} · answered in ${Math.max(1, Math.round(1000 * reply.seconds))} ms`;
  $("found-word").textContent = hidden ? "the best it found, kept back" : row ? "the best guess" : "the answer";
  document.querySelector(".swatch.found").classList.toggle("kept-back", hidden);
  chooseRow($("rows"), view.layer);
  writeLink(link());
}

function chooseHead(name) {
  const inside = $("heads-table").contains(document.activeElement);
  view.head = name;
  view.layer = null;
  stop();
  drawSpans();
  if (inside) $("heads-table").querySelector("input:checked").focus();
}

function chooseLayer(layer) {
  stop();
  lookAt(layer);
}

function lookAt(layer) {
  view.layer = layer;
  const task = reply.tasks[view.head];
  drawView(task, layersOf(view.head), task.nbest[0] ?? null, verdict(task, view.thresholds[view.head] ?? null).none);
}

/** Walks through the layers once, from the words to the head. */
function play() {
  if (playing) return stop();
  const steps = [...layersOf(view.head).map((row) => row.layer), null];
  $("play").textContent = "Stop";
  const step = () => {
    lookAt(steps.shift());
    if (steps.length) playing = setTimeout(step, BEAT);
    else stop();
  };
  step();
}

function stop() {
  clearTimeout(playing);
  playing = 0;
  $("play").textContent = "Play";
}

// ---- the form

function setMode(mode) {
  view.mode = mode;
  const words = MODES[mode];
  $("ask").dataset.mode = mode;
  $("text-label").textContent = words.text;
  if (words.with) $("with-label").textContent = words.with;
  $("with-field").hidden = !words.with;
  for (const input of $("modes").querySelectorAll("input")) input.checked = input.value === mode;
  $("examples").replaceChildren(
    ...EXAMPLES[mode].map((example) =>
      el("li", {}, el("button", { type: "button", class: "example", onclick: () => fill(example) }, mode === "ask" ? example.with : example.text, example.note ? el("span", { class: "soft" }, ` ${example.note}`) : null)),
    ),
  );
}

function fill(example) {
  $("text").value = example.text;
  $("with").value = example.with ?? "";
  Object.assign(view, { layer: null, thresholds: {} });
  return ask();
}

/** The view of the address, or the first example. */
function begin() {
  const modes = Object.keys(MODES).filter((mode) => known.models.some(MODES[mode].reads));
  const linked = readLink();
  setMode(modes.includes(linked?.mode) ? linked.mode : modes[0]);
  if (!linked) return fill(EXAMPLES[view.mode][0]);
  Object.assign(view, { head: linked.head, layer: linked.layer, thresholds: {} });
  if (linked.threshold !== null && linked.head) view.thresholds[linked.head] = linked.threshold;
  $("text").value = linked.text;
  $("with").value = linked.with;
  return ask();
}

async function start() {
  $("alert").hidden = true;
  try {
    known = await askModels(asking.signal);
  } catch (error) {
    return complain(error);
  }
  byName = Object.fromEntries(known.models.map((model) => [model.task, model]));
  const modes = Object.keys(MODES).filter((mode) => known.models.some(MODES[mode].reads));
  $("modes").hidden = modes.length < 2;
  $("modes").append(
    ...modes.map((mode) => el("label", {}, el("input", { type: "radio", name: "mode", value: mode, onchange: () => { setMode(mode); fill(EXAMPLES[mode][0]); } }), ` ${MODES[mode].title}`)),
  );
  const heads = known.models.length;
  $("about").textContent = ` · one encoder of ${Math.round(known.encoder_parameters / 1e6)} million parameters, ${heads} ${heads === 1 ? "head" : "heads"}`;
  return begin();
}

const retry = () => (known.models.length ? ask() : start());
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  view.layer = null; // a threshold that was moved stays for the next question
  retry();
});
for (const name of ["text", "with"]) {
  $(name).addEventListener("keydown", (event) => {
    const send = event.key === "Enter" && !event.isComposing && (event.ctrlKey || event.metaKey || (!event.shiftKey && (name === "with" || view.mode === "text")));
    if (!send) return;
    event.preventDefault();
    $("ask").requestSubmit();
  });
}
$("play").addEventListener("click", play);
$("again").addEventListener("click", retry);
$("key-use").addEventListener("click", () => {
  setKey($("key").value.trim());
  retry();
});
$("key").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  $("key-use").click();
});
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    $("copied").textContent = "Copied.";
  } catch {
    $("copied").textContent = "The address bar holds the link.";
  }
});
addEventListener("hashchange", () => known.models.length && begin());
start();
