// The view in the address: #mode=ask&text=...&with=...&head=...&layer=3&threshold=0.4
// It stands behind the #, so that no server ever gets it.

const FIELDS = ["mode", "text", "with", "head", "layer", "threshold"];

export function readLink() {
  const reply = new URLSearchParams(location.hash.slice(1));
  if (!reply.has("text")) return null;
  const view = Object.fromEntries(FIELDS.map((name) => [name, reply.get(name) ?? ""]));
  const threshold = Number.parseFloat(view.threshold);
  return {
    mode: view.mode,
    text: view.text,
    with: view.with,
    head: view.head,
    layer: /^\d+$/.test(view.layer) ? Number(view.layer) : null,
    threshold: threshold >= 0 && threshold <= 1 ? threshold : null,
  };
}

export function writeLink(view) {
  const reply = new URLSearchParams();
  for (const name of FIELDS) {
    const value = view[name];
    if (value !== null && value !== undefined && value !== "") reply.set(name, value);
  }
  if (`#${reply}` !== location.hash) history.replaceState(null, "", `#${reply}`);
}
