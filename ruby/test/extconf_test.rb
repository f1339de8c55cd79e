# frozen_string_literal: true

require_relative "support"
require_relative "../ext/native_makefile"

# Messages before the native parts are built, and parts of the gem loaded alone.
class ExtconfTest < Support::Test
  def missing(**more)
    NativeMakefile.missing(headers: @dir, **more)
  end

  # Returns a PATH with these programs and their output.
  def path_with(programs)
    programs.each do |name, says|
      File.chmod(0o755, file(name, "#!/bin/sh\necho '#{says}'\n"))
    end
    { "PATH" => @dir }
  end

  def test_all_that_is_missing_is_told_at_once
    lines = missing(env: { "PATH" => @dir }, folders: [@dir])
    assert_equal ["cargo is missing", "#{@dir}/ruby.h is missing", "libclang, which reads Ruby's headers, is missing"],
                 lines.map { |line| line[/\A.*? is missing/] }
    assert_match(/Debian: libclang-dev/, lines.last)
  end

  def test_nothing_is_missing_where_all_is_there
    file("ruby.h", "")
    env = path_with("cargo" => "cargo 1.999.0 (abc 2026-01-01)", "cc" => "cc 1")
    file("libclang-cpp.so.14", "")
    assert_match(/libclang, which/, missing(env: env, folders: [@dir]).join, "libclang-cpp is not libclang")
    file("libclang-14.so.1", "")
    assert_empty missing(env: env, folders: [@dir])
    assert_empty missing(env: env.merge("LIBCLANG_PATH" => @dir), folders: [])
    assert_empty missing(env: env.merge("LIBCLANG_PATH" => "#{@dir}/libclang-14.so.1"), folders: [])
    assert_empty missing(env: path_with("llvm-config" => @dir), folders: [])
    assert_match(%r{LIBCLANG_PATH=/nonexistent: no libclang}, missing(env: env.merge("LIBCLANG_PATH" => "/nonexistent")).join)
  end

  def test_an_old_cargo
    file("ruby.h", "")
    file("libclang.so", "")
    assert_match(/\Acargo 1\.60\.0 is too old; 1\.\d+ or newer/, missing(env: path_with("cargo" => "cargo 1.60.0"), folders: [@dir]).join)
    File.unlink("#{@dir}/cargo")
    assert_match(/\Acc is missing/, missing(env: path_with("cargo" => "cargo 9.0.0"), folders: [@dir]).join)
  end

  def test_the_extconf_ends_with_it_before_anything_is_built
    server = start(RbConfig.ruby, "#{Support::ROOT}/ext/oroshi/extconf.rb", env: { "LIBCLANG_PATH" => "/nonexistent" })
    assert_equal 1, server.wait.exitstatus
    assert_match(/oroshi: oroshi-native cannot be built:\n.*LIBCLANG_PATH/, server.said)
    refute File.exist?("#{@dir}/Makefile")
  end

  # This works without the client's native part.
  def test_the_version_is_there_with_the_client_alone
    file("oroshi/client_native.rb", "") if Dir.mkdir("#{@dir}/oroshi")
    server = start(*Support::RUBY, "-I", @dir, "-e", "begin; require 'oroshi/client'; rescue LoadError, NameError; end; puts Oroshi::VERSION")
    server.wait
    assert_match(/^\d+\.\d+\.\d+$/, server.said)
  end

  # The released gem brings its crates (scripts/packages): cargo then asks no registry.
  def test_crates_beside_the_sources_are_used
    assert_equal "", NativeMakefile.vendored("#{@dir}/vendor")
    Dir.mkdir("#{@dir}/vendor")
    flags = NativeMakefile.vendored("#{@dir}/vendor")
    assert_includes flags, " --offline "
    assert_includes flags, %(source.vendored.directory="#{@dir}/vendor")
  end
end
