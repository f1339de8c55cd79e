# frozen_string_literal: true

require "cgi"

module Isucon4
  # The HTML of the two pages.
  module Pages
    NOTICES = {
      "wrong" => "Wrong username or password",
      "locked" => "This account is locked.",
      "banned" => "You're banned.",
      "required" => "You must be logged in"
    }.freeze

    module_function

    # One frame for both pages.
    def frame(title, main)
      <<~HTML
        <!DOCTYPE html>
        <html lang="en">
        <head>
          <meta charset="utf-8">
          <meta name="viewport" content="width=device-width, initial-scale=1">
          <title>#{title} - Mountain Wind Savings</title>
          <link rel="icon" href="/assets/icon.svg">
          <link rel="stylesheet" href="/assets/style.css">
          <script src="/assets/page.js" defer></script>
        </head>
        <body>
          <header>
            <a href="/"><img id="logo" src="/assets/logo.svg" alt="Mountain Wind Savings" width="220" height="48"></a>
          </header>
          <main>
        #{main.gsub(/^/, "    ")}  </main>
          <footer>A made-up bank. Nothing here is money.</footer>
        </body>
        </html>
      HTML
    end

    def front_page(notice)
      frame("Log in", <<~HTML)
        <h1>Log in</h1>
        #{%(<p id="notice" role="alert">#{CGI.escapeHTML(notice)}</p>) if notice}
        <form id="login-form" action="/login" method="post">
          <label>Login <input type="text" name="login" autocomplete="username" required></label>
          <label>Password <input type="password" name="password" autocomplete="current-password" required></label>
          <button type="submit">Log in</button>
        </form>
        <section id="advice">
          <img src="/assets/lock.svg" alt="" width="64" height="64">
          <p>Three wrong passwords in a row lock your account.</p>
          <img src="/assets/shield.svg" alt="" width="64" height="64">
          <p>Ten wrong passwords in a row from one place shut that place out.</p>
        </section>
      HTML
    end

    # The front page by the key of its notice; nil: without one.
    FRONT = NOTICES.transform_values { |text| front_page(text).freeze }.merge(nil => front_page(nil).freeze).freeze

    # last: a Store::LastLogin.
    def account(last)
      frame("Your account", <<~HTML)
        <h1>Your account</h1>
        <p>Welcome, <strong id="login">#{CGI.escapeHTML(last.login)}</strong>.</p>
        <dl id="last-login">
          <dt>Your last login was at</dt>
          <dd id="last-at">#{last.at ? "#{last.at} UTC" : "-"}</dd>
          <dt>from</dt>
          <dd id="last-address">#{CGI.escapeHTML(last.address || "-")}</dd>
        </dl>
        <section id="balance">
          <img src="/assets/coins.svg" alt="" width="64" height="64">
          <p>If that was not you, change your password.</p>
        </section>
      HTML
    end
  end
end
