# frozen_string_literal: true

require "rbconfig"

# Builds the native parts on `gem install`: each extconf.rb writes a Makefile that calls cargo. (In the repository `rake
# compile` does this, with the same checks.)
#
# Needs cargo (https://rustup.rs), a C compiler, Ruby's headers (Debian: ruby-dev) and libclang (Debian: libclang-dev).
module NativeMakefile
  # Where the dynamic linker and bindgen look for libraries.
  FOLDERS = ["/usr/lib*", "/usr/lib*/*-linux-*", "/usr/lib*/llvm*/lib*", "/usr/local/lib*", "/usr/local/llvm*/lib*",
             "/opt/*/lib*", "/lib*", "/lib*/*-linux-*", "/nix/store/*clang*-lib/lib"].freeze

  module_function

  # Writes the Makefile that builds a package of ext/Cargo.toml, and installs its library as oroshi/NAME.so.
  def write(package, name)
    check(package)
    File.write("Makefile", text(package, name))
  end

  # Ends with a list of all missing tools, before a build of minutes would find them.
  def check(what)
    lines = missing
    abort "oroshi: #{what} cannot be built:\n#{lines.map { |line| "  #{line}\n" }.join}Then try again." unless lines.empty?
  end

  # Returns missing tools, as lines for people. folders: where libclang may be.
  def missing(env: ENV, folders: FOLDERS, headers: RbConfig::CONFIG["rubyhdrdir"])
    [(rust(env) || compiler(env)), # one tool at a time: the second may come with the first
     ("#{headers}/ruby.h is missing. Install Ruby's headers (Debian: ruby-dev)." unless File.exist?("#{headers}/ruby.h")),
     libclang(env, folders)].compact
  end

  def rust(env)
    said = output(env, "cargo", "--version")
    return "cargo is missing. Install Rust (https://rustup.rs)." unless said

    needed = File.read("#{__dir__}/oroshi/Cargo.toml")[/^rust-version = "(.*)"/, 1]
    found = said[/\d+\.\d+(\.\d+)?/]
    return if found.nil? || Gem::Version.new(found) >= Gem::Version.new(needed)

    "cargo #{found} is too old; #{needed} or newer is needed. Run `rustup update stable`."
  end

  def compiler(env)
    "cc is missing. Install a C compiler (Debian: gcc)." unless output(env, "cc", "--version")
  end

  def libclang(env, folders)
    given = env["LIBCLANG_PATH"]
    where = given ? [given] : folders + [output(env, env["LLVM_CONFIG_PATH"] || "llvm-config", "--libdir")&.chomp,
                                         *env["LD_LIBRARY_PATH"].to_s.split(":")].compact
    return if given && File.file?(given)
    # libclang-cpp is another library.
    return if where.any? { |folder| !Dir["#{folder}/libclang.so*", "#{folder}/libclang-[0-9]*.so*"].empty? }
    return "LIBCLANG_PATH=#{given}: no libclang.so is there. Name the folder that has it, or unset the variable." if given

    "libclang, which reads Ruby's headers, is missing. Install it (Debian: libclang-dev; Fedora: clang-devel; " \
      "Alpine: clang-dev), or set LIBCLANG_PATH to the folder that has libclang.so."
  end

  # Returns a program's standard output; nil if it is missing or fails.
  def output(env, *command)
    program, *arguments = command
    path = env["PATH"].to_s.split(":").map { |folder| File.join(folder, program) }.find { |one| File.executable?(one) } || program
    said = IO.popen([path, *arguments], err: File::NULL, &:read) if path.include?("/")
    said if said && $?.success?
  rescue SystemCallError
    nil
  end

  # Returns cargo's flags for the crates that the released gem brings (scripts/packages): it is built without a network. A
  # gem that was built from the repository has none, and cargo downloads them.
  def vendored(folder = "#{__dir__}/vendor")
    return "" unless File.directory?(folder)

    %( --offline --config 'source.crates-io.replace-with="vendored"' --config 'source.vendored.directory="#{folder}"')
  end

  # rb-sys reads the headers of this very Ruby. cargo's intermediate files are large, and are removed unless
  # CARGO_TARGET_DIR says where to keep them. OROSHI_PROFILE is cargo's profile: the tests build another one faster.
  def text(package, name)
    <<~MAKEFILE
      export RUBY := #{RbConfig.ruby}
      sitearchdir = #{RbConfig::CONFIG["sitearchdir"]}
      target = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
      profile = $(or $(OROSHI_PROFILE),release)
      # cargo's own name for the folder of its profile dev.
      folder = $(if $(filter dev,$(profile)),debug,$(profile))

      all:
      \tcargo build --profile $(profile) --locked#{vendored} --manifest-path "#{__dir__}/Cargo.toml" --package #{package} --target-dir "$(target)"

      install: all
      \tmkdir -p "$(DESTDIR)$(sitearchdir)/oroshi"
      \tcp "$(target)/$(folder)/lib#{package.tr("-", "_")}.so" "$(DESTDIR)$(sitearchdir)/oroshi/#{name}.so"
      ifeq ($(CARGO_TARGET_DIR),)
      \trm -rf "$(target)"
      endif

      clean:

      .PHONY: all install clean
    MAKEFILE
  end
end
