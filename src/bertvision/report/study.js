// Marking the section in view is an addition: without this script the links work all the same.
{
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const mark = (entries) => {
    const seen = entries.find((entry) => entry.isIntersecting);
    if (!seen) return;
    links.forEach((a) => a.removeAttribute("aria-current"));
    const link = links.get(seen.target.id), bar = link.closest("nav");
    link.setAttribute("aria-current", "true");
    // Only the bar moves, never the page.
    if (bar.scrollWidth > bar.clientWidth) bar.scrollLeft = link.offsetLeft - 16;
  };
  const watcher = new IntersectionObserver(mark, { rootMargin: "-12% 0px -80% 0px" });
  links.forEach((_, id) => watcher.observe(document.getElementById(id)));
}
