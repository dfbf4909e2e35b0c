// Shows Refit's notices in VS Code. Refit leaves one in a file; beside it stands what became of it: that a window which
// somebody looks at has shown it, and what was answered.
"use strict";

const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const vscode = require("vscode");

const NOTICE = path.join(os.homedir(), ".local/state/refit/notice.json");
const HEARD = `${NOTICE}.heard`;
const LOOK_AGAIN = 2_000; // milliseconds
const LONGEST = 500;
const READ = "Read all";

function read(file) {
  try {
    return JSON.parse(fs.readFileSync(file, "utf8"));
  } catch {
    return {}; // nothing is to be told, or that has just gone
  }
}

// Renamed when it is whole: Refit may read it at any time.
function say(heard) {
  fs.writeFileSync(`${HEARD}.new`, JSON.stringify(heard));
  fs.renameSync(`${HEARD}.new`, HEARD);
}

function inShort(text) {
  const line = text.replaceAll("\n", " ");
  return line.length > LONGEST ? `${line.slice(0, LONGEST)}…` : line;
}

async function show(notice) {
  const labels = notice.answers.map(([, label]) => label);
  const chosen = await vscode.window.showWarningMessage(inShort(notice.text), ...labels, READ);
  if (chosen === READ) {
    const document = await vscode.workspace.openTextDocument(vscode.Uri.parse(`refit:${notice.title}`));
    await vscode.window.showTextDocument(document);
    return show(notice);
  }
  const answer = notice.answers.find(([, label]) => label === chosen)?.[0];
  if (answer && read(NOTICE).id === notice.id) say({ id: notice.id, shown: true, answer });
}

// Of several windows, the one that somebody looks at.
function look() {
  const notice = read(NOTICE);
  if (!notice.id || !vscode.window.state.focused || read(HEARD).id === notice.id) return;
  say({ id: notice.id, shown: true, answer: "" });
  show(notice);
}

exports.activate = (context) => {
  const provideTextDocumentContent = () => read(NOTICE).text ?? "";
  const timer = setInterval(look, LOOK_AGAIN);
  context.subscriptions.push(
    vscode.workspace.registerTextDocumentContentProvider("refit", { provideTextDocumentContent }),
    vscode.window.onDidChangeWindowState(look),
    { dispose: () => clearInterval(timer) }
  );
  look();
};
