// Sets the colours before anything is drawn, so that a dark page does not flash white: hence a plain script in the head.
(() => {
  const KEY = "larder-theme";
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(KEY) ?? "auto";
    } catch {
      return "auto"; // storage may be blocked
    }
  }

  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = root.dataset.theme ?? "auto";
    choice.addEventListener("change", () => {
      apply(choice.value);
      try {
        localStorage.setItem(KEY, choice.value);
      } catch {
        // The choice holds until the page is closed.
      }
    });
  });
})();
