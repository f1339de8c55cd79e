# frozen_string_literal: true

require_relative "support"
require "open3"

# A MariaDB for all tests of a process, as examples/isucon4 sets it up, with that example's data.
module Support::Database
  module_function

  EXAMPLE = File.expand_path("../examples/isucon4", Support::ROOT)

  # Returns its folder, in which it listens at mariadb.sock.
  def start
    @folder ||= Dir.mktmpdir("isucon4").tap do |folder|
      said, status = Open3.capture2e("#{EXAMPLE}/setup", folder)
      Minitest.after_run { stop(folder) }
      raise "setup failed:\n#{said}" unless status.success?
    end
  end

  def stop(folder)
    system("#{EXAMPLE}/setup", "--stop", folder)
    FileUtils.rm_rf(folder)
  end

  def execute(sql)
    said, status = Open3.capture2e("mariadb", "--no-defaults", "--skip-column-names", "--user=root",
                                   "--socket=#{start}/mariadb.sock", "--execute=#{sql}", "isucon4")
    raise said unless status.success?

    said
  end

  def count(status) = execute("SHOW GLOBAL STATUS LIKE '#{status}'").split.last.to_i
end
