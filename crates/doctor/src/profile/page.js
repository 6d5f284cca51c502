"use strict";
const WIDTH = 1180, MARGIN = 10, LETTER = 6.6;
const told = document.getElementById("told");
const frames = [...document.querySelectorAll("g")].map(group => ({
  group,
  rect: group.querySelector("rect"),
  text: group.querySelector("text"),
  title: group.querySelector("title").textContent,
  begin: Number(group.dataset.b),
  count: Number(group.dataset.n),
}));
// Shows the samples of one frame over the whole width; its callers become as wide, what is beside it goes.
function zoom(to) {
  for (const frame of frames) {
    const begin = Math.max(frame.begin, to.begin);
    const count = Math.min(frame.begin + frame.count, to.begin + to.count) - begin;
    const width = count / to.count * WIDTH;
    frame.group.style.display = width < 0.1 ? "none" : "";
    if (width < 0.1) continue;
    const x = MARGIN + (begin - to.begin) / to.count * WIDTH;
    const room = Math.max(0, Math.floor((width - 6) / LETTER));
    const name = frame.title.replace(/ \(\d+ samples, .*$/, "");
    frame.rect.setAttribute("x", x);
    frame.rect.setAttribute("width", width);
    frame.text.setAttribute("x", x + 3);
    frame.text.textContent = name.length <= room ? name : room < 3 ? "" : name.slice(0, room - 2) + "..";
  }
}
for (const frame of frames) {
  frame.group.addEventListener("click", () => zoom(frame));
  frame.group.addEventListener("mouseover", () => { told.textContent = frame.title; });
}
