// The start page: studies that run are followed, so that their progress and the time left stand there.

import { follow } from "/static/stream.js";

for (const line of document.querySelectorAll("[data-events]")) {
  const stream = follow(line.dataset.events, ({ study }) => {
    if (!study) return;
    line.innerHTML = study.parts.progress; // escaped by the server, as on the page of the study
    if (study.state === "running") return;
    stream.end();
    location.reload(); // its answer stands there now
  });
}
