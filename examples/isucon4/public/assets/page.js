// One press of the button sends the form once.
"use strict";
const form = document.getElementById("login-form");
if (form) {
  form.elements.login.focus();
  form.addEventListener("submit", () => {
    form.querySelector("button").disabled = true;
  });
  // A page from the browser's history has its button still disabled.
  window.addEventListener("pageshow", () => {
    form.querySelector("button").disabled = false;
  });
}
