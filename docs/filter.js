// The search box before a table: hides rows, and names in long cells, that do not contain what is typed.
document.querySelectorAll(".table-filter").forEach((place) => {
  let table = place.nextElementSibling;
  while (table && !table.querySelector("td")) table = table.nextElementSibling;
  if (!table) return;
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = place.dataset.label;
  input.setAttribute("aria-label", place.dataset.label);
  place.append(input);
  input.addEventListener("input", () => {
    const word = input.value.trim().toLowerCase();
    const has = (element) => element.textContent.toLowerCase().includes(word);
    table.querySelectorAll("tbody tr").forEach((row) => {
      row.hidden = !has(row);
      const others = [...row.cells].slice(1).some(has);
      row.cells[0].querySelectorAll("code").forEach((name) => {
        name.classList.toggle("other", word !== "" && !others && !has(name));
      });
    });
  });
});
