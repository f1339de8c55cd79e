# frozen_string_literal: true

require_relative "support"
require "oroshi/version"
require "oroshi/settings"
require "oroshi/listeners"

# The checks of a user's settings. Starts no server.
class SettingsTest < Support::Test
  Settings = Oroshi::Settings

  def build(env: {}, in_file: nil, **options)
    options[:ConfigFile] = file("oroshi.rb", in_file) if in_file
    Settings.build(options, env: env)
  end

  def mistakes(**arguments)
    assert_raises(Settings::Invalid) { build(**arguments) }.mistakes
  end

  def test_limits_of_what_waits_for_clients
    settings = Oroshi::Settings.build({ "BufferMemory" => "10m", answer_files: "2g" }, env: {})
    assert_equal [10 << 20, 2 << 30], [settings.buffer_memory, settings.answer_files]
    assert_includes settings.describe.map { |line| line.squeeze(" ") }, "BufferMemory 10485760 (command line)"
    assert_equal [64 << 20, 1 << 30], Oroshi::Settings.build({}, env: {}).then { |it| [it.buffer_memory, it.answer_files] }
    settings = Oroshi::Settings.build({ "BodyFiles" => "5g", least_rate: "10k" }, env: {})
    assert_equal [5 << 30, 10 << 10], [settings.body_files, settings.least_rate]
    assert_includes settings.describe.map { |line| line.squeeze(" ") }, "LeastRate 10240 (command line)"
    assert_equal [2 << 30, 1024], Oroshi::Settings.build({}, env: {}).then { |it| [it.body_files, it.least_rate] }
  end

  def test_defaults_are_rheboks
    settings = build
    {
      host: "0.0.0.0", port: 9292, path: nil, backlog: Socket::SOMAXCONN, reuseport: false, max_workers: 5,
      max_request_per_child: 1000, min_request_per_child: nil, timeout: 300, spawn_interval: nil,
      err_respawn_interval: 1, oobgc: false, max_gc_per_request: 5, min_gc_per_request: nil, before_fork: nil,
      after_fork: nil, config_file: nil
    }.each { |name, value| assert settings.public_send(name) == value, "#{name}: #{settings.public_send(name)}" }
  end

  def test_every_name_of_rhebok_is_known
    %w[Host Port Path BackLog ReusePort MaxWorkers MinRequestPerChild MaxRequestPerChild SpawnInterval
       ErrRespawnInterval Timeout OobGC MaxGCPerRequest MinGCPerRequest ChunkedTransfer ConfigFile BeforeFork AfterFork
       KeepAlive WorkerTimeout MaxBody LogFormat].each { |name| assert_equal name, Settings.option(name)&.flag }
  end

  def test_strings_and_values_are_the_same
    text = build(Port: "8080", ReusePort: "yes", OobGC: true, Timeout: "1.5s", MaxBody: "10m", PathMode: "0660",
                 LogFormat: "json", Listen: "8080,@name", SpawnInterval: "500ms")
    ruby = build(port: 8080, reuseport: true, oobgc: true, timeout: 1.5, max_body: 10 << 20, path_mode: 0o660,
                 log_format: :json, listen: ["8080", "@name"], spawn_interval: 0.5)
    Settings::OPTIONS.each do |option|
      value = ruby.public_send(option.name)
      value.nil? ? assert_nil(text.public_send(option.name)) : assert_equal(value, text.public_send(option.name))
    end
  end

  def test_times
    { "30" => 30, "30s" => 30, "250ms" => 0.25, "5m" => 300, "2h" => 7200, "0.5" => 0.5, 3 => 3, 0 => 0 }
      .each { |text, seconds| assert_in_delta seconds, build(Timeout: text).timeout, 1e-9, text.inspect }
    ["", "abc", "1d", "-1", -1, "1 2", true, nil, Float::INFINITY, Float::NAN]
      .each { |text| assert_match(/must be a time/, mistakes(Timeout: text).first, text.inspect) }
  end

  def test_all_mistakes_at_once
    found = mistakes(MaxWorkers: "none", Port: "99999", BackLog: true, Hosts: "x", LogFormat: "xml", PathMode: "999",
                     Listen: "nowhere", AfterFork: "text")
    assert_equal ["MaxWorkers=none: must be a whole number from 1 on, or auto (one per processor), for example " \
                  "-O MaxWorkers=4",
                  "Port=99999: must be a whole number from 0 to 65535, for example -O Port=8080",
                  "BackLog without a value: must be a whole number from 1 on, for example -O BackLog=1",
                  "Hosts=x: no such option; did you mean Host?",
                  "LogFormat=xml: must be one of off, common, combined, json, for example -O LogFormat=json",
                  "PathMode=999: must be a mode in octal, for example -O PathMode=0660",
                  "Listen=nowhere: must be addresses: PORT, HOST:PORT, [V6]:PORT, /a/path or @name, with commas between " \
                  "them, for example -O Listen=127.0.0.1:8080",
                  "AfterFork=text: must be a block, in a config file, for example AfterFork { ... }"], found
  end

  def test_unknown_names_get_the_nearest
    { "MaxWorker" => "MaxWorkers", "workerTimeot" => "WorkerTimeout", "Bakclog" => "BackLog",
      "worker_processes" => "MaxWorkers", "stderr_path" => "ErrorLog" }.each do |wrong, right|
      assert_equal ["#{wrong}=1: no such option; did you mean #{right}?"], mistakes(wrong.to_sym => "1")
    end
    assert_equal ["Quux=1: no such option; docs/rack.md has the list"], mistakes(Quux: "1")
  end

  # Rhebok's README spells it Chunked_Transfer, its code ChunkedTransfer.
  def test_either_spelling
    refute build(Chunked_Transfer: "false").chunked_transfer
    refute build(chunked_transfer: "false").chunked_transfer
    assert_equal false, build(ChunkedTransfer: false).chunked_transfer
  end

  def test_ranges_are_checked_together
    assert_equal ["MinRequestPerChild 2000 is above MaxRequestPerChild 1000: give a range"],
                 mistakes(MinRequestPerChild: 2000)
    assert_equal ["MinGCPerRequest 9 is above MaxGCPerRequest 8: give a range"],
                 mistakes(MinGCPerRequest: 9, MaxGCPerRequest: 8)
  end

  def test_what_launchers_hand_over_is_not_ours
    build(environment: "development", pid: nil, config: "config.ru", server: "oroshi", AccessLog: [],
          DoNotReverseLookup: true, user_supplied_options: [:Port], daemonize: false)
  end

  def test_environment_stands_in
    assert_equal 3, build(env: { "WEB_CONCURRENCY" => "3" }).max_workers
    assert_equal Etc.nprocessors, build(env: { "WEB_CONCURRENCY" => "auto" }).max_workers
    assert_equal 2, build(MaxWorkers: "2", env: { "WEB_CONCURRENCY" => "3" }).max_workers
    assert_equal 4, build(in_file: "max_workers 4", env: { "WEB_CONCURRENCY" => "3" }).max_workers
    assert_equal 5, build(env: { "WEB_CONCURRENCY" => "" }).max_workers
    assert_equal 8080, build(env: { "PORT" => "8080" }).port
    assert_equal ["WEB_CONCURRENCY=many: must be a whole number from 1 on, or auto (one per processor), for example " \
                  "WEB_CONCURRENCY=4"], mistakes(env: { "WEB_CONCURRENCY" => "many" })
  end

  def test_log_format_follows_the_file
    assert_equal :off, build.log_format
    assert_equal :combined, build(AccessLog: "a.log").log_format
    assert_equal :off, build(AccessLog: "a.log", LogFormat: "off").log_format
  end

  # --- config files ---

  def test_config_file_wins_as_in_rhebok
    assert_equal 3, build(MaxWorkers: "7", in_file: "max_workers 3").max_workers
  end

  # Rhebok's own `reuseport` and `chunked_transfer` take only a block.
  def test_config_file_of_rhebok
    settings = build(in_file: <<~CONFIG)
      host '127.0.0.1'
      port 9292
      max_workers ENV["WEB_CONCURRENCY"] || 3
      timeout 300
      max_request_per_child 1000
      min_request_per_child 500
      oobgc true
      max_gc_per_request 5
      min_gc_per_request 1
      chunked_transfer false
      reuseport true
      backlog 1000
      spawn_interval 1
      err_respawn_interval 3
      before_fork {
        :before
      }
      after_fork {
        :after
      }
    CONFIG
    assert_equal [true, false, 1000, 1, 3], [settings.reuseport, settings.chunked_transfer, settings.backlog,
                                             settings.spawn_interval, settings.err_respawn_interval]
    assert_equal %i[before after], [settings.before_fork.call, settings.after_fork.call]
  end

  def test_config_file_listens_several_times
    settings = build(in_file: "listen 8080\nlisten '/run/a', '@b'\n")
    assert_equal ["8080", "/run/a", "@b"], settings.listen
  end

  # As Puma's files have it: the latter number counts.
  def test_threads_of_a_file
    assert_equal([5, 5, 3], ["threads 5", "threads 1, 5", "threads '2:3'"].map { |line| build(in_file: line).threads })
    ["threads 5, 1", "threads 0"].each { |line| assert_match(/must be a whole number from 1/, mistakes(in_file: line).first) }
    assert_match(/:1: threads: wants one value or two, got 3$/, mistakes(in_file: "threads 1, 2, 3").first)
  end

  def test_config_file_tells_lines
    path = File.join(@dir, "oroshi.rb")
    assert_equal ["#{path}:2: max_wokers 4: no such option; did you mean max_workers?",
                  "#{path}:3: timeout \"soon\": must be a time: seconds, or a number with ms, s, m or h, " \
                  "for example timeout 30s",
                  "#{path}:4: port: wants one value or a block, got 2",
                  "#{path}:5: quux 5, 5: no such option; docs/rack.md has the list",
                  "#{path}:6: there is no `nonsense`; docs/rack.md has the list"],
                 mistakes(in_file: "\nmax_wokers 4\ntimeout 'soon'\nport 1, 2\nquux 5, 5\nnonsense\n")
                   .sort_by { |line| line[/:(\d+):/, 1].to_i }
  end

  # A systemd service has no locale; Ruby then reads files as ASCII.
  def test_config_file_in_utf_8_wherever_it_runs
    before = Encoding.default_external
    verbose, $VERBOSE = $VERBOSE, nil
    Encoding.default_external = Encoding::US_ASCII
    assert_equal "/run/é.sock", build(in_file: "path '/run/é.sock' # für alle\n").path
  ensure
    Encoding.default_external = before
    $VERBOSE = verbose
  end

  def test_config_file_with_a_syntax_error
    assert_match(/oroshi.rb.*SyntaxError/m, mistakes(in_file: "max_workers (").first)
  end

  def test_config_file_that_is_not_there
    assert_match(%r{ConfigFile /nonexistent: cannot be read: No such file}, mistakes(ConfigFile: "/nonexistent").first)
  end

  def test_config_file_cannot_name_another
    assert_match(/cannot name another/, mistakes(in_file: "config_file 'x'").first)
  end

  def test_describe_tells_where_values_are_from
    lines = build(MaxWorkers: 2, in_file: "timeout '1m'", env: { "PORT" => "80" }).describe
    assert_includes lines, "MaxWorkers         2 (command line)"
    assert_includes lines, "Timeout            60 s (#{@dir}/oroshi.rb:1)"
    assert_includes lines, "Port               80 (environment)"
    assert_includes lines, "KeepAlive          75 s (default)"
  end
end
