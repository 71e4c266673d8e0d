// What to do first, while nothing was read through the fleet.

import { byId, element, keep, setText } from "./dom.js";

function lines({ nodes }) {
  const endpoint = nodes[0]?.address || `${location.protocol}//${location.hostname}:9000`;
  return [
    `export AWS_ENDPOINT_URL=${endpoint}`,
    "export AWS_ACCESS_KEY_ID=...       # of this gateway: see Access",
    "export AWS_SECRET_ACCESS_KEY=...",
    "aws s3 cp s3://BUCKET/KEY -        # twice: MISS, then HIT",
  ];
}

export function showFirstRun(overview) {
  const { total } = overview;
  const unread = total.requests === 0 && total.batch_items === 0;
  byId("first-run").hidden = !unread;
  for (const id of ["history", "columns"]) byId(id).hidden = unread;
  if (unread) keep(byId("first-run-lines"), lines(overview), (line) => line, () => element("span"), setText);
}

byId("first-run-copy").addEventListener("click", async () => {
  const text = byId("first-run-lines");
  getSelection().selectAllChildren(text);
  const copied = window.isSecureContext ? await navigator.clipboard.writeText(text.innerText).then(() => true, () => false) : document.execCommand("copy");
  setText(byId("first-run-copy"), copied ? "Copied" : "Select and copy it");
});
