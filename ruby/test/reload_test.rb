# frozen_string_literal: true

require_relative "support"
require "oroshi/manager/watched_files"

# HUP, and Watch: the application is loaded again.
class ReloadTest < Support::Test
  def app(body, extra = "")
    "#{extra}\nrun ->(env) { [200, { 'content-type' => 'text/plain' }, ['#{body}']] }"
  end

  def test_hup_loads_new_code
    file("code.rb", "module Code; VALUE = 1; end")
    server = serve(MaxWorkers: 2, app: "require_relative 'code'\nrun ->(env) { [200, {}, [Code::VALUE.to_s]] }")
    assert_equal "1", get("/").body
    file("code.rb", "module Code; VALUE = 2; end")
    server.signal("HUP")
    server.wait_for(/the application is loaded again/)
    server.wait_for(/: ended$/, count: 2)
    assert_equal "2", get("/").body
    refute_match(/already initialized constant/, server.said)
    assert_equal 0, server.stop.exitstatus
  end

  # An application that does not load changes nothing, however it fails.
  def test_hup_keeps_the_old_where_the_new_does_not_load
    server = serve(MaxWorkers: 2, app: app("old"))
    pids = [server.worker(0), server.worker(1)]
    { "raise 'broken on purpose'" => /config\.ru cannot be loaded: RuntimeError: broken on purpose\n.*config\.ru:1/,
      "def (" => /config\.ru cannot be loaded: SyntaxError/,
      "exit 3" => /its process has ended/,
      "Process.kill(:KILL, Process.pid); sleep" => /its process has ended/ }.each_with_index do |(code, said), n|
      file("config.ru", code)
      server.signal("HUP")
      server.wait_for(/cannot be loaded again: .*?the workers keep the one that they have/m, count: n + 1)
      assert_match said, server.said
      assert_equal "old", get("/").body
    end
    assert_equal pids, [server.worker(0), server.worker(1)]
    # Workers that end are replaced by workers with the old application.
    Process.kill("TERM", pids[0])
    server.wait_for(/worker \d .*: ready/, count: 3)
    assert_equal "old", get("/").body
    file("config.ru", app("new"))
    server.signal("HUP")
    server.wait_for(/stopping: HUP/, count: 2)
    server.wait_for(/: ended$/, count: 2)
    assert_equal "new", get("/").body
  end

  def test_new_code_under_load_loses_nothing
    # Without its usual end after 1,000 requests, which would be one more.
    server = serve(MaxWorkers: 2, MaxRequestPerChild: 0, app: app("0"))
    statuses = statuses_meanwhile do
      3.times do |n|
        file("config.ru", app(n + 1))
        server.signal("HUP")
        server.wait_for(/: ended$/, count: 2 * (n + 1))
      end
    end
    assert_equal [200], statuses
    assert_equal "3", get("/").body
  end

  # The last HUP wins.
  def test_hup_while_the_application_loads
    server = serve(app: app("old"))
    door = self.door
    file("config.ru", app("never", "require 'socket'; UNIXSocket.open('#{door.path}', &:read)"))
    server.signal("HUP")
    keeper = within("the application") { door.accept }
    assert_equal "old", get("/").body
    file("config.ru", app("new"))
    server.signal("HUP")
    server.wait_for(/: ended$/)
    assert_equal "new", get("/").body
    assert_equal 0, server.stop.exitstatus
  ensure
    keeper&.close
    door&.close
  end

  def test_a_stop_while_the_application_loads_again
    server = serve(app: app("old"))
    door = self.door
    file("config.ru", app("never", "require 'socket'; UNIXSocket.open('#{door.path}', &:read)"))
    server.signal("HUP")
    keeper = within("the application") { door.accept }
    server.signal("INT")
    server.wait_for(/oroshi\[\d+\]: done/)
    keeper.close
    assert_equal 0, server.wait.exitstatus
  ensure
    door&.close
  end

  # The process that holds the application is not alone in the world: it may be killed.
  def test_the_application_is_loaded_again_when_its_process_dies
    server = serve(app: app("hello"))
    Process.kill("KILL", holder(server))
    server.wait_for(/the process with the application \(pid \d+\) has ended; loading the application again/)
    server.wait_for(/the application is loaded again/)
    server.wait_for(/: ended$/)
    assert_equal "hello", get("/").body
    assert_equal 0, server.stop.exitstatus
  end

  # Returns the pid of the process with the application.
  def holder(server)
    children = File.read("/proc/#{server.pid}/task/#{server.pid}/children").split.map(&:to_i)
    children.find { |pid| File.read("/proc/#{pid}/cmdline").start_with?("oroshi application") }
  end

  # It runs no application code when the manager is gone.
  def test_nothing_is_left_when_the_manager_is_killed
    server = serve(MaxWorkers: 2, app: app("hello"))
    server.signal("KILL")
    server.wait # and for everything that has its output open
    assert_raises(Errno::ECONNREFUSED) { get("/") }
  end

  # Hooks run where workers are forked; `at_exit` blocks of the application where it was loaded.
  def test_hooks_and_exit_blocks
    server = serve(app: app("hello", "$loaded = true\nat_exit { warn 'at exit' }"),
                   config: "before_fork { |n| warn \"before fork \#{n}: \#{$loaded.inspect}\" }")
    assert_match(/^before fork 0: true$/, server.said)
    assert_equal 0, server.stop.exitstatus
    assert_equal 1, server.said.scan("at exit").size
  end

  def test_a_hook_that_raises
    server = serve(ErrRespawnInterval: "50ms", ready: 0, config: <<~'CONFIG')
      tries = 0
      before_fork { (tries += 1) < 3 and raise "try #{tries}" }
    CONFIG
    server.wait_for(/worker 0: cannot be started: RuntimeError: try 2\n .*oroshi\.rb:2/)
    server.wait_for(/worker 0 .*: ready/)
    assert_equal 200, get("/").status
  end

  # Abandoned processes of the application do not stay as zombies.
  def test_orphans_are_reaped
    server = serve(app: "$orphan = fork { fork { exit!(0) }; exit!(0) }\nProcess.wait($orphan)\n#{app("hello")}")
    wait_until("the orphan's end") do
      children = File.read("/proc/#{server.pid}/task/#{server.pid}/children").split
      children.none? { |pid| (File.read("/proc/#{pid}/stat")[/\) (\w)/, 1] rescue nil) == "Z" }
    end
    assert_equal 0, server.stop.exitstatus
  end

  def test_watch_loads_changed_code
    Dir.mkdir(File.join(@dir, "lib"))
    file("lib/code.rb", "VALUE = 'one'")
    server = serve(Watch: "lib,config.ru", app: "require_relative 'lib/code'\nrun ->(env) { [200, {}, [VALUE]] }")
    assert_equal "one", get("/").body
    file("lib/code.rb", "VALUE = 'second'")
    server.wait_for(%r{lib/code\.rb has changed: loading the application again})
    server.wait_for(/: ended$/)
    assert_equal "second", get("/").body
    file("lib/code.rb", "VALUE = ")
    server.wait_for(/cannot be loaded again: .*SyntaxError/)
    assert_equal "second", get("/").body
    file("lib/other.rb", "")
    server.wait_for(%r{lib/other\.rb has changed})
  end

  def test_dev
    server = start(*Support::COMMAND, "--dev", "-l", socket_path, file("config.ru", app("one")))
    server.wait_for(/with 1 workers/)
    server.wait_for(/: ready/)
    file("config.ru", app("other"))
    server.wait_for(/config\.ru has changed/)
    server.wait_for(/: ended$/)
    assert_equal "other", get("/").body
  end

  # rackup has loaded the application already.
  def test_watch_needs_the_command
    server = start(*Support::RUBY, "-S", "rackup", "-s", "oroshi", "-O", "Path=#{socket_path}", "-O", "Watch=.",
                   file("config.ru", app("one")))
    assert_equal 2, server.wait.exitstatus
    assert_match(/error: Watch=\.: needs the command oroshi-rack/, server.said)
  end
end

# Which files count.
class WatchedFilesTest < Minitest::Test
  def setup
    @dir = Dir.mktmpdir("oroshi")
    %w[app/models tmp node_modules].each { |name| FileUtils.mkdir_p("#{@dir}/#{name}") }
    %w[config.ru app/a.rb app/models/b.rb app/view.erb tmp/c.rb node_modules/d.rb app/data.bin].each { |name| write(name, "1") }
    @files = Oroshi::Manager::WatchedFiles.new(@dir)
    @now = 0
  end

  def teardown
    FileUtils.rm_rf(@dir)
  end

  def write(name, text)
    File.write("#{@dir}/#{name}", text)
  end

  def changed
    @files.changed(@now += 1)&.delete_prefix("#{@dir}/")
  end

  def test_code_and_views_count
    assert_nil changed
    %w[config.ru app/a.rb app/models/b.rb app/view.erb].each do |name|
      write(name, "longer")
      assert_equal name, changed
      assert_nil changed
    end
    %w[tmp/c.rb node_modules/d.rb app/data.bin].each do |name|
      write(name, "longer")
      assert_nil changed, name
    end
    File.delete("#{@dir}/app/a.rb")
    assert_equal "app/a.rb", changed
  end

  def test_it_looks_now_and_then
    write("config.ru", "longer")
    assert_equal "#{@dir}/config.ru", @files.changed(1)
    write("config.ru", "even longer")
    assert_nil @files.changed(1.4)
    assert @files.changed(1.5)
  end
end
