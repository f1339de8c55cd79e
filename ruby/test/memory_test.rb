# frozen_string_literal: true

require_relative "support"
require "oroshi/manager/memory"

# Workers whose memory has grown beyond MaxMemoryPerChild are replaced.
class MemoryTest < Support::Test
  GROWS = <<~'APP'
    $kept = []
    run lambda { |env|
      $kept << "x" * (150 << 20) if env["PATH_INFO"] == "/grow"
      [200, {}, [Process.pid.to_s]]
    }
  APP

  def test_a_large_worker_is_replaced_when_its_successor_is_ready
    server = serve(MaxWorkers: 2, MaxMemoryPerChild: "120m", MinMemoryPerChild: "110m", app: GROWS)
    large = get("/grow").body.to_i
    said = server.wait_for(/worker \d \(pid #{large}\): stopping: memory: PSS is (\d+) MiB, its limit (\d+) MiB/)
    assert_operator said[1].to_i, :>=, 150
    assert_includes 110..120, said[2].to_i
    server.wait_for(/worker \d \(pid #{large}\): ended$/)
    events = server.said.scan(/worker \d \(pid \d+\): (started, to replace.*memory|ready|stopping|ended)/).flatten
    assert_equal %w[ready ready started ready stopping ended], events.map { |event| event[/\A\w+/] }
    assert_equal 0, server.stop.exitstatus
  end

  # Memory that all share is nobody's fault: PSS counts it in parts.
  def test_shared_memory_counts_in_parts
    server = serve(MaxWorkers: 4, app: "BIG = 'x' * (200 << 20)\n#{Support::PLAIN_APP}")
    sizes = Array.new(4) { |n| Oroshi::Manager::Memory.of(server.worker(n)) }
    sizes.each do |size|
      assert_operator size.rss, :>, 200 << 20
      assert_operator size.pss, :<, 110 << 20
    end
  end

  def test_contradictions
    command = start(*Support::COMMAND, "-O", "MinMemoryPerChild=200m", "-O", "MaxMemoryPerChild=100m")
    assert_equal 2, command.wait.exitstatus
    assert_match(/MinMemoryPerChild \d+ is above MaxMemoryPerChild \d+: give a range/, command.said)
  end

  Worker = Struct.new(:pid, :state, :enough)

  # Without processes: figures are arguments.
  def look(memory, workers, now)
    [].tap { |found| memory.look(workers, now) { |worker, why| found << [worker.pid, why] } }
  end

  def test_which_workers_are_too_large
    sizes = { 1 => 99, 2 => 101, 3 => 500, 4 => 500 }
    measure = ->(pid) { sizes[pid] && Oroshi::Manager::Memory::Size.new(sizes[pid] << 20, 0) }
    memory = Oroshi::Manager::Memory.new(100 << 20, 100 << 20, measure: measure)
    workers = [Worker.new(1, :ready), Worker.new(2, :ready), Worker.new(3, :stopping), Worker.new(4, :ready, "HUP"), Worker.new(5, :ready)]
    workers.each { |worker| memory.started(worker) }
    assert_equal [[2, "memory: PSS is 101 MiB, its limit 100 MiB"]], look(memory, workers, 0)
    assert_empty look(memory, workers, memory.interval_s - 0.1), "it looks now and then"
    assert_equal 1, look(memory, workers, memory.interval_s).size
  end

  def test_each_worker_draws_its_limit
    sizes = Array.new(200) { |pid| Worker.new(pid, :ready) }
    memory = Oroshi::Manager::Memory.new(100 << 20, 200 << 20, measure: ->(_) { Oroshi::Manager::Memory::Size.new(150 << 20, 0) })
    sizes.each { |worker| memory.started(worker) }
    assert_includes 20..180, look(memory, sizes, 0).size # outside: once in 10^28
  end

  def test_a_process_that_has_gone_has_no_size
    pid = fork { exit! }
    Process.wait(pid)
    assert_nil Oroshi::Manager::Memory.of(pid)
  end
end
