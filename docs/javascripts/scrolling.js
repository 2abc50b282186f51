// Programs and tables that are wider than the page can be scrolled with the keyboard.
function reach() {
  for (const region of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
    else region.removeAttribute("tabindex");
  }
}

addEventListener("load", () => requestAnimationFrame(reach));
addEventListener("resize", reach);
