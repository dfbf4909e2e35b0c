const ticket = location.hash.slice(1);
// Neither the history nor anybody who looks over a shoulder needs it from now on.
history.replaceState(null, "", location.pathname);
fetch(location.pathname, { method: "POST", body: ticket, headers: { "Content-Type": "text/plain" } })
  .then(async (answer) => {
    const text = await answer.text();
    if (!answer.ok) throw new Error(text);
    localStorage.setItem("prefect-password", text);
    location.replace("/");
  })
  .catch((error) => { document.getElementById("told").textContent = error.message; });
