# frozen_string_literal: true

# Writes the seed, always the same, into a folder: users.csv, addresses.csv and assets.csv, which isucon4.lua reads, and
# seed.sql for MariaDB.
#
#     ruby seed.rb [FOLDER]       (unset: data/ beside this file)

require "csv"
require "digest"
require "fileutils"

module Isucon4
  # The accounts and addresses of the benchmark.
  module Seed
    USERS = 5_000
    ADDRESSES = 1_000
    FIRST = %w[ai haru kae mio nao rei sora taka yuki aya].freeze
    LAST = %w[bara hashi kawa mori numa saki shima tani yama zaka].freeze

    module_function

    # Returns a number below `limit` that looks random and is the same each time.
    def draw(limit, *what) = hex(*what)[0, 12].to_i(16) % limit

    def hex(*what) = Digest::SHA256.hexdigest(what.join(" "))

    # Benchmarking addresses (RFC 2544), which nobody has.
    def address(number) = "198.18.#{number / 250}.#{number % 250 + 1}"

    def users
      (1..USERS).map do |id|
        login = "#{FIRST[id % 10]}#{LAST[id / 10 % 10]}#{id}"
        salt = hex("salt", id)[0, 16]
        password = hex("password", id)[0, 14]
        # One in 50 is locked, some have begun to fail; half have logged in before.
        failures = { 0 => 3, 1 => 2, 2 => 1 }.fetch(draw(50, "failures", id), 0)
        before = draw(2, "before", id).zero?
        { id:, login:, password:, salt:, password_hash: Digest::SHA256.hexdigest("#{password}:#{salt}"), failures:,
          login_at: ("2026-01-#{format("%02d", 1 + id % 28)} 09:#{format("%02d", id % 60)}:00" if before),
          login_address: (address(draw(ADDRESSES, "address", id)) if before) }
      end
    end

    # wrong: the share of logins from this address that try a wrong password. One address in 20 does nothing but guess:
    # only so does one fail ten times in a row.
    def addresses
      (0...ADDRESSES).map do |number|
        guesses = number % 20 == 7
        failures = guesses ? draw(12, "guesses", number) : draw(4, "slips", number)
        { address: address(number), failures:, wrong: guesses ? 1 : 0.1 }
      end
    end

    # MD5 of each file that a page names.
    def assets
      public_folder = File.join(__dir__, "public")
      Dir.glob("assets/*", base: public_folder).sort.map do |path|
        { path: "/#{path}", md5: Digest::MD5.file(File.join(public_folder, path)).hexdigest }
      end
    end

    def csv(rows)
      CSV.generate { |csv| [rows.first.keys, *rows.map(&:values)].each { |row| csv << row } }
    end

    # None of the texts above needs more than quotes.
    def insert(table, rows)
      texts = rows.map { |row| row.map { |value| value.is_a?(String) ? "'#{value}'" : value || "NULL" } }
      values = texts.map { |row| "(#{row.join(",")})" }
      values.each_slice(1_000).map { |slice| "INSERT INTO #{table} VALUES\n#{slice.join(",\n")};\n" }.join
    end

    def sql(users, addresses)
      ["USE isucon4;\n",
       insert("users", users.map { |user| [*user.except(:password).values, nil, nil] }), # no login before the last one
       insert("seed_users", users.map { |user| user.values_at(:id, :failures, :login_at, :login_address) }),
       insert("addresses", addresses.map { |address| address.values_at(:address, :failures) }),
       "INSERT INTO seed_addresses SELECT * FROM addresses;\n"].join
    end

    # Each file appears at once and complete.
    def write(folder)
      users = self.users
      addresses = self.addresses
      FileUtils.mkdir_p(folder)
      { "users.csv" => csv(users.map { |user| user.slice(:login, :password, :salt, :failures, :login_address) }),
        "addresses.csv" => csv(addresses), "assets.csv" => csv(assets),
        "seed.sql" => sql(users, addresses) }.each do |name, text|
        path = File.join(folder, name)
        next if File.exist?(path) && File.read(path) == text

        File.write("#{path}.#{Process.pid}", text)
        File.rename("#{path}.#{Process.pid}", path)
      end
    end
  end
end

Isucon4::Seed.write(ARGV[0] || File.join(__dir__, "data")) if $PROGRAM_NAME == __FILE__
