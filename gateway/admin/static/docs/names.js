// What Swagger UI leaves out for people who do not use a mouse or see the page: names of fields and buttons, and keys that scroll examples.
(() => {
  const NAMES = {
    "#servers": "Server",
    ".body-param__text": "Request body",
    ".close-modal": "Close",
  };

  function complete() {
    for (const [selector, name] of Object.entries(NAMES)) {
      for (const node of document.querySelectorAll(`${selector}:not([aria-label])`)) node.setAttribute("aria-label", name);
    }
    for (const node of document.querySelectorAll("pre.microlight:not([tabindex])")) node.setAttribute("tabindex", "0");
    // A link within the button that opens an address: the button does the same, and screen readers announce one of the two.
    for (const node of document.querySelectorAll(".opblock-summary-control a[href]")) node.removeAttribute("href");
  }

  let due = false;
  new MutationObserver(() => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      complete();
    });
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
