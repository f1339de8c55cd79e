# frozen_string_literal: true

require_relative "support"
require "json"
require "oroshi/manager/memory"

# ReforkAfter: a warmed worker forks the next workers.
class ReforkTest < Support::Test
  # Each process fills its own memory at its first request.
  LAZY = <<~'APP'
    run lambda { |env|
      $lazy ||= Array.new(40) { "x" * (1 << 20) }
      [200, { "content-type" => "text/plain" }, ["#{Process.pid} #{$warmed_by ||= Process.pid}"]]
    }
  APP

  def refork(server, times = 1)
    get("/") until server.said.scan(/forks the next workers/).size >= times
    server.wait_for(/worker \d \(pid (\d+)\): forks the next workers, which share its memory/, count: times)[1].to_i
  end

  # All workers are of the new origin.
  def wait_until_replaced(server, origin)
    pids = []
    wait_until("new workers") do
      pids |= [get("/").body]
      pids.last.end_with?(" #{origin}") && server.said[/\(pid #{origin}\): forks the next.*/m].scan(/: ended$/).size >= 3
    end
  end

  def test_the_next_workers_share_the_memory_of_a_warmed_one
    server = serve(MaxWorkers: 3, ReforkAfter: "10", app: LAZY)
    origin = refork(server)
    wait_until_replaced(server, origin)
    workers = 20.times.map { get("/").body.split.map(&:to_i) }
    assert_equal [origin], workers.map(&:last).uniq
    refute_includes workers.map(&:first), origin
    alive = server.said.scan(/\(pid (\d+)\): started/).flatten.map(&:to_i).select { |pid| alive?(pid) } - [origin]
    assert_equal 3, alive.size
    alive.each do |pid|
      size = Oroshi::Manager::Memory.of(pid)
      assert_operator size.rss, :>, 40 << 20
      assert_operator size.pss, :<, 35 << 20, "40 MiB shared by four"
    end
    assert_equal 0, server.stop.exitstatus
  end

  def alive?(pid)
    Process.kill(0, pid) && true
  rescue Errno::ESRCH
    false
  end

  def test_nothing_is_lost_through_two_reforks
    server = serve(MaxWorkers: 2, ReforkAfter: "20,20", MaxRequestPerChild: 0, app: LAZY)
    assert_equal [200], statuses_meanwhile { server.wait_for(/forks the next workers/) }
    assert_equal [200], statuses_meanwhile(kept: true) { server.wait_for(/: ended$/, count: 4) }
    assert_equal 2, server.said.scan(/forks the next workers/).size
    assert_equal 0, server.stop.exitstatus
  end

  # The new origin is as good as the first: it can be killed, replaced by new code, and stopped.
  def test_hup_after_a_refork_loads_new_code
    server = serve(MaxWorkers: 1, ReforkAfter: "5", StatusSocket: "#{@dir}/status", app: LAZY)
    origin = refork(server)
    wait_until("the successor") { get("/").body.end_with?(" #{origin}") }
    Process.kill("KILL", origin)
    server.wait_for(/the process with the application \(pid #{origin}\) has ended/)
    server.wait_for(/the application is loaded again/)
    wait_until("fresh workers") { !get("/").body.end_with?(" #{origin}") }
    file("config.ru", "run ->(env) { [200, {}, ['new']] }")
    server.signal("HUP")
    server.wait_for(/the application is loaded again/, count: 2)
    wait_until("new code") { get("/").body == "new" }
    status = JSON.parse(Support::Client.unix("#{@dir}/status") { |client| client.get("/status").body })
    assert_operator status["restarts"]["refork"], :>=, 1
    assert_equal 0, server.stop.exitstatus
  end

  def test_hooks_and_exit_blocks
    server = serve(MaxWorkers: 1, ReforkAfter: "3", app: "at_exit { warn \"at exit \#{Process.pid}\" }\n#{LAZY}", config: <<~'CONFIG')
      before_fork { warn "before #{Process.pid}" }
      after_fork { warn "after #{Process.pid}" }
      before_worker_exit { warn "exit #{Process.pid}" }
    CONFIG
    origin = refork(server)
    server.wait_for(/^before #{origin}$/)
    wait_until("the successor") { get("/").body.end_with?(" #{origin}") }
    server.stop
    assert_match(/^exit #{origin}$/, server.said)
    assert_equal [[origin.to_s]], server.said.scan(/^at exit (\d+)/), "once for all processes that have this application"
  end

  def test_it_needs_the_command
    server = start(*Support::RUBY, "-S", "rackup", "-s", "oroshi", "-O", "Path=#{socket_path}", "-O", "ReforkAfter=5",
                   file("config.ru", LAZY))
    assert_equal 2, server.wait.exitstatus
    assert_match(/error: ReforkAfter=5: needs the command oroshi-rack/, server.said)
  end
end
