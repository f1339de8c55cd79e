# frozen_string_literal: true

require "digest"
require "json"
require "openssl"
require "uri"

require_relative "pages"
require_relative "store"

module Isucon4
  # The application: logs users in, locks accounts and bans addresses.
  class App
    # The largest form, bytes.
    FORM_BYTES = 16_384
    ADDRESS = /\A[0-9A-Fa-f.:]{2,45}\z/

    ROUTES = {
      "/" => { "GET" => :front },
      "/login" => { "POST" => :login },
      "/mypage" => { "GET" => :account },
      "/report" => { "GET" => :report },
      "/initialize" => { "POST" => :reset }
    }.freeze

    # A bad request: its response has this status and text.
    class Refused < StandardError
      attr_reader :status

      def initialize(status, text)
        super(text)
        @status = status
      end
    end

    # secret: the key of session signatures; all workers need the same one.
    def initialize(store, secret)
      @store = store
      @secret = secret
    end

    def call(env)
      methods = ROUTES[env["PATH_INFO"]] or return text(404, "There is no such page.")
      # A HEAD is a GET whose body the server leaves out.
      asked = env["REQUEST_METHOD"].sub(/\AHEAD\z/, "GET")
      action = methods[asked]
      return text(405, "This page takes #{methods.keys.first} only.", "allow" => methods.keys.first) unless action

      send(action, env)
    rescue Refused => e
      text(e.status, e.message)
    end

    private

    def front(env)
      notice = cookies(env)["notice"]
      return html(Pages::FRONT[nil]) unless Pages::NOTICES.key?(notice)

      # A notice is shown once.
      html(Pages::FRONT[notice], "set-cookie" => "notice=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax")
    end

    def login(env)
      login, password = form(env).values_at("login", "password")
      raise Refused.new(400, "Expected the fields login and password.") unless login && password

      address = address(env)
      account, address_failures = @store.attempt(login, address)
      refusal = refusal(account, address_failures, password)
      unless refusal
        return to_account(account) if @store.succeed(account, address, had_failures: address_failures.positive?)

        refusal = "locked"
      end
      @store.fail(account, address)
      to_front(refusal)
    end

    # Returns the key of the notice for a login that must be refused, or nil.
    def refusal(account, address_failures, password)
      return "banned" if address_failures >= Store::BANNED_AT
      return "wrong" unless account
      return "locked" if account.failures >= Store::LOCKED_AT

      hash = Digest::SHA256.hexdigest("#{password}:#{account.salt}")
      "wrong" unless same?(hash, account.password_hash)
    end

    def account(env)
      id = session(env)
      last = id && @store.last_login(id) or return to_front("required")
      html(Pages.account(last))
    end

    def report(_env)
      respond(200, "application/json", JSON.generate(banned_ips: @store.banned, locked_users: @store.locked))
    end

    def reset(_env)
      @store.reset
      text(200, "The data is as in the seed again.")
    end

    def to_account(account)
      id = account.id.to_s
      redirect("/mypage", "session=#{id}.#{signature(id)}; Path=/; HttpOnly; SameSite=Lax")
    end

    def to_front(notice)
      redirect("/", "notice=#{notice}; Path=/; Max-Age=60; HttpOnly; SameSite=Lax")
    end

    def redirect(path, cookie)
      respond(302, "text/plain", "", "location" => path, "set-cookie" => cookie)
    end

    def html(page, more = {}) = respond(200, "text/html; charset=utf-8", page, more)

    def text(status, text, more = {}) = respond(status, "text/plain; charset=utf-8", "#{text}\n", more)

    # Not every server adds the length, and without it each of them and nginx send something else.
    def respond(status, type, body, more = {})
      headers = { "content-type" => type, "content-length" => body.bytesize.to_s, "cache-control" => "no-store" }
      [status, headers.merge!(more), [body]]
    end

    # Returns the number of the account that the session cookie names, if its signature is ours.
    def session(env)
      id, signed = cookies(env)["session"].to_s.split(".", 2)
      id.to_i if signed && same?(signed, signature(id))
    end

    # Compares in constant time. Rack 2's method does so in Ruby, and takes longer than the hash.
    def same?(a, b) = a.bytesize == b.bytesize && OpenSSL.fixed_length_secure_compare(a, b)

    def signature(id) = OpenSSL::HMAC.hexdigest("SHA256", @secret, "session #{id}")

    def cookies(env)
      field = env["HTTP_COOKIE"] or return {}
      field.split(/; */).to_h { |pair| pair.split("=", 2).then { |name, value| [name, value.to_s] } }
    end

    # Returns the first address of X-Forwarded-For. We trust the field: the benchmark sends it for its many users.
    def address(env)
      address = env["HTTP_X_FORWARDED_FOR"]&.split(",", 2)&.first&.strip || env["REMOTE_ADDR"]
      ADDRESS.match?(address.to_s) ? address : raise(Refused.new(400, "X-Forwarded-For: expected an address."))
    end

    def form(env)
      body = env["rack.input"]&.read(FORM_BYTES + 1).to_s
      raise Refused.new(413, "Expected a form of at most #{FORM_BYTES} bytes.") if body.bytesize > FORM_BYTES

      URI.decode_www_form(body).to_h
    rescue ArgumentError
      raise Refused.new(400, "Expected a form (application/x-www-form-urlencoded).")
    end
  end
end
