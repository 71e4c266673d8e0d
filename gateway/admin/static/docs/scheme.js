// The dashboard's choice of colours, or the system's: Swagger UI is dark in a page with the class dark-mode. A plain script in the head,
// so that a dark page does not flash white.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try {
      return localStorage.getItem("larder-theme") ?? "auto";
    } catch {
      return "auto"; // storage may be blocked
    }
  }

  function apply() {
    const theme = stored();
    document.documentElement.classList.toggle("dark-mode", theme === "dark" || (theme !== "light" && system.matches));
  }

  apply();
  system.addEventListener("change", apply);
})();
