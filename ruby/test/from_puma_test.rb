# frozen_string_literal: true

require_relative "support"
require "oroshi"
require "oroshi/from_puma"

# `oroshi-rack --from-puma`: settings of a config/puma.rb, as a file of ours.
class FromPumaTest < Support::Test
  def convert(text, env: {})
    Oroshi::FromPuma.new(file("puma.rb", text), env: env).text
  end

  # Returns the settings of a converted file.
  def settings(text)
    Oroshi::Settings.build({ ConfigFile: file("oroshi.rb", text) }, env: {})
  end

  # As `rails new` writes it.
  RAILS = <<~'PUMA'
    max_threads_count = ENV.fetch("NO_SUCH_VARIABLE") { 5 }
    min_threads_count = ENV.fetch("NO_SUCH_VARIABLE") { max_threads_count }
    threads min_threads_count, max_threads_count
    worker_timeout 3600 if ENV.fetch("NO_SUCH_VARIABLE", "development") == "development"
    port ENV.fetch("NO_SUCH_VARIABLE") { 3000 }
    environment ENV.fetch("NO_SUCH_VARIABLE") { "development" }
    pidfile ENV.fetch("NO_SUCH_VARIABLE") { "tmp/pids/server.pid" }
    workers ENV.fetch("NO_SUCH_VARIABLE") { 2 }
    preload_app!
    plugin :tmp_restart
  PUMA

  def test_the_file_of_rails
    text = convert(RAILS)
    found = settings(text)
    assert_equal [2, 5, 3000, "tmp/pids/server.pid"], [found.max_workers, found.threads, found.port, found.pid_file]
    assert_equal 0, found.worker_timeout, "Puma's means something else"
    ["worker_timeout 3600: Puma kills a worker that is silent", "environment \"development\": oroshi-rack -E development",
     "preload_app!: the application is loaded", "plugin :tmp_restart: not here"].each { |line| assert_includes text, "# #{line}" }
    assert_match(/\(line 4\)/, text)
  end

  def test_other_settings
    found = settings(convert(<<~'PUMA'))
      bind "unix:///run/app.sock"
      persistent_timeout 65
      first_data_timeout 20
      worker_shutdown_timeout 15
      http_content_length_limit 1_000_000
      early_hints true
      log_requests
      stdout_redirect "log/out", "log/err", true
      activate_control_app "unix:///run/puma.ctl", auth_token: "secret"
    PUMA
    assert_equal [["unix:///run/app.sock"], 65, 20, 15, 1_000_000, true, :common, "log/out", "log/err", "/run/puma.ctl"],
                 [found.listen, found.keep_alive, found.timeout, found.stop_timeout, found.max_body, found.early_hints,
                  found.log_format, found.access_log, found.error_log, found.status_socket]
  end

  def test_secrets_are_not_printed
    refute_includes convert("activate_control_app 'tcp://127.0.0.1:9293', auth_token: 'secret'"), "secret"
    refute_includes convert("ssl_bind '127.0.0.1', '9292', key: 'secret'"), "secret"
  end

  def test_blocks_are_named_with_their_place
    text = convert("before_fork do\n  1\nend\n\non_worker_boot { 2 }\non_worker_shutdown { 3 }\n")
    %w[before_fork:1 after_fork:5 before_worker_exit:6].each do |place|
      name, line = place.split(":")
      assert_match(/^#{name} \{ \} # put the block of \w+ here: .*puma\.rb:#{line}$/, text)
    end
    assert settings(text).after_fork
  end

  def test_what_is_not_known_is_named
    text = convert("shiny_new_setting 3\nbind 'rubbish://'")
    assert_includes text, "# shiny_new_setting 3: unknown here"
    assert_includes text, "# listen \"rubbish://\": must be addresses"
  end

  def test_the_number_of_workers_and_threads
    assert_match(/^max_workers 3\nthreads 5 # Puma's default$/, convert("workers 3"))
    assert_match(/^max_workers 1\nthreads 8$/, convert("threads 0, 8"))
    assert_match(/^max_workers 2\nthreads 2$/, convert("threads 1, 2", env: { "WEB_CONCURRENCY" => "2" }))
    assert_match(/^max_workers "auto"$/, convert("workers :auto"))
    assert_match(/^io_threads 16$/, convert("max_io_threads 16"))
    refute_match(/max_workers/, convert("port 3000"))
  end

  def test_the_command
    command = start(*Support::COMMAND, "--from-puma", file("puma.rb", RAILS))
    assert_equal 0, command.wait.exitstatus, command.said
    assert_equal [2, 5], settings(command.said).then { |found| [found.max_workers, found.threads] }
    command = start(*Support::COMMAND, "--from-puma", file("puma.rb", "port 1\nraise 'no'"))
    assert_equal 2, command.wait.exitstatus
    assert_match(/\Aerror: .*puma\.rb:2: RuntimeError: no$/, command.said)
  end
end
