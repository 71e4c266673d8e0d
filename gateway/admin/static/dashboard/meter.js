// A bar that shows how full something is, with the same in words beside it.

import { element, setAttribute, setText } from "./dom.js";

export function meter(label) {
  const fill = element("span", { class: "fill" });
  const bar = element("span", { class: "meter", "aria-hidden": "true" }, fill);
  const words = element("span", { class: "words" });
  const node = element("span", { class: "metered" }, element("span", { class: "unseen" }, `${label}: `), words, bar);
  return {
    node,
    show(share, text) {
      const part = Math.min(1, Math.max(0, Number.isFinite(share) ? share : 0));
      fill.style.width = `${(part * 100).toFixed(1)}%`;
      setAttribute(bar, "data-share", part.toFixed(3));
      setText(words, text);
    },
  };
}
