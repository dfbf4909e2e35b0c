"use strict";
// The status comes with the page, and anew with each question; any other answer is the session itself.
let away = JSON.parse(document.body.dataset.away);
let silent = false;

const element = (name) => document.querySelector(name);

function said(text) {
  // What stands between backquotes is for a terminal. Built of nodes: nothing that is told becomes markup.
  return text.split("`").map((part, index) => {
    if (index % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  });
}

function seconds(from) {
  return Math.max(0, (Date.now() - new Date(from)) / 1000);
}

function lasted(length) {
  if (length < 90) return `${Math.round(length)} s`;
  if (length < 5400) return `${Math.round(length / 60)} min`;
  return length < 172800 ? `${Math.round(length / 3600)} h` : `${Math.round(length / 86400)} days`;
}

function times() {
  const words = [];
  if (away.since) words.push(`Since ${new Date(away.since).toLocaleString([], { timeStyle: "medium", dateStyle: "medium" })}, ${lasted(seconds(away.since))}`);
  if (away.expected) words.push(`usually away for ${lasted(Math.max(1, away.expected))}`);
  if (silent) words.push("the gateway doesn't answer just now");
  return words.join("; ");
}

function show() {
  document.body.dataset.why = away.why;
  element("h1").textContent = away.headline;
  element("#text").replaceChildren(...said(away.text));
  tick();
}

function tick() {
  element("#time").textContent = times();
  const timed = Boolean(away.since && away.expected);
  document.body.classList.toggle("timed", timed);
  // It never gets to its end by itself: that is the session's to do.
  if (timed) element(".bar div").style.width = `${100 * (1 - Math.exp(-1.6 * seconds(away.since) / away.expected))}%`;
}

async function ask() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "application/json" }, cache: "no-store", redirect: "manual" });
    silent = false;
    const told = [404, 503].includes(answer.status) ? await answer.json().catch(() => ({})) : {};
    if (told.refit !== "waiting-page") return location.reload();
    away = told;
    show();
  } catch {
    silent = true;
  }
  setTimeout(ask, 1000 * (silent ? 2 : away.again));
}

show();
setInterval(tick, 500);
setTimeout(ask, 1000 * away.again);
