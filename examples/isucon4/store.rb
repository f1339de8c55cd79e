# frozen_string_literal: true

require "mysql2"

module Isucon4
  # The accounts and addresses in MariaDB. Each thread keeps one connection with prepared statements.
  class Store
    # An account is locked, and an address banned, after this many failed logins in a row.
    LOCKED_AT = 3
    BANNED_AT = 10

    Account = Struct.new(:id, :salt, :password_hash, :failures)
    LastLogin = Struct.new(:login, :at, :address)

    STATEMENTS = {
      # One round trip for both counters. There is always one row, also for an unknown login and a new address.
      attempt: <<~SQL,
        SELECT users.id, users.salt, users.password_hash, users.failures, addresses.failures
        FROM (SELECT 1) AS one LEFT JOIN users ON users.login = ? LEFT JOIN addresses ON addresses.address = ?
      SQL
      # MariaDB assigns from left to right: the previous login first. The condition refuses a login if other requests
      # have locked the account since `attempt`.
      succeed: <<~SQL,
        UPDATE users SET previous_at = login_at, previous_address = login_address,
                         login_at = UTC_TIMESTAMP(), login_address = ?, failures = 0
        WHERE id = ? AND failures < #{LOCKED_AT}
      SQL
      clear_address: "UPDATE addresses SET failures = 0 WHERE address = ? AND failures < #{BANNED_AT}",
      fail_account: "UPDATE users SET failures = failures + 1 WHERE id = ?",
      fail_address: <<~SQL,
        INSERT INTO addresses (address, failures) VALUES (?, 1) ON DUPLICATE KEY UPDATE failures = failures + 1
      SQL
      last_login: <<~SQL,
        SELECT login, DATE_FORMAT(previous_at, '%Y-%m-%d %H:%i:%s'), previous_address FROM users WHERE id = ?
      SQL
      banned: "SELECT address FROM addresses WHERE failures >= #{BANNED_AT} ORDER BY address",
      locked: "SELECT login FROM users WHERE failures >= #{LOCKED_AT} ORDER BY login"
    }.freeze

    RESET = [
      "START TRANSACTION",
      <<~SQL,
        UPDATE users JOIN seed_users USING (id)
        SET users.failures = seed_users.failures, users.login_at = seed_users.login_at,
            users.login_address = seed_users.login_address, users.previous_at = NULL, users.previous_address = NULL
      SQL
      "DELETE FROM addresses",
      "INSERT INTO addresses SELECT * FROM seed_addresses",
      "COMMIT"
    ].freeze

    # socket: path of MariaDB's socket.
    def initialize(socket)
      @socket = socket
      @name = :"isucon4_#{object_id}"
    end

    # Returns the account of this login (nil if there is none) and the failures of the address.
    def attempt(login, address)
      id, salt, password_hash, failures, address_failures = read(:attempt, login, address).first
      [id && Account.new(id, salt, password_hash, failures), address_failures || 0]
    end

    # Records a login. Returns false if the account was locked meanwhile. had_failures: the address has failures.
    def succeed(account, address, had_failures:)
      return false if write(:succeed, address, account.id).zero?

      write(:clear_address, address) if had_failures
      true
    end

    # Counts a refused login. account: nil if there is none of that name.
    def fail(account, address)
      write(:fail_account, account.id) if account
      write(:fail_address, address)
    end

    # Returns the login before the current one; nil if there is no such account.
    def last_login(id)
      row = read(:last_login, id).first
      row && LastLogin.new(*row)
    end

    def banned = read(:banned).flatten

    def locked = read(:locked).flatten

    # Restores the seed.
    def reset
      guarded { |connection| RESET.each { |sql| connection.client.query(sql) } }
    end

    private

    # A connection with its statements, each prepared at its first use.
    Connection = Struct.new(:client, :statements) do
      def statement(name) = statements[name] ||= client.prepare(STATEMENTS.fetch(name))
    end

    # A kept connection may have been closed while it was idle, so a read is tried twice. A write is not: its first try
    # may have been carried out.
    def read(name, *values)
      tries = 0
      begin
        guarded { |connection| connection.statement(name).execute(*values, as: :array).to_a }
      rescue Mysql2::Error
        raise if (tries += 1) > 1

        retry
      end
    end

    # Returns the number of rows that the statement has found.
    def write(name, *values)
      guarded { |connection| connection.statement(name).tap { |statement| statement.execute(*values) }.affected_rows }
    end

    # Drops the connection after an error: the next request opens another one.
    def guarded
      yield connection
    rescue StandardError
      Thread.current.thread_variable_set(@name, nil)
      raise
    end

    # The thread's connection. It is opened in the worker, not before the fork.
    def connection
      Thread.current.thread_variable_get(@name) || connect.tap { |new| Thread.current.thread_variable_set(@name, new) }
    end

    def connect
      client = Mysql2::Client.new(
        socket: @socket, username: "root", database: "isucon4", encoding: "utf8mb4", connect_timeout: 5,
        flags: Mysql2::Client::FOUND_ROWS, # an UPDATE that changes nothing counts too
        init_command: "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
      )
      Connection.new(client, {})
    end
  end
end
